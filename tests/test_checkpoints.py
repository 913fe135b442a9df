import json
import logging
import math
import multiprocessing
import os
import random
import signal
import time
import types

import numpy as np
import pytest
import torch

from mario_rl import checkpoints
from mario_rl.checkpoints import (
    MANIFEST,
    NUMBERS,
    REPLAY,
    ROWS_PER_BLOCK,
    TENSORS,
    CheckpointError,
    CheckpointStore,
    restore_replay,
)
from mario_rl.experience import FRAME_SIZE, Mark, Rows
from mario_rl.replay.sampler import SampleBuffer
from mario_rl.replay.streams import ReplayStreams
from mario_rl.replay.uniform import UniformSampler

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
    UniformSampler(replay, 5, 0.9, 0, np.random.default_rng(seed)).sample(buffer)
    return buffer


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
    """A clock for the time budget: the budget is over after so many blocks."""
    looks = iter(range(10**9))
    clock = types.SimpleNamespace(monotonic=lambda: 0.0 if next(looks) <= num_looks else 1e9)
    monkeypatch.setattr(checkpoints, "time", clock)


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
    store.save(tensors, {}, None, 0.0)
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
    folder = store.save(WEIGHTS, numbers, None, 0.0)
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
    store.save(WEIGHTS, {}, replay, PLENTY_OF_TIME)
    restored = poisoned_replay(replay)
    assert restore_replay(store.load_newest(), restored, 1) is True
    assert restored.num_rows == replay.num_rows == 1_300 + 750
    assert_same_draws(replay, restored)
    assert_only_saved_rows(restored)


def test_a_restored_replay_goes_on_like_the_original(tmp_path):
    replay = filled_replay()
    replay.interrupt(0)  # a break that is still owed must not be forgotten
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, replay, PLENTY_OF_TIME)
    restored = poisoned_replay(replay)
    restore_replay(store.load_newest(), restored, 1)
    for stream in range(2):
        append(replay, stream, 900)
        append(restored, stream, 900)
    assert_same_draws(replay, restored)
    assert np.array_equal(replay.marks, restored.marks)
    assert_only_saved_rows(restored)


def test_an_empty_replay_comes_back_empty(tmp_path):
    replay = ReplayStreams(2, 1_000)
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, replay, PLENTY_OF_TIME)
    restored = poisoned_replay(replay)
    assert restore_replay(store.load_newest(), restored, 1) is True
    assert restored.num_rows == 0


# --- The time budget --------------------------------------------------------------------------------------------------


def test_without_time_the_newest_block_is_saved_and_nothing_else_is_drawn(tmp_path):
    replay = filled_replay()
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, replay, replay_budget_seconds=-1.0)
    restored = poisoned_replay(replay)
    assert restore_replay(store.load_newest(), restored, 1) is True
    assert restored.written_end.tolist() == [3_000, 700]
    assert restored.oldest(0) == 3_000 - ROWS_PER_BLOCK
    assert restored.oldest(1) == 700  # nothing of the second stream
    assert_only_saved_rows(restored)


@pytest.mark.parametrize("num_blocks", [1, 2, 3, 4])
def test_a_short_time_saves_the_newest_rows_of_all_streams_in_turn(tmp_path, monkeypatch, num_blocks):
    replay = filled_replay(lengths=(3_000, 1_200))
    clock_that_runs_out_after(num_blocks, monkeypatch)
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, replay, replay_budget_seconds=1.0)
    restored = poisoned_replay(replay)
    restore_replay(store.load_newest(), restored, 1)
    saved = [int(restored.written_end[stream]) - restored.oldest(stream) for stream in range(2)]
    assert saved == [(num_blocks + 1) // 2 * ROWS_PER_BLOCK, num_blocks // 2 * ROWS_PER_BLOCK]
    assert_only_saved_rows(restored)


def test_what_a_short_save_left_out_stays_out_after_the_next_save(tmp_path):
    replay = filled_replay()
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, replay, replay_budget_seconds=-1.0)
    first = poisoned_replay(replay)
    restore_replay(store.load_newest(), first, 1)
    for stream in range(2):
        append(first, stream, 200)
    store.save(WEIGHTS, {}, first, PLENTY_OF_TIME)
    second = poisoned_replay(replay)
    restore_replay(store.load_newest(), second, 1)
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

    monkeypatch.setattr(checkpoints, "time", types.SimpleNamespace(monotonic=commit_meanwhile))
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, replay, PLENTY_OF_TIME)
    restored = poisoned_replay(replay)
    assert restore_replay(store.load_newest(), restored, 1) is True
    assert restored.num_rows >= ROWS_PER_BLOCK
    assert_only_saved_rows(restored)


