import json
import threading
import time
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mario_rl.experience import Mark
from mario_rl.replay.sampler import NothingToDrawError, SampleBuffer, SamplingRules
from mario_rl.replay.streams import GUARD_ROWS, ReplayStreams
from mario_rl.replay.uniform import UniformSampler
from tests.replay import Player, poison, rows_of
from tests.replay.model import (
    GAMMA,
    LENGTH,
    LONGEST_CHUNK,
    ModelStream,
    Sample,
    append_chunk,
    drawable,
    drawn_by,
    episode,
    filled_replay,
    read_samples,
    replay_of,
)

CHUNKS_IN_A_LAP = LENGTH // LONGEST_CHUNK


def new_sampler(replay, n_step, seed=0, max_shift=0):
    return UniformSampler(replay, SamplingRules(GAMMA, n_step, max_shift), np.random.default_rng(seed))


# --- Small examples, worked out by hand.


def test_n_step_returns_and_discounts_worked_out_by_hand():
    replay = replay_of(episode([1, 2, 4, 8, 16], Mark.TERMINATED)[:5])
    drawn = drawn_by(new_sampler(replay, n_step=3), dict.fromkeys(range(100, 105)))
    assert {state: (sample.n_step_return, sample.discount) for state, sample in drawn.items()} == {
        100: (1 + 2 / 2 + 4 / 4, 1 / 8),
        101: (2 + 4 / 2 + 8 / 4, 1 / 8),
        102: (4 + 8 / 2 + 16 / 4, 0),
        103: (8 + 16 / 2, 0),
        104: (16, 0),
    }
    assert drawn[100] == Sample((100, 100, 100, 100), 0, 3, 1 / 8, (100, 101, 102, 103))
    assert drawn[101] == Sample((100, 100, 100, 101), 1, 6, 1 / 8, (101, 102, 103, 104))


def test_a_terminated_episode_does_not_bootstrap():
    replay = replay_of(episode([1, 2], Mark.TERMINATED))
    assert drawn_by(new_sampler(replay, n_step=3), dict.fromkeys([100, 101])) == {
        100: Sample((100, 100, 100, 100), 0, 1 + 2 / 2, 0, None),
        101: Sample((100, 100, 100, 101), 1, 2, 0, None),
    }


def test_a_truncated_episode_bootstraps_from_its_final_picture_with_the_steps_it_had():
    replay = replay_of(episode([1, 2], Mark.TRUNCATED))
    assert drawn_by(new_sampler(replay, n_step=3), dict.fromkeys([100, 101])) == {
        100: Sample((100, 100, 100, 100), 0, 1 + 2 / 2, 1 / 4, (100, 100, 101, 102)),
        101: Sample((100, 100, 100, 101), 1, 2, 1 / 2, (100, 100, 101, 102)),
    }


def test_rewards_of_the_next_episode_do_not_count():
    replay = replay_of(episode([1, 2], Mark.TRUNCATED), episode([50, 50, 50, 50, 50], Mark.TERMINATED, 200))
    drawn = drawn_by(new_sampler(replay, n_step=3), dict.fromkeys([100, 101, 200, 201, 202, 203, 204]))
    assert drawn[101] == Sample((100, 100, 100, 101), 1, 2, 1 / 2, (100, 100, 101, 102))
    assert drawn[200].stack == (200, 200, 200, 200)


def test_the_last_step_of_a_truncated_episode_waits_for_its_final_picture():
    *steps, final = episode([1, 2, 3], Mark.TRUNCATED)
    replay = replay_of(steps)
    sampler = new_sampler(replay, n_step=2)
    assert drawn_by(sampler, {100: None}).keys() == {100}
    replay.append(0, rows_of([final]))
    assert drawn_by(sampler, dict.fromkeys([100, 101, 102])).keys() == {100, 101, 102}


def test_rows_whose_n_steps_are_not_over_yet_are_not_drawn():
    replay = replay_of(episode([1] * 9, Mark.TERMINATED)[:8])
    drawn = drawn_by(new_sampler(replay, n_step=3), dict.fromkeys(range(100, 105)))
    assert drawn.keys() == set(range(100, 105))


