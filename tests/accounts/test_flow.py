from hypothesis import given
from hypothesis import strategies as st

from mario_rl.accounts.flow import FlowControl, FlowRules, share_out, slack_for


def _flow(replay_ratio, warmup, slack):
    return FlowControl(FlowRules(warmup, replay_ratio), slack)


def test_nothing_is_trained_before_the_warm_up():
    flow = _flow(4.0, 100, 50)
    assert not flow.may_train(99, 0)
    assert flow.may_train(100, 0)


def test_the_learner_waits_when_it_has_used_each_experience_often_enough():
    flow = _flow(4.0, 100, 50)
    assert flow.may_train(110, 40)
    assert not flow.may_train(110, 41)


def test_collectors_wait_when_they_are_ahead_by_more_than_the_slack():
    flow = _flow(4.0, 100, 50)
    assert flow.collection_limit(trained=400) == 100 + 100 + 50


def test_a_ratio_of_zero_lets_both_sides_run():
    flow = _flow(0.0, 10, 5)
    assert flow.may_train(10, 10**9)
    assert flow.collection_limit(0) is None


def test_an_empty_replay_is_warmed_up_again_without_owing_updates():
    flow = _flow(2.0, 100, 50)
    flow.warm_up_again(collected=5_000, trained=9_000)
    assert not flow.may_train(5_099, 9_000)
    assert flow.may_train(5_100, 9_000)
    assert flow.collection_limit(9_000) == 5_150


def test_what_is_left_is_shared_equally_and_earlier_sessions_count():
    assert share_out(1_100, [30, 10], written_before=1_000) == [60, 40]
    assert share_out(1_100, [70, 60], written_before=1_000) == [70, 60]  # too far already: neither moves
    assert share_out(None, [70, 60], written_before=1_000) == [None, None]


def test_a_ratio_that_was_changed_counts_from_the_resume_on():
    before = _flow(8.0, 100, 50)
    lower, higher = _flow(4.0, 100, 50), _flow(16.0, 100, 50)
    for resumed in (lower, higher):
        resumed.load(before.state(), {})
        resumed.follow_new_ratio(collected=10_100, trained=80_000)
        assert resumed.may_train(10_100, 80_000)
        assert resumed.collection_limit(80_000) == 10_150
    same = _flow(8.0, 100, 50)
    same.load(before.state(), {})
    same.follow_new_ratio(collected=10_100, trained=79_000)
    assert same.begin_collected == 100


@given(
    ratio=st.floats(0.1, 50),
    warmup=st.integers(1, 500),
    chunk=st.integers(1, 128),
    num_collectors=st.integers(1, 8),
    commit_size=st.integers(1, 1_000),
    round_size=st.integers(2, 4_096),
)
def test_both_sides_never_wait_for_each_other(ratio, warmup, chunk, num_collectors, commit_size, round_size):
    """Plays the pipeline with the laziest commits that its rules allow; one side must always be able to go on."""
    flow = _flow(ratio, warmup, slack_for(commit_size, chunk, num_collectors))
    committed = trained = 0
    written = [0] * num_collectors
    for _ in range(300):
        granted = share_out(flow.collection_limit(trained), written, written_before=0)
        moved = False
        for collector in range(num_collectors):
            if written[collector] < granted[collector]:
                written[collector] += chunk
                moved = True
        if sum(written) - committed >= commit_size:
            committed = sum(written)
        while flow.may_train(committed, trained):
            trained += round_size
            moved = True
        assert moved, "deadlock"