# --- Another layout ---------------------------------------------------------------------------------------------------


def test_replay_whose_emulators_were_grouped_otherwise_is_not_restored(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save({}, {}, filled_replay(lengths=(300, 300, 200, 200), capacity=2_600), 10)
    assert restore_replay(store.load_newest(), ReplayStreams(4, 2_600), 2)
    assert not restore_replay(store.load_newest(), ReplayStreams(4, 2_600), 4)


@pytest.mark.parametrize(("num_streams", "capacity"), [(2, 2_400), (1, 1_300), (4, 2_600), (4, 5_200)])
def test_replay_of_another_layout_is_not_restored(tmp_path, num_streams, capacity):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, filled_replay(), PLENTY_OF_TIME)
    other = ReplayStreams(num_streams, capacity)
    assert restore_replay(store.load_newest(), other, 1) is False
    assert other.num_rows == 0
    assert not other.frames.any()


def test_a_checkpoint_without_replay_restores_none(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {}, None, PLENTY_OF_TIME)
    assert restore_replay(store.load_newest(), ReplayStreams(2, 1_000), 1) is False


# --- What stays on disk -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_the_newest_checkpoints_remain(tmp_path, keep):
    store = CheckpointStore(tmp_path, keep)
    for number in range(1, 5):
        store.save(WEIGHTS, {"number": number}, None, 0.0)
    remaining = sorted(path.name for path in tmp_path.iterdir())
    assert remaining == [f"checkpoint-{number:06d}" for number in range(5 - keep, 5)]
    assert store.load_newest().numbers["number"] == 4


def test_numbering_goes_on_in_a_resumed_run(tmp_path):
    CheckpointStore(tmp_path, keep=2).save(WEIGHTS, {}, None, 0.0)
    assert CheckpointStore(tmp_path, keep=2).save(WEIGHTS, {}, None, 0.0).name == "checkpoint-000002"


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "checkpoint-notes").mkdir()
    (tmp_path / "checkpoint-000009").write_text("a file")
    store = CheckpointStore(tmp_path, keep=1)
    for _ in range(3):
        store.save(WEIGHTS, {}, None, 0.0)
    assert store.load_newest().folder.name == "checkpoint-000003"
    assert {"tensorboard", "checkpoint-notes", "checkpoint-000009"} < {path.name for path in tmp_path.iterdir()}


def test_leftovers_of_an_interrupted_save_are_ignored_and_the_next_save_works(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {"number": 1}, None, 0.0)
    leftover = tmp_path / ".saving-000002"
    leftover.mkdir()
    (leftover / TENSORS).write_bytes(b"half a file")
    (leftover / "stray").write_bytes(b"x")
    assert store.load_newest().numbers == {"number": 1}
    folder = store.save(WEIGHTS, {"number": 2}, None, 0.0)
    assert store.load_newest().numbers == {"number": 2}
    assert sorted(path.name for path in folder.iterdir()) == sorted((TENSORS, NUMBERS, MANIFEST))
    assert not leftover.exists()


