from mario_rl.channels.control import Control
from tests.channels import child, context, receive


def report_when_asked(control, collector, asked):
    while asked.recv():
        asked.send((control.stop, control.decisions, control.granted_decisions(collector)))


def test_a_new_run_lets_nobody_go_before_it_says_how_far():
    control = Control(context, num_collectors=2)
    assert not control.stop
    assert control.decisions == 0
    assert [control.granted_decisions(collector) for collector in range(2)] == [0, 0]


def test_a_running_collector_sees_each_change_and_only_its_own_grant():
    control = Control(context, num_collectors=2)
    ours, theirs = context.Pipe()
    with ours, theirs, child(report_when_asked, control, 1, theirs):
        ours.send(True)
        assert receive(ours) == (False, 0, 0)
        control.decisions = 2**40
        control.grant_decisions(1, 22)
        control.grant_decisions(0, 11)
        ours.send(True)
        assert receive(ours) == (False, 2**40, 22)
        control.stop = True
        ours.send(True)
        assert receive(ours) == (True, 2**40, 22)
        ours.send(False)
