"""The entry script, as a user runs it: real processes, real signals, real files."""

import json
import re
import shutil

import pytest

from tests.small_runs import (
    collectors_of,
    command,
    copy_project,
    finish,
    only_run,
    run,
    saved_numbers,
    segments,
    start,
    wait_for,
)


@pytest.fixture
def project(tmp_path):
    return copy_project(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A project with a finished run of two epochs; its exit code, output and errors; named shared memory before it."""
    project = copy_project(tmp_path_factory.mktemp("finished"))
    before = segments()
    return project, before, run(command(project, "--epochs", "2", LEARNER_THREADS=0))  # as many as there are


@pytest.fixture
def finished_project(finished, tmp_path):
    return shutil.copytree(finished[0], tmp_path / "project")


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
    folder = only_run(project)
    assert list((folder / "tensorboard").glob("events.out.tfevents.*"))
    assert (project / "models" / f"{folder.name}-newest.safetensors").exists()
    assert (project / "models" / f"{folder.name}-newest.json").exists()
    assert json.loads((folder / "run.json").read_text())["settings"]["EPISODES_PER_EPOCH"] == 2
    assert segments() == segments_before


def test_resume_goes_on_where_the_run_stopped_and_extends_a_finished_one(finished_project):
    entry = command(finished_project)[:2]
    first = saved_numbers(only_run(finished_project))
    code, _, stderr = run([*entry, "--resume", "--epochs", "2"])
    assert code == 2
    assert "finished" in stderr
    code, stdout, stderr = run([*entry, "--resume", "--epochs", "4"])
    assert code == 0, stderr
    second = saved_numbers(only_run(finished_project))
    assert second["progress"]["epoch"] == 4
    assert second["ledger"]["collected"] > first["ledger"]["collected"]
    assert second["learner"]["num_updates"] >= first["learner"]["num_updates"]
    # Replay came back: the rows of the first session are there, with a break before the second one.
    written = [sum(numbers["replay"]["counters"]["written_end"]) for numbers in (first, second)]
    assert written[1] > written[0] > 0
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


def test_a_killed_collector_ends_the_run_with_its_name_and_a_checkpoint_where_restarts_are_used_up(project):
    process = start(command(project, MAX_RESTARTS_PER_HOUR=0))
    wait_for(process, r"\[MAIN\]")
    collectors_of(process)[0].kill()
    code, _, stderr = finish(process, timeout_seconds=30)
    assert code == 1
    assert re.search(r"Collector \d was killed by SIGKILL", stderr)
    assert saved_numbers(only_run(project))["ledger"]["collected"] > 0


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
