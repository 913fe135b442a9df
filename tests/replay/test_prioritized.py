import json
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mario_rl.experience import Mark
from mario_rl.replay.prioritized import SMALLEST_ERROR, PrioritizedSampler, PriorityRules
from mario_rl.replay.sampler import NothingToDrawError, SampleBuffer, SamplingRules
from mario_rl.replay.streams import ReplayStreams
from mario_rl.replay.uniform import UniformSampler
from tests.replay import Player, rows_of
from tests.replay.model import GAMMA, LENGTH, drawable, drawn_by, episode, filled_replay, read_samples, replay_of


def new_sampler(replay, n_step=3, seed=0, exponent=1.0, correction=0.5, correction_decisions=10**9):
    return PrioritizedSampler(
        replay,
        SamplingRules(GAMMA, n_step, 0),
        np.random.default_rng(seed),
        PriorityRules(True, exponent, correction, correction_decisions),
    )


def identities(buffer):
    return [identity for identity, _ in read_samples(buffer)]


def give_back(sampler, buffer, error_of):
    """Note an error for every row drawn, as the learner does, and hand the buffer back."""
    buffer.td_errors.copy_(torch.tensor([float(error_of(identity)) for identity in identities(buffer)]))
    sampler.take_back(buffer)


def visit_all(sampler, expected, error_of):
    """Draw until every row has had its error noted."""
    buffer, seen = SampleBuffer(64, prioritized=True), set()
    for _ in range(500):
        sampler.sample(buffer)
        seen.update(identities(buffer))
        give_back(sampler, buffer, error_of)
        if seen >= expected:
            return
    raise AssertionError(f"never drawn: {expected - seen}")


def shares(sampler, num_batches=100):
    """How often each row is drawn."""
    buffer, counts = SampleBuffer(200, prioritized=True), Counter()
    for _ in range(num_batches):
        sampler.sample(buffer)
        counts.update(identities(buffer))
    return {identity: count / counts.total() for identity, count in counts.items()}


