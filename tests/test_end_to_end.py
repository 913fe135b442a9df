"""The entry script, as a user runs it: real processes, real signals, real files."""

import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.small_runs import command, copy_project, finish, run, start


@pytest.fixture
def project(tmp_path):
    return copy_project(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A project with a finished run of two epochs; its exit code, output and errors; named shared memory before it."""
    project = copy_project(tmp_path_factory.mktemp("finished"))
    segments = _segments()
    return project, segments, run(command(project, "--epochs", "2", LEARNER_THREADS=0))  # as many as there are


@pytest.fixture
def finished_project(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "project")


def _only_run(project):
    (folder,) = (project / "checkpoints").iterdir()
    return folder


def _numbers(run_folder):
    return json.loads((max(run_folder.glob("checkpoint-*")) / "numbers.json").read_text())


def _segments():
    """Named shared memory of this machine that stays: ours is unlinked within a moment, in other tests at this time."""
    looks = []
    for _ in range(2):
        looks.append({path.name for path in Path("/dev/shm").iterdir()})
        time.sleep(0.2)
    return set.intersection(*looks)


def _wait_for(process, pattern):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return lines
    raise AssertionError(f"{pattern!r} never came:\n{''.join(lines)}\n{process.stderr.read()}")


def _children(process):
    return psutil.Process(process.pid).children(recursive=True)


def _collectors(process):
    return [child for child in _children(process) if "spawn_main" in " ".join(child.cmdline())]


def _alive(processes):
    """Those that still run after a moment. A zombie does not: the test machine's init may be slow to reap it."""
    psutil.wait_procs(processes, timeout=5)
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def test_a_two_epoch_run_trains_reports_saves_and_ends_by_itself(finished):
    project, segments_before, (code, stdout, stderr) = finished
    assert code == 0, stderr
    assert stderr == ""  # no third-party warning, no leaked-resource message
    main_line = (
        r"^\[MAIN\] Epoch: [\d,]+ \| Loss: \S.* \| TD Error: \S.* \| Reward: -?[\d,.]+ \| "
        r"Distance: [\d,]+ \| Epsilon: [\d.]+ \| Buffer: [\d,]+$"
    )
    assert len(re.findall(main_line, stdout, re.MULTILINE)) == 2
    assert "\x1b" not in stdout  # plain lines when it is not a terminal
    assert "2 epochs are done" in stdout
    assert re.search(r"best distance [\d,]+", stdout)
    folder = _only_run(project)
    assert list((folder / "tensorboard").glob("events.out.tfevents.*"))
    assert (project / "models" / f"{folder.name}-newest.safetensors").exists()
    assert (project / "models" / f"{folder.name}-newest.json").exists()
    assert json.loads((folder / "run.json").read_text())["settings"]["EPISODES_PER_EPOCH"] == 2
    assert _segments() == segments_before


def test_resume_goes_on_where_the_run_stopped_and_extends_a_finished_one(finished_project):
    entry = command(finished_project)[:2]
    first = _numbers(_only_run(finished_project))
    code, _, stderr = run([*entry, "--resume", "--epochs", "2"])
    assert code == 2
    assert "finished" in stderr
    code, stdout, stderr = run([*entry, "--resume", "--epochs", "4"])
    assert code == 0, stderr
    second = _numbers(_only_run(finished_project))
    assert second["progress"]["epoch"] == 4
    assert second["ledger"]["collected"] > first["ledger"]["collected"]
    assert second["learner"]["num_updates"] >= first["learner"]["num_updates"]
    # Replay came back: the rows of the first session are there, with a break before the second one.
    assert second["replay"]["counters"]["written_end"][0] > first["replay"]["counters"]["written_end"][0]
    assert "replay starts empty" not in stdout


def test_exported_weights_start_another_run_here_a_serial_one(finished_project):
    (model,) = (finished_project / "models").glob("*-newest.safetensors")
    arguments = ["--serial", "--epochs", "1", "--init", str(model)]
    code, stdout, stderr = run(command(finished_project, *arguments, LEARNER_THREADS=1))
    assert code == 0, stderr
    assert "1 collector with 2 emulators inside this process" in stdout
    code, _, stderr = run(command(finished_project, "--epochs", "1", "--init", str(model), HIDDEN_UNITS=32))
    assert code == 2
    assert "HIDDEN_UNITS" in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.long)])
def test_a_signal_during_training_saves_and_leaves_nothing_behind(project, number):
    segments_before = _segments()
    process = start(command(project))
    _wait_for(process, r"TD Error: \d")
    children = _children(process)
    assert len([child for child in children if child.is_running()]) >= 2
    os.killpg(process.pid, number)  # Ctrl-C, a service manager and a closed terminal all signal the whole group
    code, stdout, stderr = finish(process, timeout_seconds=30)
    assert code == 128 + number
    assert "Traceback" not in stderr
    assert f"{signal.Signals(number).name} was received" in stdout
    assert _numbers(_only_run(project))["ledger"]["collected"] > 0
    assert not _alive(children)
    assert _segments() == segments_before
    assert not list(_only_run(project).glob(".saving-*"))


def test_a_signal_before_training_ends_quietly(project):
    process = start(command(project))
    time.sleep(0.3)  # torch is being imported
    os.killpg(process.pid, signal.SIGINT)
    code, _, stderr = finish(process, timeout_seconds=30)
    assert code == 128 + signal.SIGINT
    assert "Traceback" not in stderr


def test_a_second_signal_ends_at_once(project):
    process = start(command(project, NUM_PROCESSES=1))
    _wait_for(process, r"\[MAIN\]")
    children = _children(process)
    # With its collectors frozen the run cannot stop politely within our patience.
    for collector in _collectors(process):
        collector.suspend()
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    code, _, _ = finish(process, timeout_seconds=10)
    assert code == 128 + signal.SIGINT
    assert not _alive(children)


def test_collectors_end_when_the_learner_is_killed(project):
    segments_before = _segments()
    process = start(command(project, NUM_PROCESSES=1))
    _wait_for(process, r"\[MAIN\]")
    children = _children(process)
    process.kill()
    finish(process)
    assert not _alive(children)
    assert _segments() == segments_before


def test_a_killed_collector_ends_the_run_with_its_name_and_a_checkpoint_where_restarts_are_used_up(project):
    process = start(command(project, MAX_RESTARTS_PER_HOUR=0))
    _wait_for(process, r"\[MAIN\]")
    _collectors(process)[0].kill()
    code, _, stderr = finish(process, timeout_seconds=30)
    assert code == 1
    assert re.search(r"Collector \d was killed by SIGKILL", stderr)
    assert _numbers(_only_run(project))["ledger"]["collected"] > 0


@pytest.mark.long
def test_the_same_seed_gives_the_same_serial_run(project):
    def lines():
        _, stdout, _ = run(
            command(project, "--serial", "--epochs", "1", "--seed", "7", WARMUP_EXPERIENCES=40, LEARNER_THREADS=1)
        )
        return [line for line in stdout.splitlines() if line.startswith("[MAIN]")]

    first = lines()
    assert first == lines()
    assert "warming up" not in first[-1]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_first_start_compiles_the_fast_emulator_and_trains_on_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project = copy_project(tmp_path)
    process = start(command(project, "--epochs", "1", EMULATOR="fast"))
    output, errors = process.communicate(timeout=280)
    assert process.returncode == 0, errors
    assert output.startswith("Compiling the emulator for this processor")
    assert "emulator     fast: our own, compiled" in output