def test_after_a_break_in_mid_episode_states_begin_with_the_first_whole_stack():
    records = episode([1] * 12, Mark.TERMINATED)
    replay = replay_of(records[:4])
    replay.interrupt(0)
    replay.append(0, rows_of(records[5:12]))  # row 104 was lost
    drawn = drawn_by(new_sampler(replay, n_step=1), dict.fromkeys([100, 101, 102, 108, 109, 110, 111]))
    assert drawn.keys() == {100, 101, 102, 108, 109, 110, 111}
    assert drawn[108].stack == (105, 106, 107, 108)


def test_an_empty_replay_has_nothing_to_draw():
    with pytest.raises(NothingToDrawError):
        new_sampler(ReplayStreams(2, 2 * LENGTH), n_step=3).sample(SampleBuffer(4))


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(episode([1], Mark.TRUNCATED)[:1], id="the final picture is missing"),
        pytest.param(episode([1], Mark.TRUNCATED)[1:], id="only a final picture"),
        pytest.param(episode([1] * 5, Mark.TERMINATED)[:3], id="no row has its three steps"),
        pytest.param(episode([1] * 4, Mark.TERMINATED)[1:], id="no row has its stack"),
    ],
)
def test_a_replay_without_a_drawable_row_has_nothing_to_draw(records):
    with pytest.raises(NothingToDrawError):
        new_sampler(replay_of(records), n_step=3).sample(SampleBuffer(4))


# --- Anything that can happen, against the model.

EPISODES = st.lists(
    st.tuples(st.integers(1, 14), st.sampled_from([Mark.TERMINATED, Mark.TRUNCATED])), min_size=1, max_size=6
)
# A chunk's length, and what comes before it: nothing, rows that were lost (none at all, for once), or a restarted game.
CHUNKS = st.lists(
    st.tuples(
        st.integers(1, LONGEST_CHUNK),
        st.one_of(st.none(), st.none(), st.integers(0, 9), st.just("restart"), st.just("restart unannounced")),
    ),
    min_size=1,
    max_size=10,
)