def test_a_save_that_fails_leaves_the_checkpoint_before_it(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(WEIGHTS, {"number": 1}, None, 0.0)
    with pytest.raises(TypeError):
        store.save(WEIGHTS, {"number": object()}, None, 0.0)
    assert store.load_newest().numbers == {"number": 1}


# --- Damage -----------------------------------------------------------------------------------------------------------


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


def make_a_folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = (truncate, flip_a_bit, empty, remove, make_a_folder)


@pytest.fixture
def two_checkpoints(tmp_path):
    replay = filled_replay(lengths=(300,), capacity=400)
    store = CheckpointStore(tmp_path, keep=2)
    for number in (1, 2):
        store.save(WEIGHTS, {"number": number}, replay, PLENTY_OF_TIME)
    return store


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(two_checkpoints, caplog, damage, file):
    newest = two_checkpoints.folder / "checkpoint-000002"
    damage(newest / file)
    with caplog.at_level(logging.WARNING):
        checkpoint = two_checkpoints.load_newest()
    assert checkpoint.numbers["number"] == 1
    assert restore_replay(checkpoint, ReplayStreams(1, 400), 1) is True
    (record,) = caplog.records
    message = record.getMessage()
    assert record.levelno == logging.WARNING
    assert str(newest) in message
    if file != MANIFEST:  # a changed hash in the manifest accuses the file it is for
        assert file in message


@pytest.mark.parametrize("damage", DAMAGES)
def test_when_all_checkpoints_are_damaged_one_sentence_names_them(two_checkpoints, damage):
    damage(two_checkpoints.folder / "checkpoint-000001" / NUMBERS)
    damage(two_checkpoints.folder / "checkpoint-000002" / TENSORS)
    with pytest.raises(CheckpointError) as caught:
        two_checkpoints.load_newest()
    message = str(caught.value)
    assert "\n" not in message
    for part in ("checkpoint-000001", NUMBERS, "checkpoint-000002", TENSORS, "without --resume"):
        assert part in message


def test_a_whole_checkpoint_loads_without_a_warning(two_checkpoints, caplog):
    with caplog.at_level(logging.DEBUG):
        assert two_checkpoints.load_newest().numbers["number"] == 2
    assert not caplog.records


@pytest.mark.parametrize("exists", [True, False])
def test_a_run_without_checkpoints_says_so(tmp_path, exists):
    folder = tmp_path / "run"
    if exists:
        folder.mkdir()
    with pytest.raises(CheckpointError, match=r"^There is no checkpoint in .*run: start a new run without --resume\.$"):
        CheckpointStore(folder, keep=2).load_newest()


def test_no_flipped_bit_of_the_manifest_goes_unnoticed(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    manifest = store.save(WEIGHTS, {}, None, 0.0) / MANIFEST
    whole = manifest.read_bytes()
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 7
        manifest.write_bytes(flipped)
        if flipped[place : place + 1].isspace() or whole[place : place + 1].isspace():
            continue  # JSON reads on
        with pytest.raises(CheckpointError):
            store.load_newest()


def rewrite_manifest(folder, change):
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "sub/tensors.safetensors", "./numbers.json", ""])
def test_a_manifest_that_names_other_files_is_refused(two_checkpoints, name):
    (two_checkpoints.folder / "secret").write_text("x")
    for number in (1, 2):
        rewrite_manifest(
            two_checkpoints.folder / f"checkpoint-{number:06d}", lambda manifest: manifest["sha256"].update({name: "0"})
        )
    with pytest.raises(CheckpointError, match="names other files than a checkpoint has"):
        two_checkpoints.load_newest()


def test_a_checkpoint_of_another_format_is_refused_with_both_numbers(two_checkpoints):
    for number in (1, 2):
        rewrite_manifest(
            two_checkpoints.folder / f"checkpoint-{number:06d}", lambda manifest: manifest.update(format=7)
        )
    with pytest.raises(CheckpointError, match="format 7 is not 2"):
        two_checkpoints.load_newest()


@pytest.mark.parametrize("hashes", [[], "abc", None])
def test_a_manifest_of_another_shape_is_refused(two_checkpoints, hashes):
    rewrite_manifest(two_checkpoints.folder / "checkpoint-000002", lambda manifest: manifest.update(sha256=hashes))
    assert two_checkpoints.load_newest().numbers["number"] == 1


@pytest.mark.parametrize("file", [TENSORS, NUMBERS])
def test_a_manifest_that_leaves_a_file_out_is_refused(two_checkpoints, file):
    rewrite_manifest(two_checkpoints.folder / "checkpoint-000002", lambda manifest: manifest["sha256"].pop(file))
    assert two_checkpoints.load_newest().numbers["number"] == 1


def _save_for_ever(folder):
    """What a run does now and then, as often as it can; the content tells whether it is whole."""
    store = CheckpointStore(folder, keep=2)
    number = 0
    while True:
        number += 1
        tensors = {f"tensor.{index}": torch.full((20_000,), float(number)) for index in range(4)}
        store.save(tensors, {"number": number}, None, PLENTY_OF_TIME)


def test_a_kill_at_any_moment_of_a_save_leaves_a_whole_checkpoint(tmp_path):
    context = multiprocessing.get_context("fork")  # torch is imported already: a child takes milliseconds
    chance, last = random.Random(0), 0
    CheckpointStore(tmp_path, keep=2).save({"tensor.0": torch.zeros(3)}, {"number": 0}, None, PLENTY_OF_TIME)
    for _ in range(50):
        process = context.Process(target=_save_for_ever, args=(tmp_path,), daemon=True)
        process.start()
        time.sleep(0.005 + 0.05 * chance.random())
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        newest = CheckpointStore(tmp_path, keep=2).load_newest()
        number = newest.numbers["number"]
        assert all((tensor == number).all() for tensor in newest.tensors.values())
        assert int(newest.folder.name[-6:]) >= last
        last = int(newest.folder.name[-6:])
    assert last > 10
    CheckpointStore(tmp_path, keep=2).save({"tensor.0": torch.zeros(3)}, {"number": 0}, None, PLENTY_OF_TIME)
    assert len(list(tmp_path.iterdir())) == 2  # kills before the oldest were removed leave nothing for good
