import datetime
import errno
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import types

import pytest
import torch

from mario_rl.settings.choosing import choose_resumed_settings
from mario_rl.storage import runs
from mario_rl.storage.checkpoints import CheckpointError, CheckpointStore
from mario_rl.storage.runs import claim, find_run, find_run_to_plot, git_commit, new_run, read_settings, write_record
from tests.small_runs import PROJECT, small_settings

SETTINGS = small_settings(WORLD=3, STAGE=2)


@pytest.fixture
def same_second(monkeypatch):
    """The clock stands still."""

    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)

    monkeypatch.setattr(runs, "datetime", types.SimpleNamespace(datetime=Frozen, UTC=datetime.UTC))


@pytest.fixture
def project(tmp_path):
    return tmp_path


def started_run(project, name, minutes_ago):
    """A run that was started some time ago and has not saved since."""
    run = runs.Run(name, project / "checkpoints" / name, project / "models")
    write_record(run, SETTINGS.flat())
    moment = datetime.datetime.now().timestamp() - 60 * minutes_ago
    os.utime(run.checkpoints, (moment, moment))
    return run


def save_checkpoint(run):
    CheckpointStore(run.checkpoints, keep=2).save({"weight": torch.zeros(1)}, {})


# --- Names ------------------------------------------------------------------------------------------------------------


def test_a_run_is_named_after_its_level_and_the_time(project, same_second):
    run = new_run(project, SETTINGS.task.levels_played)
    assert run.name == "mario-3-2-20260102-030405"
    assert run.checkpoints == project / "checkpoints" / run.name
    assert run.newest_model == project / "models" / f"{run.name}-newest.safetensors"
    assert run.best_model == project / "models" / f"{run.name}-best.safetensors"
    assert run.metrics.parent == run.checkpoints


def test_runs_of_the_same_second_get_names_of_their_own(project, same_second):
    names = []
    for _ in range(3):
        run = new_run(project, SETTINGS.task.levels_played)
        write_record(run, SETTINGS.flat())
        names.append(run.name)
    assert len(set(names)) == 3
    assert names[2] == "mario-3-2-20260102-030405-3"


def test_runs_that_are_started_at_the_same_time_get_names_of_their_own(project, same_second):
    assert new_run(project, SETTINGS.task.levels_played).name != new_run(project, SETTINGS.task.levels_played).name


# --- Which run is resumed ---------------------------------------------------------------------------------------------


def test_the_run_that_was_saved_last_is_found_whatever_its_name_and_start(project):
    for number, name in enumerate(("mario-b", "mario-a", "mario-c")):
        save_checkpoint(started_run(project, name, minutes_ago=30 - number))
        started_run(project, name, minutes_ago=30 - number)
    save_checkpoint(runs.Run("mario-a", project / "checkpoints" / "mario-a", project / "models"))
    assert find_run(project, None).name == "mario-a"


def test_a_run_that_ended_before_its_first_save_does_not_hide_the_one_before_it(project):
    save_checkpoint(started_run(project, "mario-saved", minutes_ago=30))
    started_run(project, "mario-saved", minutes_ago=20)
    started_run(project, "mario-killed", minutes_ago=10)
    assert find_run(project, None).name == "mario-saved"


def test_a_run_is_found_by_its_name(project):
    for name in ("mario-a", "mario-b"):
        started_run(project, name, minutes_ago=1)
    run = find_run(project, "mario-a")
    assert (run.name, run.checkpoints) == ("mario-a", project / "checkpoints" / "mario-a")


def test_folders_without_a_record_are_no_runs(project):
    (project / "checkpoints" / "notes").mkdir(parents=True)
    (project / "checkpoints" / "README.md").write_text("x")
    with pytest.raises(CheckpointError, match="There is no run in checkpoints/"):
        find_run(project, None)
    started_run(project, "mario-a", minutes_ago=1)
    with pytest.raises(CheckpointError, match=r"There is no run 'notes' in checkpoints/; there are: mario-a\."):
        find_run(project, "notes")


def test_a_project_without_a_checkpoints_folder_has_no_runs(project):
    with pytest.raises(CheckpointError, match="There is no run in checkpoints/"):
        find_run(project, None)


@pytest.mark.parametrize(
    "text", ["checkpoints/mario-a", "./checkpoints/mario-a/", "mario-a/", "PROJECT/checkpoints/mario-a"]
)
@pytest.mark.parametrize("find", [find_run, find_run_to_plot])
def test_a_run_is_found_by_what_a_shell_completes(project, find, text):
    started_run(project, "mario-a", minutes_ago=1)
    assert find(project, text.replace("PROJECT", str(project))).name == "mario-a"


def test_a_run_is_found_by_its_name_inside_of_checkpoints(project, monkeypatch):
    started_run(project, "mario-a", minutes_ago=1)
    monkeypatch.chdir(project / "checkpoints" / "mario-a")
    assert find_run(project, str(project / "checkpoints" / "mario-a")).name == "mario-a"
    with pytest.raises(CheckpointError, match=r"There is no run '\.\./mario-a'"):
        find_run(project, "../mario-a")


@pytest.mark.parametrize("find", [find_run, find_run_to_plot])
@pytest.mark.parametrize(
    "text",
    [
        "../mario-a",
        "/mario-a",
        "outside/mario-a",
        "checkpoints/../outside",
        "outside",
        "checkpoints/mario-a/..",
        "checkpoints",
        "/",
        "x" * 300,
    ],
)
def test_a_path_to_anywhere_else_is_no_run(project, find, text):
    started_run(project, "mario-a", minutes_ago=1)
    outside = project / "outside"
    outside.mkdir()
    (outside / runs.RECORD).write_text("{}")
    with pytest.raises(CheckpointError, match=r"^There is no run '.* in checkpoints/; there are: mario-a\.$"):
        find(project, text)


