"""What stays on disk, and what becomes of it: kills during saves, damaged files, disks that lie."""

import json
import logging
import multiprocessing
import os
import random
import signal
import time

import numpy as np
import pytest
import torch

from mario_rl.experience import FIELDS, Rows
from mario_rl.replay.saving import ReplayBlocks, restore_replay
from mario_rl.replay.streams import ReplayStreams
from mario_rl.storage import checkpoints
from mario_rl.storage.checkpoints import (
    MANIFEST,
    NUMBERS,
    REPLAY,
    TENSORS,
    CheckpointError,
    CheckpointStore,
    SaveAbandonedError,
)

PLENTY_OF_TIME = 1e6
FILES = (TENSORS, NUMBERS, REPLAY, MANIFEST)
WEIGHTS = {"weight": torch.arange(6.0).reshape(2, 3)}


def filled_replay():
    replay = ReplayStreams(1, 400)
    for _ in range(5):
        replay.append(0, Rows(*(np.zeros((1, 60, *field.shape), field.dtype) for field in FIELDS)))
    return replay


# --- What stays on disk -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_only_the_newest_checkpoints_remain(tmp_path, keep):
    store = CheckpointStore(tmp_path, keep)
    for number in range(1, 5):
        store.save(WEIGHTS, {"number": number})
    remaining = sorted(path.name for path in tmp_path.iterdir())
    assert remaining == [f"checkpoint-{number:06d}" for number in range(5 - keep, 5)]
    assert store.load_newest().numbers["number"] == 4


def test_the_best_checkpoint_outlives_newer_ones_until_there_is_a_better_one(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    for number in range(1, 6):
        store.save(WEIGHTS, {"number": number}, is_best=number == 2)
    assert [path.name[11:] for path in sorted(tmp_path.iterdir())] == ["000002-best", "000004", "000005"]
    assert store.load_best().numbers["number"] == 2
    assert store.load_newest().numbers["number"] == 5
    store.save(WEIGHTS, {"number": 6}, is_best=True)
    assert [path.name[11:] for path in sorted(tmp_path.iterdir())] == ["000005", "000006-best"]
    assert store.load_best().numbers["number"] == store.load_newest().numbers["number"] == 6


def test_a_run_without_a_best_checkpoint_says_so_and_so_does_one_whose_best_is_damaged(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {})
    with pytest.raises(CheckpointError, match="followed an evaluation of the policy: resume without --from-best"):
        store.load_best()
    folder = store.save(WEIGHTS, {}, is_best=True)
    flip_a_bit(folder / TENSORS)
    with pytest.raises(CheckpointError, match=r"-best is damaged \(tensors.safetensors has changed"):
        store.load_best()


def test_a_disk_that_gives_back_something_else_costs_no_older_checkpoint(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(WEIGHTS, {"number": 1})
    write = checkpoints.write_durably
    monkeypatch.setattr(checkpoints, "write_durably", lambda path, content: write(path, content[:-1] + b"?"))
    with pytest.raises(OSError, match="what was read back is not what was written"):
        store.save(WEIGHTS, {"number": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000001"]
    assert store.load_newest().numbers["number"] == 1


def test_a_save_that_is_given_up_leaves_nothing_behind(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(WEIGHTS, {"number": 1})
    with pytest.raises(SaveAbandonedError):
        store.save(WEIGHTS, {"number": 2}, ReplayBlocks(filled_replay(), PLENTY_OF_TIME), should_abandon=lambda: True)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000001"]


def test_numbering_goes_on_in_a_resumed_run(tmp_path):
    CheckpointStore(tmp_path, keep=2).save(WEIGHTS, {})
    assert CheckpointStore(tmp_path, keep=2).save(WEIGHTS, {}).name == "checkpoint-000002"


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "checkpoint-notes").mkdir()
    (tmp_path / "checkpoint-000009").write_text("a file")
    store = CheckpointStore(tmp_path, keep=1)
    for _ in range(3):
        store.save(WEIGHTS, {})
    assert store.load_newest().folder.name == "checkpoint-000003"
    assert {"tensorboard", "checkpoint-notes", "checkpoint-000009"} < {path.name for path in tmp_path.iterdir()}


def test_leftovers_of_an_interrupted_save_are_ignored_and_the_next_save_works(tmp_path):
    store = CheckpointStore(tmp_path, keep=2)
    store.save(WEIGHTS, {"number": 1})
    leftover = tmp_path / ".saving-000002"
    leftover.mkdir()
    (leftover / TENSORS).write_bytes(b"half a file")
    (leftover / "stray").write_bytes(b"x")
    assert store.load_newest().numbers == {"number": 1}
    folder = store.save(WEIGHTS, {"number": 2})
    assert store.load_newest().numbers == {"number": 2}
    assert sorted(path.name for path in folder.iterdir()) == sorted((TENSORS, NUMBERS, MANIFEST))
    assert not leftover.exists()


def test_a_save_that_fails_leaves_the_checkpoint_before_it(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.save(WEIGHTS, {"number": 1})
    with pytest.raises(TypeError):
        store.save(WEIGHTS, {"number": object()})
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
    replay = filled_replay()
    store = CheckpointStore(tmp_path, keep=2)
    for number in (1, 2):
        store.save(WEIGHTS, {"number": number}, ReplayBlocks(replay, PLENTY_OF_TIME))
    return store


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(two_checkpoints, caplog, damage, file):
    newest = two_checkpoints.folder / "checkpoint-000002"
    damage(newest / file)
    with caplog.at_level(logging.WARNING):
        checkpoint = two_checkpoints.load_newest()
    assert checkpoint.numbers["number"] == 1
    assert restore_replay(ReplayStreams(1, 400), checkpoint.numbers["replay"], checkpoint.read_replay, 1, 7) is True
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
    manifest = store.save(WEIGHTS, {}) / MANIFEST
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
    replay = filled_replay()
    replay.frames.random_(256)  # does not compress: replay is most of a save, as in a run
    number = 0
    while True:
        number += 1
        tensors = {f"tensor.{index}": torch.full((20_000,), float(number)) for index in range(4)}
        store.save(tensors, {"number": number}, ReplayBlocks(replay, PLENTY_OF_TIME))


def test_a_kill_at_any_moment_of_a_save_leaves_a_whole_checkpoint(tmp_path):
    context = multiprocessing.get_context("fork")  # torch is imported already: a child takes milliseconds
    chance, last = random.Random(0), 0
    CheckpointStore(tmp_path, keep=2).save({"tensor.0": torch.zeros(3)}, {"number": 0})
    for _ in range(50):
        process = context.Process(target=_save_for_ever, args=(tmp_path,), daemon=True)
        process.start()
        time.sleep(0.005 + 0.1 * chance.random())
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        newest = CheckpointStore(tmp_path, keep=2).load_newest()
        number = newest.numbers["number"]
        assert all((tensor == number).all() for tensor in newest.tensors.values())
        assert int(newest.folder.name[-6:]) >= last
        last = int(newest.folder.name[-6:])
    assert last > 1  # some saves came to their end
    CheckpointStore(tmp_path, keep=2).save({"tensor.0": torch.zeros(3)}, {"number": 0})
    assert len(list(tmp_path.iterdir())) == 2  # kills before the oldest were removed leave nothing for good
