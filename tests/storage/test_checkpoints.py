import math
import types
from dataclasses import replace

import numpy as np
import pytest
import torch

from mario_rl.experience import FRAME_SIZE, Mark, Rows
from mario_rl.replay import saving
from mario_rl.replay.sampler import SampleBuffer
from mario_rl.replay.saving import ROWS_PER_BLOCK, ReplayBlocks, restore_replay
from mario_rl.replay.streams import ReplayStreams
from mario_rl.replay.uniform import UniformSampler
from mario_rl.storage.checkpoints import MANIFEST, NUMBERS, REPLAY, TENSORS, CheckpointStore
from tests import rules as part_rules

PLENTY_OF_TIME = 1e6
FILES = (TENSORS, NUMBERS, REPLAY, MANIFEST)
WEIGHTS = {"weight": torch.arange(6.0).reshape(2, 3)}


# --- Replay whose rows can be told apart ------------------------------------------------------------------------------


def number_of(picture):
    """The row number that `rows` wrote into a picture (or into a batch of them)."""
    digits = picture.reshape(*picture.shape[:-2], -1)[..., 1:4].astype(np.int64)
    return digits @ np.array([1, 256, 65_536])


def rows(stream, begin, count, episode_length=37):
    """Rows of endless episodes; every picture says which stream and row it is, and so does every reward."""
    number = np.arange(begin, begin + count)
    frame = np.full((count, FRAME_SIZE, FRAME_SIZE), stream, np.uint8)
    flat = frame.reshape(count, FRAME_SIZE * FRAME_SIZE)
    flat[:, 1], flat[:, 2], flat[:, 3] = number % 256, number // 256 % 256, number // 65_536
    step = number % episode_length
    marks = np.where(step == 0, Mark.START, 0) | np.where(step == episode_length - 1, Mark.FINAL, 0)
    ending = np.where(number // episode_length % 2, Mark.TERMINATED, Mark.TRUNCATED)
    marks |= np.where(step == episode_length - 2, ending, 0)
    nothing = np.zeros(count, np.int32)
    return Rows(
        frame,
        (number % 7).astype(np.uint8),
        number.astype(np.float32),
        marks.astype(np.uint8),
        nothing.astype(np.float32),
        nothing,
        nothing,
        nothing.astype(np.uint8),
        nothing.astype(np.int64),
    )


def append(replay, stream, count):
    while count:
        part = min(count, 100)
        replay.append(stream, Rows(*(column[None] for column in rows(stream, int(replay.written_end[stream]), part))))
        count -= part


def filled_replay(lengths=(3_000, 700), capacity=2_600):
    """Two streams of 1,300 rows, of several blocks each; by default one has wrapped around and one has not."""
    replay = ReplayStreams(len(lengths), capacity)
    for stream, length in enumerate(lengths):
        append(replay, stream, length)
    return replay


def poisoned_replay(like):
    """An empty replay of the same layout; whatever is not restored is poison."""
    replay = ReplayStreams(like.num_streams, like.num_streams * like.length)
    replay.frames.fill_(255)
    replay.action[:], replay.reward[:], replay.marks[:], replay.history[:] = 255, np.nan, 0, 3
    return replay


def draw(replay, seed=3, size=64):
    buffer = SampleBuffer(size)
    UniformSampler(replay, replace(part_rules.SAMPLING, n_step=5), np.random.default_rng(seed)).sample(buffer)
    return buffer


def _restore(store, replay, streams_per_collector):
    checkpoint = store.load_newest()
    layout = checkpoint.numbers["replay"]
    return restore_replay(replay, layout, checkpoint.read_replay, streams_per_collector, num_actions=7)


def assert_same_draws(one, other):
    for seed in range(3):
        for mine, theirs in zip(draw(one, seed).tensors(), draw(other, seed).tensors(), strict=True):
            assert torch.equal(mine, theirs)


def assert_only_saved_rows(replay):
    """Every row that replay claims to hold is the one that was written under its number, and so is all it yields."""
    for stream in range(replay.num_streams):
        begin, end = replay.oldest(stream), int(replay.written_end[stream])
        held = replay.read(stream, begin, end)
        expected = rows(stream, begin, end - begin)
        assert np.array_equal(held.frame, expected.frame.reshape(held.frame.shape))
        assert np.array_equal(held.reward, expected.reward)
        assert np.array_equal(held.action, expected.action)
    for seed in range(3):
        buffer = draw(replay, seed, size=256)
        pictures = buffer.pictures.numpy().reshape(256, 8, 84, 84)
        stream = pictures[:, :, 0, 0]
        assert (stream == stream[:, :1]).all()
        kept = np.array([replay.oldest(number) for number in range(replay.num_streams)])
        assert (number_of(pictures) >= kept[stream]).all()
        assert np.isfinite(buffer.returns.numpy()).all()


def clock_that_runs_out_after(num_looks, monkeypatch):
    """A clock for the time budget: the budget is over after this many blocks."""
    looks = iter(range(10**9))
    clock = types.SimpleNamespace(monotonic=lambda: 0.0 if next(looks) <= num_looks else 1e9)
    monkeypatch.setattr(saving, "time", clock)


# --- Round trips ------------------------------------------------------------------------------------------------------


def test_tensors_of_every_type_come_back_as_they_were(tmp_path):
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "float32": torch.randn(3, 4, generator=generator),
        "float16": torch.randn(5, generator=generator).half(),
        "bfloat16": torch.randn(5, generator=generator).bfloat16(),
        "float64": torch.randn(2, generator=generator).double(),
        "special": torch.tensor([math.inf, -math.inf, 0.0, -0.0, 1e-45]),
        "int64": torch.tensor([-(2**63), 2**63 - 1]),
        "uint8": torch.arange(256, dtype=torch.uint8),
        "bool": torch.tensor([True, False]),
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "channels_last": torch.randn(2, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last),
        "transposed": torch.randn(3, 4, generator=generator).T,
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "torch_rng": torch.get_rng_state(),
    }
    store = CheckpointStore(tmp_path, keep=2)
    store.save(tensors, {})
    loaded = store.load_newest().tensors
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype, name
        assert torch.equal(loaded[name], tensor.detach()), name


