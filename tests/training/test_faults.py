"""Faults during training: full disks and numbers that are none. In one process, on the real emulator."""

import contextlib
import math
import re
import subprocess

import pytest
import torch

from mario_rl.app.wiring import connect
from mario_rl.emulation.choosing import choose_emulator
from mario_rl.settings.hardware import make_plan
from mario_rl.storage.checkpoints import CheckpointError, CheckpointStore, check_disk
from mario_rl.storage.runs import Run
from mario_rl.telemetry.metrics import ForgivingSink, TensorBoardSink
from mario_rl.training.limits import Limits
from mario_rl.training.loop import train
from mario_rl.training.saving import bytes_needed
from tests.small_runs import Lines, small_settings


def train_serially(folder, console, decisions, prepare=lambda pipeline: None, **changes):
    """A serial run in a folder; its outcome and the pipeline."""
    usual = {"CHECKPOINT_EPOCHS": 1, "CHECKPOINT_REPLAY": False, "EPISODES_PER_EPOCH": 1}
    settings = small_settings(**(usual | changes))
    assert choose_emulator(settings.play.emulator, print) == settings.play.emulator
    run = Run("run", folder / "checkpoints", folder / "models")
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    pipeline = connect(settings, make_plan(settings, serial=True), console, serial=True)
    prepare(pipeline)
    store = CheckpointStore(run.checkpoints, settings.saving.keep_checkpoints)
    outcome = train(pipeline, settings.schedule, Limits(epochs=10**6, decisions=decisions), run, store)
    return outcome, pipeline