def test_the_run_that_wrote_metrics_last_is_plotted_saved_or_not(project):
    save_checkpoint(started_run(project, "mario-saved", minutes_ago=30))
    with pytest.raises(CheckpointError, match="There is no run in checkpoints/ to plot: start one"):
        find_run_to_plot(project, None)
    for minutes_ago, name in ((20, "mario-saved"), (10, "mario-new"), (0, "mario-empty")):
        run = started_run(project, name, minutes_ago=30)
        run.metrics.write_text("" if name == "mario-empty" else "{}")
        moment = datetime.datetime.now().timestamp() - 60 * minutes_ago
        os.utime(run.metrics, (moment, moment))
    assert find_run_to_plot(project, None).name == "mario-new"
    assert find_run(project, None).name == "mario-saved"


# --- The record -------------------------------------------------------------------------------------------------------


@pytest.fixture
def record(project, monkeypatch):
    monkeypatch.setenv("MARIO_TEST_TOKEN", "a-secret-of-the-environment")
    monkeypatch.setattr(sys, "argv", ["/home/someone/mario_rl_optimized.py", "--seed", "3"])
    run = new_run(project, SETTINGS.task.levels_played)
    write_record(run, SETTINGS.flat())
    return run.checkpoints / runs.RECORD


def test_the_record_holds_settings_command_commit_versions_and_machine(record):
    content = json.loads(record.read_text())
    assert set(content) == {"settings", "sessions"}
    assert content["settings"]["WORLD"] == 3
    assert len(content["settings"]) == len(SETTINGS.flat())
    (content,) = content["sessions"]
    assert content["command"] == ["python", "mario_rl_optimized.py", "--seed", "3"]
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", content["commit"])
    assert datetime.datetime.fromisoformat(content["started"]).tzinfo is not None
    assert content["packages"]["torch"] == importlib.metadata.version("torch")
    assert content["packages"]["nes-py"] == importlib.metadata.version("nes-py")
    assert content["machine"].keys() >= {"cpu", "cores", "memory_gib", "gpu", "python", "torch"}


def test_the_record_holds_nothing_of_the_environment(record):
    assert "a-secret-of-the-environment" not in record.read_text()
    assert "MARIO_TEST_TOKEN" not in record.read_text()
    assert "/home/someone" not in record.read_text()


def test_a_record_gives_back_exactly_the_settings_it_was_written_with(record):
    values = read_settings(runs.Run("x", record.parent, record.parent))
    chosen = choose_resumed_settings(values, lambda: pytest.fail("read"), {}, has_gpu=lambda: False)
    assert chosen.settings == SETTINGS


def test_a_resumed_run_adds_its_session_to_the_record(record, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mario_rl_optimized.py", "--resume"])
    write_record(runs.Run("x", record.parent, record.parent), SETTINGS.flat())
    commands = [session["command"][2:] for session in json.loads(record.read_text())["sessions"]]
    assert commands == [["--seed", "3"], ["--resume"]]
    assert [path.name for path in record.parent.iterdir()] == [runs.LOCK, runs.RECORD]


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"", b"{", b"[]", b"null", b'{"settings": []}', b"{}", b"\xff\xfe"]
)
def test_a_record_that_is_damaged_is_named_in_one_sentence(record, content):
    record.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_settings(runs.Run("x", record.parent, record.parent))
    assert str(caught.value) == f"{record} cannot be read, so the run's settings are lost: start a new run."


def test_without_git_the_commit_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    git_commit.cache_clear()
    assert git_commit() == "unknown"
    git_commit.cache_clear()


# --- Who may write ----------------------------------------------------------------------------------------------------


def test_a_run_that_another_session_trains_is_refused_until_that_ends(project):
    run = started_run(project, "mario-1-1-a", 1)
    code = "import sys; from pathlib import Path; from mario_rl.storage.runs import Run, claim; "
    code += f"claim(Run('mario-1-1-a', Path({str(run.checkpoints)!r}), Path('.'))); print('claimed', flush=True); "
    code += "sys.stdin.read()"
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT
    )
    with other:
        assert other.stdout.readline() == "claimed\n"
        with pytest.raises(CheckpointError, match="Run mario-1-1-a is still being trained: stop it first"):
            claim(run)
        other.kill()
        other.wait()
        claim(run)


def test_a_record_that_cannot_be_written_is_one_sentence(project, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    run = new_run(project, SETTINGS.task.levels_played)
    monkeypatch.setattr(runs, "replace_durably", full)
    with pytest.raises(CheckpointError, match=r"cannot be written \(No space left on device\)"):
        write_record(run, SETTINGS.flat())


def test_a_folder_that_cannot_be_written_is_one_sentence(project):
    (project / "checkpoints").write_text("a file in the way")  # a read-only disk answers another error the same way
    with pytest.raises(CheckpointError, match=r"checkpoints cannot be written \(.*\): checkpoints must go there"):
        new_run(project, SETTINGS.task.levels_played)
    with pytest.raises(CheckpointError, match="mario-1-1-a cannot be written"):
        claim(runs.Run("mario-1-1-a", project / "checkpoints" / "mario-1-1-a", project / "models"))