def test_numbers_come_back_as_they_were(tmp_path):
    numbers = {
        "rng": np.random.default_rng(5).bit_generator.state,  # holds integers of 128 bits
        "share": 0.1 + 0.2,
        "list": [1, 2.5, "three", None, True],
        "endless": math.inf,
        "deep": {"a": {"b": [[]]}},
    }
    store = CheckpointStore(tmp_path, keep=2)
    folder = store.save(WEIGHTS, numbers)
    checkpoint = store.load_newest()
    assert checkpoint.folder == folder
    assert checkpoint.numbers == numbers
    generator = np.random.default_rng(0)
    generator.bit_generator.state = checkpoint.numbers["rng"]
    assert generator.integers(10**9) == np.random.default_rng(5).integers(10**9)


def test_replay_comes_back_so_that_the_same_random_numbers_draw_the_same_batches(tmp_path):
    replay = filled_replay()
    replay.interrupt(1)
    append(replay, 1, 50)
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, ReplayBlocks(replay, PLENTY_OF_TIME))
    restored = poisoned_replay(replay)
    assert _restore(store, restored, 1) is True
    assert restored.num_rows == replay.num_rows == 1_300 + 750
    assert_same_draws(replay, restored)
    assert_only_saved_rows(restored)


def test_a_restored_replay_goes_on_like_the_original(tmp_path):
    replay = filled_replay()
    replay.interrupt(0)  # a break that is still owed must not be forgotten
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, ReplayBlocks(replay, PLENTY_OF_TIME))
    restored = poisoned_replay(replay)
    _restore(store, restored, 1)
    for stream in range(2):
        append(replay, stream, 900)
        append(restored, stream, 900)
    assert_same_draws(replay, restored)
    assert np.array_equal(replay.marks, restored.marks)
    assert_only_saved_rows(restored)


