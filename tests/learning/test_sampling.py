from dataclasses import replace

import numpy as np
import pytest

from mario_rl.learning.sampling import SampleAhead, SampleInline
from mario_rl.replay.sampler import NothingToDrawError
from mario_rl.replay.streams import ReplayStreams
from mario_rl.replay.uniform import UniformSampler
from tests import rules
from tests.replay import Player, rows_of

EPISODES = [(30, 4), (7, 2)]


def _sampler(seed=0, filled=True):
    replay = ReplayStreams(1, 400)
    if filled:
        player = Player(0, EPISODES)
        for _ in range(10):
            replay.append(0, rows_of(player.play(20)))
    return UniformSampler(replay, replace(rules.SAMPLING, picture_shift=2), np.random.default_rng(seed))


def _copies(samples, count):
    return [[tensor.clone() for tensor in samples.next().tensors()] for _ in range(count)]


def test_batches_drawn_ahead_are_those_that_would_be_drawn_when_asked():
    inline = SampleInline(_sampler(), 16)
    ahead = SampleAhead(_sampler(), 16, pinned=False)
    for expected, got in zip(_copies(inline, 12), _copies(ahead, 12), strict=True):
        assert all(one.equal(two) for one, two in zip(expected, got, strict=True))
    ahead.close()


def test_a_batch_in_use_is_not_refilled_before_the_next_one_is_asked_for():
    ahead = SampleAhead(_sampler(), 16, pinned=False)
    ahead.next()
    for _ in range(20):
        batch = ahead.next()
        before = batch.pictures.clone()
        ahead._thread.join(0.005)  # time for a thread that would write where it must not
        assert before.equal(batch.pictures)
    ahead.close()


def test_what_goes_wrong_in_the_thread_is_raised_where_the_batch_is_asked_for():
    ahead = SampleAhead(_sampler(filled=False), 16, pinned=False)
    with pytest.raises(NothingToDrawError):
        ahead.next()
    ahead.close()