@given(
    length=st.integers(LENGTH, LENGTH + 7),
    n_step=st.integers(1, 5),
    episodes=EPISODES,
    chunks=CHUNKS,
    num_rows=st.lists(st.integers(0, 4 * LENGTH), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=50, deadline=None)
def test_exactly_the_drawable_rows_are_drawn_with_the_right_pictures_and_returns(
    length, n_step, episodes, chunks, num_rows, seed
):
    replay = ReplayStreams(len(num_rows), len(num_rows) * length)
    poison(replay)
    model = [ModelStream() for _ in num_rows]
    players = [Player(stream, episodes[stream % len(episodes) :] + episodes) for stream in range(len(num_rows))]
    turn = 0
    while any(stream.num_rows < count for stream, count in zip(model, num_rows, strict=True)):
        for stream, player in enumerate(players):
            if model[stream].num_rows < num_rows[stream]:
                append_chunk(replay, model, stream, player, chunks[(turn + stream) % len(chunks)])
        turn += 1

    expected = drawable(replay, model, n_step)
    sampler = new_sampler(replay, n_step, seed)
    if not expected:
        with pytest.raises(NothingToDrawError):
            sampler.sample(SampleBuffer(1))
        return
    try:
        drawn = drawn_by(sampler, expected)
    except NothingToDrawError:
        assert len(expected) * 8 < replay.num_rows  # where hardly any row can be drawn, a draw may give up
    else:
        assert drawn == expected


def test_every_drawable_row_is_equally_likely():
    replay, model, players = filled_replay(num_chunks=4)
    for _ in range(20):
        append_chunk(replay, model, 1, players[1], (10, None))  # the second stream is longer, and has wrapped
    expected = drawable(replay, model, n_step=3)
    sampler = new_sampler(replay, n_step=3)
    buffer = SampleBuffer(256)
    counts = Counter()
    for _ in range(40):
        sampler.sample(buffer)
        counts.update(identity for identity, _ in read_samples(buffer))
    mean = counts.total() / len(expected)
    assert counts.keys() == expected.keys()
    assert all(abs(count - mean) < 5 * mean**0.5 for count in counts.values())


# --- Checkpoints.


def restored_copy(original, first_kept):
    copy = ReplayStreams(original.num_streams, original.num_streams * original.length)
    poison(copy)
    for stream, begin in enumerate(first_kept):
        copy.restore(stream, begin, original.read(stream, begin, int(original.written_end[stream])))
    copy.restore_counters(json.loads(json.dumps(original.counters() | {"first_kept": first_kept})))
    return copy


def assert_same_batches(left, right, num_batches=3):
    buffers = [SampleBuffer(32), SampleBuffer(32)]
    for _ in range(num_batches):
        left.sample(buffers[0])
        right.sample(buffers[1])
        assert all(torch.equal(a, b) for a, b in zip(buffers[0].tensors(), buffers[1].tensors(), strict=True))


@pytest.mark.parametrize("num_chunks", [5, 60])  # the second wraps several times
def test_a_restored_replay_draws_the_same_batches_now_and_after_more_experience(num_chunks):
    original, model, players = filled_replay(num_chunks)
    original.interrupt(1)
    copy = restored_copy(original, [original.oldest(stream) for stream in (0, 1)])
    samplers = [new_sampler(original, n_step=3, seed=5), new_sampler(copy, n_step=3, seed=99)]
    samplers[1].load(json.loads(json.dumps(samplers[0].state())), {})
    assert_same_batches(*samplers)
    for stream, player in enumerate(players):
        player.play(2 * stream)  # what the interrupted stream lost
        records = player.play(8)
        model[stream].append(records, continues=stream == 0)
        for replay in (original, copy):
            replay.append(stream, rows_of(records))
    assert_same_batches(*samplers)
    expected = drawable(copy, model, n_step=3)
    assert drawn_by(samplers[1], expected) == expected


def test_rows_that_a_checkpoint_left_out_are_never_used():
    original, model, _ = filled_replay(num_chunks=12)
    first_kept = [50, int(original.written_end[1])]  # of the second stream nothing was kept
    copy = restored_copy(original, first_kept)
    expected = model[0].samples(n_step=3, oldest=50)
    sampler = new_sampler(copy, n_step=3)
    assert drawn_by(sampler, expected) == expected

    # What comes after the gap is used as soon as it has stacks of its own.
    records = Player(2, [(30, Mark.TERMINATED)]).play(16)[4:]
    copy.append(1, rows_of(records))
    continued = ModelStream()
    continued.append(records, continues=False)
    expected |= continued.samples(n_step=3)
    assert drawn_by(sampler, expected) == expected


# --- Appends while a batch is drawn.


class OvertakingGenerator(np.random.Generator):
    """Random numbers, and an append at the worst moment: when rows were chosen and nothing of them was read yet."""

    append_now = None

    def integers(self, *args, **kwargs):
        numbers = super().integers(*args, **kwargs)
        if self.append_now is not None:
            append, self.append_now = self.append_now, None
            append()
        return numbers


def sample_overtaken_by(num_rows, buffer):
    """Draw from a wrapped stream while that many rows are appended; the sampler, and all samples there ever were."""
    replay, model, players = filled_replay(num_chunks=30, num_streams=1)
    rng = OvertakingGenerator(np.random.PCG64(0))
    sampler = UniformSampler(replay, SamplingRules(GAMMA, 3, 0), rng)

    def append():
        for begin in range(0, num_rows, LONGEST_CHUNK):
            append_chunk(replay, model, 0, players[0], (min(LONGEST_CHUNK, num_rows - begin), None))

    rng.append_now = append
    sampler.sample(buffer)
    return sampler, model[0].samples(n_step=3)


def test_a_batch_that_an_append_overtook_is_drawn_again():
    buffer = SampleBuffer(64)
    sampler, expected = sample_overtaken_by(LENGTH, buffer)
    assert sampler.num_redraws == 1
    assert all(expected[identity] == sample for identity, sample in read_samples(buffer))


@pytest.mark.parametrize("num_rows_too_many", range(1, 10))
def test_an_append_that_reaches_only_the_oldest_pictures_of_stacks_does_not_mix_them(num_rows_too_many):
    buffer = SampleBuffer(256)  # more than there are drawable rows: the oldest ones are among them
    _, expected = sample_overtaken_by(GUARD_ROWS + num_rows_too_many, buffer)
    assert all(expected[identity] == sample for identity, sample in read_samples(buffer))


def test_an_append_within_the_guard_band_disturbs_no_batch():
    buffer = SampleBuffer(256)
    sampler, expected = sample_overtaken_by(GUARD_ROWS, buffer)
    assert sampler.num_redraws == 0
    assert all(expected[identity] == sample for identity, sample in read_samples(buffer))


def test_samples_are_whole_while_another_thread_appends_and_wraps_around():
    num_chunks, num_streams, n_step = 1000, 2, 3
    replay = ReplayStreams(num_streams, num_streams * LENGTH)
    episodes = [(7, Mark.TERMINATED), (1, Mark.TRUNCATED), (12, Mark.TRUNCATED)]
    chunks, expected = [], {}
    for stream in range(num_streams):
        player, model = Player(stream, episodes), ModelStream()
        chunks.append([player.play(LONGEST_CHUNK) for _ in range(num_chunks)])
        for chunk in chunks[stream]:
            model.append(chunk, continues=True)
        expected |= model.samples(n_step)

    def append(numbers):
        for number in numbers:
            for stream in range(num_streams):
                replay.append(stream, rows_of(chunks[stream][number]))
            if number % CHUNKS_IN_A_LAP == 0:
                time.sleep(0.002)  # let the sampler come through between two laps

    append([0])
    sampler = new_sampler(replay, n_step)
    buffer = SampleBuffer(48)
    appender = threading.Thread(target=append, args=(range(1, num_chunks),), daemon=True)
    appender.start()
    while appender.is_alive():
        sampler.sample(buffer)
        for identity, sample in read_samples(buffer):
            assert expected[identity] == sample
    appender.join()
    assert replay.written_end.tolist() == [num_chunks * LONGEST_CHUNK] * num_streams


def test_four_threads_draw_large_samples_at_once_while_another_appends():
    # What TRAINING_WORKERS does: each worker has a sampler of its own, and all of them share replay without a lock.
    num_chunks, num_streams, n_step, num_threads, num_batches = 400, 2, 3, 4, 12
    replay = ReplayStreams(num_streams, num_streams * 1_500)
    chunks, expected = [], {}
    for stream in range(num_streams):
        player, model = Player(stream, [(7, Mark.TERMINATED), (12, Mark.TRUNCATED)]), ModelStream()
        chunks.append([player.play(LONGEST_CHUNK) for _ in range(num_chunks)])
        for chunk in chunks[stream]:
            model.append(chunk, continues=True)
        expected |= model.samples(n_step)

    def append(numbers, pause):
        for number in numbers:
            for stream in range(num_streams):
                replay.append(stream, rows_of(chunks[stream][number]))
            time.sleep(pause)

    wrong, drawn = [], []

    def draw(seed):
        sampler, buffer = new_sampler(replay, n_step, seed), SampleBuffer(1_024)
        for _ in range(num_batches):
            sampler.sample(buffer)
            samples = list(read_samples(buffer))
            wrong.extend(identity for identity, sample in samples if expected[identity] != sample)
            drawn.append(frozenset(identity for identity, _ in samples))

    append(range(100), 0.0)  # a lap and a little more
    threads = [threading.Thread(target=draw, args=(seed,), daemon=True) for seed in range(num_threads)]
    threads.append(threading.Thread(target=append, args=(range(100, num_chunks), 0.002), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    assert len(set(drawn)) == len(drawn) == num_threads * num_batches  # no thread got another's batch


def test_states_are_shifted_a_little_and_next_states_are_not():
    replay = ReplayStreams(1, 400)
    player = Player(0, [(30, Mark.TERMINATED)])
    for _ in range(10):
        rows = rows_of(player.play(20))
        rows.frame[:] = np.arange(84, dtype=np.uint8)[:, None] * 2 + np.arange(84, dtype=np.uint8)  # 2 y + x
        replay.append(0, rows)
    sampler, buffer = new_sampler(replay, 3, max_shift=2), SampleBuffer(256)
    sampler.sample(buffer)
    states, next_states = buffer.pictures[:, 0].numpy(), buffer.pictures[:, 1].numpy()
    assert (next_states[:, :, 40, 40] == 120).all()
    inside = states[:, :, 10:-10, 10:-10].astype(int) - next_states[:, :, 10:-10, 10:-10]
    assert (inside == inside[:, :1, :1, :1]).all()  # a whole stack is shifted as one
    assert set(inside[:, 0, 0, 0]) == set(range(-6, 7))  # 2 * (-2 .. 2) + (-2 .. 2)