@contextlib.contextmanager
def small_disk(folder, kilobytes):
    """A file system of its own, which can be made larger."""
    folder.mkdir()

    def mount(*options):
        return subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0

    if not mount("-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)):
        pytest.skip("mounting a tmpfs is not allowed here")
    try:
        yield lambda kilobytes: mount("-o", f"remount,size={kilobytes}k", str(folder))
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_keeps_the_old_checkpoint_warns_and_goes_on_and_the_next_save_works(tmp_path):
    with small_disk(tmp_path / "disk", kilobytes=20_000) as make_room:
        folder = tmp_path / "disk"
        filler = folder / "filler"
        checkpoints = folder / "checkpoints"
        events = []

        def watch(text):
            if text.startswith("[MAIN]") and list(checkpoints.glob("checkpoint-*")) and not events:
                events.append("full")
                with contextlib.suppress(OSError), filler.open("wb") as file:
                    while True:
                        file.write(bytes(65_536))
            elif text.startswith("[CHECKPOINT]") and events == ["full"]:
                events.append("warned")
                kept = [path.name for path in checkpoints.iterdir()]
                assert any(name.startswith("checkpoint-") for name in kept)
                assert not any(name.startswith(".saving") for name in kept)
                assert make_room(60_000)

        console = Lines(watch)
        outcome, _ = train_serially(folder, console, decisions=500)
        assert events == ["full", "warned"]
        warning = next(line for line in console.lines if line.startswith("[CHECKPOINT]"))
        assert "No space left on device" in warning
        assert outcome.failure is None
        newest = CheckpointStore(checkpoints, 2).load_newest()
        assert newest.numbers["ledger"]["collected"] == outcome.decisions


def test_a_run_that_cannot_be_saved_in_the_end_says_so(tmp_path):
    with small_disk(tmp_path / "disk", kilobytes=16):
        outcome, _ = train_serially(tmp_path / "disk", Lines(), decisions=60)
        assert "No checkpoint could be written (No space left on device)" in outcome.failure


def test_a_disk_without_room_for_checkpoints_is_refused_before_anything_starts(tmp_path):
    settings = small_settings(BUFFER_SIZE=20_000)
    needed = bytes_needed(settings.saving, settings.network_shape, settings.replay.buffer_size)
    expected = pytest.raises(CheckpointError, match=r"Checkpoints need up to \d+ MB and 1 MB are free in .*: make room")
    with small_disk(tmp_path / "disk", kilobytes=1_000), expected:
        check_disk(tmp_path / "disk" / "checkpoints", needed)
    check_disk(tmp_path / "checkpoints", needed)  # here there is room


def poisoned(value, after_updates):
    """Rewards that are no numbers, from some update on."""

    def prepare(pipeline):
        train_as_usual = pipeline.trainer.train

        def train():
            if pipeline.learner.num_updates >= after_updates:
                pipeline.saver.replay.reward[:] = value
            return train_as_usual()

        pipeline.trainer.train = train

    return prepare


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_too_many_updates_that_are_no_numbers_lead_back_to_the_last_checkpoint(tmp_path, value):
    console = Lines()
    outcome, pipeline = train_serially(
        tmp_path, console, 2_000, poisoned(value, after_updates=20), REPLAY_RATIO=2.0, MAX_BAD_UPDATES=6
    )
    returns = [line for line in console.lines if line.startswith("[LEARNER]")]
    assert "updates in a row were not finite numbers: back to checkpoint-" in returns[0]
    assert "with 0.5 of the learning rate" in returns[0]
    assert "6 updates in a row" in outcome.failure  # the rewards stay as they are, so in the end it gives up
    assert pipeline.learner.num_bad_updates >= 6 * len(returns)
    assert [re.search(r"with ([\d.]+) of", line)[1] for line in returns[:-1]] == ["0.5", "0.25", "0.125", "0.0625"]
    newest = CheckpointStore(tmp_path / "checkpoints", 2).load_newest()
    assert newest.numbers["learner"]["rate_factor"] == 1 / 16  # a resume does not bring back the rate that failed
    for tensor in pipeline.learner.tensors().values():
        assert tensor.isfinite().all()


def test_weights_that_are_no_numbers_are_left_behind_and_training_goes_on(tmp_path):
    def prepare(pipeline):
        train_as_usual, poisonings = pipeline.trainer.train, []

        def train():
            if pipeline.learner.num_updates >= 20 and not poisonings:
                poisonings.append(pipeline.learner.num_updates)
                with torch.no_grad():
                    pipeline.learner.networks.online.value.weight[0, 0] = math.nan
            return train_as_usual()

        pipeline.trainer.train = train

    console = Lines()
    outcome, pipeline = train_serially(tmp_path, console, 800, prepare, REPLAY_RATIO=2.0, MAX_BAD_UPDATES=6)
    assert outcome.failure is None
    assert len([line for line in console.lines if "back to checkpoint-" in line]) == 1
    assert pipeline.learner.num_bad_updates == 6
    assert all(tensor.isfinite().all() for tensor in pipeline.learner.tensors().values())


@pytest.mark.parametrize("when", ["stop", "roll_back"])
def test_weights_that_are_no_numbers_are_never_saved(tmp_path, when):
    def prepare(pipeline):
        train_as_usual = pipeline.trainer.train

        def train():
            if pipeline.learner.num_updates >= 20:
                with torch.no_grad():
                    pipeline.learner.networks.online.value.weight[0, 0] = math.nan
            return train_as_usual()

        pipeline.trainer.train = train

    console = Lines()
    # So many bad updates that epochs, and with them saves, fall in between.
    outcome, _ = train_serially(
        tmp_path, console, 1_000, prepare, REPLAY_RATIO=2.0, MAX_BAD_UPDATES=60, WHEN_UPDATES_FAIL=when
    )
    assert "not finite numbers" in outcome.failure
    assert any("[CHECKPOINT] No checkpoint was written, because the weights are not" in line for line in console.lines)
    newest = CheckpointStore(tmp_path / "checkpoints", 2).load_newest()
    assert all(tensor.isfinite().all() for tensor in newest.tensors.values())


def test_the_best_test_is_followed_by_a_checkpoint(tmp_path):
    outcome, _ = train_serially(tmp_path, Lines(), 400, EVALUATION_DECISIONS=200, CHECKPOINT_EPOCHS=10**6)
    best = CheckpointStore(tmp_path / "checkpoints", 2).load_best().numbers
    assert len(best["progress"]["evaluations"]) == 1
    assert best["ledger"]["collected"] < outcome.decisions


def test_tensorboards_files_on_a_full_disk_go_on_when_there_is_room_again(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    notices = []
    with small_disk(tmp_path / "disk", kilobytes=64) as make_room:
        folder = tmp_path / "disk" / "tensorboard"
        sink = ForgivingSink(lambda: TensorBoardSink(folder), "TensorBoard's files", notices.append)
        for decisions in range(400):
            sink.write({f"group/name_{number}": decisions / 7 for number in range(40)}, decisions, 0.1)
        assert len(notices) == 1
        assert "No space left on device" in notices[0]
        assert make_room(1_000)
        sink.write({"group/name_0": 0.5}, 1_000, 0.1)
        sink.close()
        events = EventAccumulator(str(folder)).Reload()
        steps = [event.step for event in events.Scalars("group/name_0")]
    assert steps[0] == 0
    assert steps[-1] == 1_000
    assert 10 < len(steps) < 400


def test_it_stops_at_once_where_that_is_wanted(tmp_path):
    console = Lines()
    outcome, _ = train_serially(
        tmp_path,
        console,
        2_000,
        poisoned(math.nan, after_updates=10),
        REPLAY_RATIO=2.0,
        MAX_BAD_UPDATES=4,
        WHEN_UPDATES_FAIL="stop",
    )
    assert "4 updates in a row were not finite numbers: lower LEARNING_RATE" in outcome.failure
    assert not any("back to" in line for line in console.lines)
