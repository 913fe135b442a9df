import contextlib
import time
from multiprocessing.connection import wait

import pytest

from mario_rl.channels.doorbell import PeerGoneError, create_doorbell
from tests.channels import PATIENCE_SECONDS, child, context, receive

MORE_THAN_A_PIPE_HOLDS = 70_000  # bytes; Linux gives 65,536


@pytest.fixture
def doorbell():
    ringer, listener = create_doorbell(context)
    yield ringer, listener
    ringer.close()
    listener.close()


def ring_when_told(ringer, told, num_rings):
    told.recv()
    for _ in range(num_rings):
        ringer.ring()
    told.send("rang")
    told.recv()


def hold(_end, told):
    told.send("started")
    time.sleep(PATIENCE_SECONDS)


def test_nobody_rang_is_not_a_ring(doorbell):
    _, listener = doorbell
    assert not listener.answer()
    listener.wait(0.01)
    assert not listener.answer()


def test_many_rings_are_answered_at_once(doorbell):
    ringer, listener = doorbell
    for _ in range(5):
        ringer.ring()
    listener.wait(PATIENCE_SECONDS)
    assert listener.answer()
    assert not listener.answer()


@pytest.mark.timeout(60)
def test_ringing_in_a_child_never_blocks_even_if_nobody_answers(doorbell):
    ringer, listener = doorbell
    ours, theirs = context.Pipe()
    with ours, theirs, child(ring_when_told, ringer, theirs, MORE_THAN_A_PIPE_HOLDS):
        ours.send("ring")
        assert receive(ours) == "rang"
        assert listener.answer()
        assert not listener.answer()
        ringer.ring()  # a pipe that was full works again
        assert listener.answer()


def test_a_ring_wakes_a_sleeping_listener_in_another_process(doorbell):
    ringer, listener = doorbell
    ours, theirs = context.Pipe()
    with ours, theirs, child(ring_when_told, ringer, theirs, 1):
        ours.send("ring")
        listener.wait(PATIENCE_SECONDS)
        assert listener.answer()


def test_one_wait_tells_which_of_several_doorbells_rang():
    with contextlib.ExitStack() as stack:
        doorbells = [create_doorbell(context) for _ in range(3)]
        for end in (end for doorbell in doorbells for end in doorbell):
            stack.callback(end.close)
        listeners = [listener for _, listener in doorbells]
        doorbells[1][0].ring()
        assert wait(listeners, PATIENCE_SECONDS) == [listeners[1]]
        listeners[1].answer()
        assert wait(listeners, 0) == []


def test_a_killed_ringers_rings_are_heard_before_its_death():
    ringer, listener = create_doorbell(context)
    ours, theirs = context.Pipe()
    with ours, theirs, child(ring_when_told, ringer, theirs, 2) as process:
        ringer.close()
        ours.send("ring")
        assert receive(ours) == "rang"
        process.kill()
        process.join(PATIENCE_SECONDS)
        assert listener.answer()
        with pytest.raises(PeerGoneError):
            listener.answer()
    listener.close()


def test_a_sleeping_listener_is_woken_by_its_ringers_death():
    ringer, listener = create_doorbell(context)
    ours, theirs = context.Pipe()
    with ours, theirs, child(hold, ringer, theirs) as process:
        ringer.close()
        assert receive(ours) == "started"
        process.kill()
        assert wait([listener], PATIENCE_SECONDS) == [listener]
        with pytest.raises(PeerGoneError):
            listener.answer()
    listener.close()


def test_ringing_a_dead_process_raises():
    ringer, listener = create_doorbell(context)
    ours, theirs = context.Pipe()
    with ours, theirs, child(hold, listener, theirs) as process:
        listener.close()
        assert receive(ours) == "started"
        ringer.ring()
        process.kill()
        process.join(PATIENCE_SECONDS)
        with pytest.raises(PeerGoneError):
            ringer.ring()
    ringer.close()
