"""The command `levels`, with real trainings of some seconds."""

import json
import signal
import sys

import numpy as np
import pytest
from PIL import Image

from mario_rl.app import command_line
from mario_rl.app.signals import StopSignals
from mario_rl.storage.policies import read_policy
from tests.small_runs import SMALL, copy_project, finish, start, wait_for

TINY = SMALL | {"EVALUATION_DECISIONS": 100, "NO_PROGRESS_DECISIONS": 10}


@pytest.fixture
def campaign(tmp_path):
    """The command line of a campaign, and its project."""
    project = copy_project(tmp_path)
    settings = [f"--set={name}={value}" for name, value in TINY.items()]

    def command(levels, minutes, *options):
        command_of_user = ["levels", "--levels", levels, "--minutes-per-level", str(minutes), *options]
        return start([sys.executable, str(project / "mario_rl_optimized.py"), *command_of_user, *settings])

    return command, project


@pytest.mark.timeout(300)
def test_levels_are_trained_evaluated_and_exported_one_after_the_other(campaign):
    command, project = campaign
    code, out, err = finish(command("1-1,1-4", 0.2), timeout_seconds=200)
    assert code == 0, err
    table = json.loads((project / "checkpoints" / "levels-1.json").read_text())
    assert list(table) == ["1-1", "1-4"]
    for level, row in table.items():
        assert [trial["episodes"] for trial in row["trials"]] == [31, 30, 100, 100, 100]
        assert (project / row["film"]).stat().st_size > 10_000
        model = project / "models" / f"mario-{level}.safetensors"
        assert json.loads(model.with_suffix(".json").read_text())["trials"] == row["trials"]
        # What was evaluated is what was exported: numbers that 16 bits can hold.
        state = read_policy(model).weights
        numbers = next(iter(state.values())).numpy()
        assert np.array_equal(numbers, numbers.astype(np.float16).astype(np.float32))
    assert out.count("Levels, the best policy") == 2
    # What they can do, on a page with pictures.
    (project / "report").mkdir()
    code, _, err = finish(command("all", 1, "--report", str(project / "report")))
    assert code == 0, err
    text = (project / "report" / "levels.md").read_text()
    trial = table["1-4"]["trials"][0]
    (line,) = [line for line in text.splitlines() if line.startswith("| 1-4 |")]
    assert f"| {trial['cleared'] / 31:.0%} (" in line
    assert "30 have no model yet" in text
    with Image.open(project / "report" / "levels.png") as strip:
        assert strip.width > strip.height  # a row of pictures for each of the two
    # The same command again has nothing left to do.
    code, out, _ = finish(command("1-1,1-4", 0.2))
    assert code == 0
    assert "1-1 is done already" in out
    assert "Epoch" not in out


def test_a_campaign_that_is_stopped_goes_on_with_the_level_it_was_at(campaign):
    command, project = campaign
    process = command("1-2", 5)
    wait_for(process, r"Epoch: 2")
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert code != 0
    assert "Traceback" not in out + err
    (run,) = (project / "checkpoints").glob("levels-1-1-2")
    assert list(run.glob("checkpoint-*"))
    code, out, err = finish(command("1-2", 0.2), timeout_seconds=200)
    assert code == 0, err
    assert "1-2" in json.loads((project / "checkpoints" / "levels-1.json").read_text())
    assert [path.name for path in (project / "checkpoints").glob("levels-1-*")] == ["levels-1-1-2"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--levels", "9-1"], "--levels 9-1"),
        (["--levels", "1-1,castle"], "--levels castle"),
        (["--minutes-per-level", "soon"], "--minutes-per-level soon"),
        (["--report", "nowhere"], "models/ has no model of `levels` yet"),
    ],
)
def test_a_mistake_is_told_before_anything_is_trained(tmp_path, capsys, words, complaint):
    assert command_line.main(tmp_path, StopSignals(), ["levels", *words]) == command_line.USER_ERROR
    assert complaint in capsys.readouterr().err


def test_a_table_that_cannot_be_read_is_not_overwritten(tmp_path, capsys):
    file = tmp_path / "checkpoints" / "levels-1.json"
    file.parent.mkdir()
    file.write_text("{torn")
    assert command_line.main(tmp_path, StopSignals(), ["levels"]) == command_line.USER_ERROR
    assert "move it away" in capsys.readouterr().err
    assert file.read_text() == "{torn"