@given(num_chunks=st.integers(1, 60), n_step=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_only_drawable_rows_are_drawn_and_with_the_right_pictures_and_returns(num_chunks, n_step, seed):
    replay, model, _ = filled_replay(num_chunks)
    expected = drawable(replay, model, n_step)
    # The newest rows wait until everything that they need has arrived.
    newest = {
        row.record.identity
        for stream in model
        for segment in stream.segments
        for row in segment
        if row.number >= stream.num_rows - n_step
    }
    sure = expected.keys() - newest
    sampler = new_sampler(replay, n_step, seed)
    if not sure:
        return
    drawn = drawn_by(sampler, dict.fromkeys(sure), prioritized=True)
    assert sure <= drawn.keys() <= expected.keys()
    assert all(sample == expected[identity] for identity, sample in drawn.items())


def test_rows_are_drawn_in_proportion_to_their_error():
    replay = replay_of(episode([1] * 10, Mark.TERMINATED), episode([1] * 10, Mark.TERMINATED, 200))
    sampler = new_sampler(replay)
    wanted = {100: 4.0, 101: 1.0, 105: 2.0}
    visit_all(sampler, set(range(100, 110)) | set(range(200, 208)), lambda identity: wanted.get(identity, 0.0))
    drawn = shares(sampler)
    assert drawn[100] / drawn[101] == pytest.approx(4.0, rel=0.2)
    assert drawn[105] / drawn[101] == pytest.approx(2.0, rel=0.2)
    assert sum(share for identity, share in drawn.items() if identity not in wanted) < 0.01


def test_an_exponent_of_zero_is_uniform():
    replay = replay_of(episode([1] * 10, Mark.TERMINATED))
    sampler = new_sampler(replay, exponent=0.0)
    visit_all(sampler, set(range(100, 108)), lambda identity: identity - 100)
    drawn = shares(sampler)
    assert max(drawn.values()) / min(drawn.values()) < 1.15


@pytest.mark.parametrize("correction", [0.0, 0.4, 1.0])
def test_weights_make_up_for_being_drawn_more_often(correction):
    replay = replay_of(episode([1] * 10, Mark.TERMINATED))
    sampler = new_sampler(replay, correction=correction)
    errors = {identity: float(identity - 99) for identity in range(100, 110)}
    visit_all(sampler, set(range(100, 108)), errors.__getitem__)
    buffer = SampleBuffer(512, prioritized=True)
    sampler.sample(buffer)
    weights = dict(zip(identities(buffer), buffer.weights.tolist(), strict=True))
    assert max(weights.values()) == 1.0
    for identity in weights:
        expected = ((errors[100] + SMALLEST_ERROR) / (errors[identity] + SMALLEST_ERROR)) ** correction
        assert weights[identity] == pytest.approx(expected, rel=1e-4)


def test_the_correction_grows_to_all_of_it():
    replay = replay_of(episode([1] * 14, Mark.TERMINATED))
    sampler = new_sampler(replay, correction=0.4, correction_decisions=24)
    assert sampler.correction == 0.4
    sampler.sample(SampleBuffer(8, prioritized=True))
    assert sampler.correction == pytest.approx(0.4 + 0.6 * 12 / 24)  # of 15 rows, 3 wait for what they need
    for _ in range(3):
        replay.append(0, rows_of(episode([1] * 14, Mark.TERMINATED)))
    sampler.sample(SampleBuffer(8, prioritized=True))
    assert sampler.correction == 1.0


def test_new_rows_come_first():
    replay = replay_of(episode([1] * 10, Mark.TERMINATED))
    sampler = new_sampler(replay)
    visit_all(sampler, set(range(100, 108)), lambda identity: 50.0 if identity == 103 else 0.01)
    replay.append(0, rows_of(episode([1] * 10, Mark.TERMINATED, 200)))
    drawn = shares(sampler)
    for identity in range(200, 207):
        assert drawn[identity] == pytest.approx(drawn[103], rel=0.25)  # as the largest error so far
    assert drawn.get(104, 0.0) < 0.01


def test_rows_that_cannot_be_a_state_are_tried_once_only():
    replay = replay_of(
        episode([1] * 3, Mark.TERMINATED), *(episode([1], Mark.TERMINATED, 10 * n) for n in range(20, 50))
    )
    sampler = new_sampler(replay, n_step=1)
    buffer = SampleBuffer(256, prioritized=True)
    for _ in range(20):
        sampler.sample(buffer)
    asked = []
    original = sampler._note_rejected
    sampler._note_rejected = lambda stream, state: (asked.extend(state.tolist()), original(stream, state))
    for _ in range(20):
        sampler.sample(buffer)
    assert not asked


def test_errors_of_rows_that_were_overwritten_meanwhile_are_forgotten():
    replay, player = ReplayStreams(1, LENGTH), Player(0, [(7, Mark.TERMINATED)])
    replay.append(0, rows_of(player.play(16)))
    sampler, buffer = new_sampler(replay), SampleBuffer(64, prioritized=True)
    sampler.sample(buffer)
    for _ in range(2 * LENGTH // 16):
        replay.append(0, rows_of(player.play(16)))
    give_back(sampler, buffer, lambda _: 1000.0)
    sampler.sample(SampleBuffer(8, prioritized=True))
    assert sampler._tree.leaves.max() == 1.0


def test_a_batch_that_was_never_trained_on_changes_nothing():
    replay = replay_of(episode([1] * 10, Mark.TERMINATED))
    sampler, buffer = new_sampler(replay), SampleBuffer(8, prioritized=True)
    sampler.sample(buffer)
    before = sampler._tree.leaves.copy()
    sampler.take_back(buffer)
    np.testing.assert_array_equal(sampler._tree.leaves, before)
    give_back(sampler, buffer, lambda _: 0.25)
    sampler.take_back(buffer)  # a second time: the errors were used up
    assert set(sampler._tree.leaves[sampler._tree.leaves > 0].round(6)) == {0.25 + SMALLEST_ERROR, 1.0}


def test_an_error_that_is_not_a_number_does_not_reach_the_tree():
    replay = replay_of(episode([1] * 10, Mark.TERMINATED))
    sampler, buffer = new_sampler(replay), SampleBuffer(8, prioritized=True)
    sampler.sample(buffer)
    give_back(sampler, buffer, lambda _: float("inf"))
    assert np.isfinite(sampler._tree.total)
    sampler.sample(buffer)


def test_a_restored_sampler_draws_the_same_batches():
    replay, _, players = filled_replay(num_chunks=30)
    sampler = new_sampler(replay)
    buffers = [SampleBuffer(32, prioritized=True), SampleBuffer(32, prioritized=True)]
    for _ in range(5):
        sampler.sample(buffers[0])
        give_back(sampler, buffers[0], lambda identity: identity % 17)
    restored = new_sampler(replay, seed=99)
    restored.load(json.loads(json.dumps(sampler.state())), sampler.tensors())
    replay.append(0, rows_of(players[0].play(9)))
    for _ in range(3):
        for one, buffer in zip((sampler, restored), buffers, strict=True):
            one.sample(buffer)
        assert identities(buffers[0]) == identities(buffers[1])
        assert torch.equal(buffers[0].weights, buffers[1].weights)


def test_a_checkpoint_of_uniform_replay_makes_all_rows_new():
    replay, model, _ = filled_replay(num_chunks=30)
    sampler = new_sampler(replay)
    uniform = UniformSampler(replay, SamplingRules(GAMMA, 3, 0), np.random.default_rng(5))
    sampler.load(uniform.state(), uniform.tensors())
    assert drawn_by(sampler, {}, prioritized=True).keys() <= drawable(replay, model, 3).keys()


def test_an_empty_replay_has_nothing_to_draw():
    with pytest.raises(NothingToDrawError):
        new_sampler(ReplayStreams(2, 2 * LENGTH)).sample(SampleBuffer(4, prioritized=True))