def test_an_empty_replay_comes_back_empty(tmp_path):
    replay = ReplayStreams(2, 1_000)
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, ReplayBlocks(replay, PLENTY_OF_TIME))
    restored = poisoned_replay(replay)
    assert _restore(store, restored, 1) is True
    assert restored.num_rows == 0


# --- The time budget --------------------------------------------------------------------------------------------------


def test_without_time_the_newest_block_is_saved_and_nothing_else_is_drawn(tmp_path):
    replay = filled_replay()
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, ReplayBlocks(replay, -1.0))
    restored = poisoned_replay(replay)
    assert _restore(store, restored, 1) is True
    assert restored.written_end.tolist() == [3_000, 700]
    assert restored.oldest(0) == 3_000 - ROWS_PER_BLOCK
    assert restored.oldest(1) == 700  # nothing of the second stream
    assert_only_saved_rows(restored)


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 4])
def test_a_short_time_saves_the_newest_rows_of_all_streams_in_turn(tmp_path, monkeypatch, num_blocks):
    replay = filled_replay(lengths=(3_000, 1_200))
    clock_that_runs_out_after(num_blocks, monkeypatch)
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, ReplayBlocks(replay, 1.0))
    restored = poisoned_replay(replay)
    _restore(store, restored, 1)
    saved = [int(restored.written_end[stream]) - restored.oldest(stream) for stream in range(2)]
    assert saved == [(num_blocks + 1) // 2 * ROWS_PER_BLOCK, num_blocks // 2 * ROWS_PER_BLOCK]
    assert_only_saved_rows(restored)


def test_what_a_short_save_left_out_stays_out_after_the_next_save(tmp_path):
    replay = filled_replay()
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, ReplayBlocks(replay, -1.0))
    first = poisoned_replay(replay)
    _restore(store, first, 1)
    for stream in range(2):
        append(first, stream, 200)
    store.save(WEIGHTS, {}, ReplayBlocks(first, PLENTY_OF_TIME))
    second = poisoned_replay(replay)
    _restore(store, second, 1)
    assert [second.oldest(stream) for stream in range(2)] == [3_000 - ROWS_PER_BLOCK, 700]
    assert_only_saved_rows(second)
    assert_same_draws(first, second)


def test_rows_that_are_overwritten_during_a_save_are_left_out(tmp_path, monkeypatch):
    replay = filled_replay(lengths=(3_000, 3_000))

    # The save looks at the clock just before it reads a block. Each look costs a commit here, so the oldest block of
    # each stream is overwritten between the decision to save it and its reading.
    def commit_meanwhile():
        for stream in range(2):
            append(replay, stream, 100)
        return 0.0

    monkeypatch.setattr(saving, "time", types.SimpleNamespace(monotonic=commit_meanwhile))
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, ReplayBlocks(replay, PLENTY_OF_TIME))
    restored = poisoned_replay(replay)
    assert _restore(store, restored, 1) is True
    assert restored.num_rows >= ROWS_PER_BLOCK
    assert_only_saved_rows(restored)


# --- Another layout ---------------------------------------------------------------------------------------------------


def test_replay_whose_emulators_were_grouped_otherwise_is_not_restored(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save({}, {}, ReplayBlocks(filled_replay(lengths=(300, 300, 200, 200), capacity=2_600), 10))
    assert _restore(store, ReplayStreams(4, 2_600), 2)
    assert not _restore(store, ReplayStreams(4, 2_600), 4)


@pytest.mark.parametrize(("num_streams", "capacity"), [(2, 2_400), (1, 1_300), (4, 2_600), (4, 5_200)])
def test_replay_of_another_layout_is_not_restored(tmp_path, num_streams, capacity):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, ReplayBlocks(filled_replay(), PLENTY_OF_TIME))
    other = ReplayStreams(num_streams, capacity)
    assert _restore(store, other, 1) is False
    assert other.num_rows == 0
    assert not other.frames.any()
