"""The commands `evaluate`, `record` and `plot`, as a user types them; and what their mistakes look like."""

import errno
import json
import os
from pathlib import Path

import pytest
import torch

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.app import command_line, commands
from mario_rl.app.signals import StopSignals
from mario_rl.emulation.rules import Level
from mario_rl.evaluation.results import Episode
from mario_rl.evaluation.thorough import Trial
from mario_rl.storage.policies import Policy, export_policy
from tests.small_runs import PROJECT

SHAPE = NetworkShape((4, 8, 8), 16, 7)
RUN = 3


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    network = QNetwork(SHAPE)
    with torch.no_grad():
        network.advantage.bias.view(7, -1)[RUN, -1] = 100.0  # run to the right, whatever is seen
    path = tmp_path / "runner.safetensors"
    export_policy(path, Policy(network.state_dict(), SHAPE, "simple", 4, (Level(1, 1),)), {})
    return path


@pytest.fixture
def main(monkeypatch, tmp_path, capsys):
    """Exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*words):
        code = command_line.main(tmp_path, StopSignals(), [str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_evaluate_prints_a_table_and_writes_json(main, model, tmp_path):
    file = tmp_path / "result.json"
    code, out, _ = main("evaluate", model, "--episodes", 5, "--sticky", 0.25, "--seed", 3, "--json", file)
    assert code == 0
    assert "runner.safetensors on level 1-1" in out
    assert "sticky actions 0.25" in out
    result = json.loads(file.read_text())
    assert result["seed"] == 3
    trials = result["levels"]["1-1"]
    assert [len(trial["episodes"]) for trial in trials] == [31, 30, 5]
    assert [trial["clear_rate"] for trial in trials] == [0.0, 0.0, 0.0]
    assert all(250 < episode["distance"] < 350 for episode in trials[0]["episodes"])  # where the first enemy is


@pytest.fixture
def never_plays(monkeypatch):
    monkeypatch.setattr(commands, "try_thoroughly", lambda *_: pytest.fail("episodes were played"))


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ("no/such/folder/x.json", "There is no folder no/such/folder for x.json: create it, or choose another --json."),
        ("models", "models is a folder: give --json the name of a file."),
        ("", ". is a folder: give --json the name of a file."),
        (
            "/proc/none.json",
            "/proc/none.json cannot be written (No such file or directory): choose another --json file.",
        ),
        ("x" * 300, "cannot be written (File name too long): choose another --json file."),
    ],
)
def test_a_place_for_json_that_cannot_be_written_is_refused_before_anything_is_played(
    main, model, never_plays, monkeypatch, file, complaint
):
    monkeypatch.chdir(PROJECT)
    code, _, err = main("evaluate", model, "--json", file)
    assert code == command_line.USER_ERROR
    (line,) = err.splitlines()
    assert complaint in line


@pytest.fixture
def plays_at_once(monkeypatch):
    trial = Trial("starts", [Episode(True, 3_161, 3_000.0, 200)])
    monkeypatch.setattr(commands, "try_thoroughly", lambda *_: [trial])
    monkeypatch.setattr(commands, "choose_emulator", lambda *_: "fast")


def _clear_rate(text):
    """Of the first kind of episodes on 1-1."""
    return json.loads(text)["levels"]["1-1"][0]["clear_rate"]


def test_json_takes_an_older_files_place_in_one_step_or_leaves_it(main, model, plays_at_once, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "results" / "result.json"
    file.parent.mkdir()
    file.write_text("older")
    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        code, _, err = main("evaluate", model, "--json", file)
    assert code == command_line.USER_ERROR
    assert "cannot be written (No space left on device)" in err
    assert file.read_text() == "older"
    assert main("evaluate", model, "--json", file)[0] == 0
    assert _clear_rate(file.read_text()) == 1.0
    assert list(file.parent.iterdir()) == [file]


def test_json_is_written_through_links_and_into_pipes(main, model, plays_at_once, tmp_path):
    file, link = tmp_path / "result.json", tmp_path / "link.json"
    file.write_text("older")
    link.symlink_to(file)
    assert main("evaluate", model, "--json", link)[0] == 0
    assert link.is_symlink()
    assert _clear_rate(file.read_text()) == 1.0
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert main("evaluate", model, "--json", pipe)[0] == 0
    assert _clear_rate(os.read(reader, 1 << 16)) == 1.0
    os.close(reader)
    assert pipe.is_fifo()


def test_evaluate_plays_another_level_when_asked_to(main, model, tmp_path):
    file = tmp_path / "result.json"
    assert main("evaluate", model, "--episodes", 0, "--world", 1, "--stage", 2, "--json", file)[0] == 0
    levels = json.loads(file.read_text())["levels"]
    assert list(levels) == ["1-2"]
    assert [trial["episodes_from"][:6] for trial in levels["1-2"]] == ["starts", "starts"]  # no sticky ones


def test_record_films_an_episode(main, model, tmp_path):
    film = tmp_path / "film.mp4"
    code, out, _ = main("record", model, "--out", film)
    assert code == 0
    assert film.stat().st_size > 10_000
    assert "got to" in out


def test_plot_draws_runs_by_name_and_the_last_one_by_default(main, tmp_path):
    for name in ("one", "two"):
        folder = tmp_path / "checkpoints" / name
        folder.mkdir(parents=True)  # no checkpoint yet
        (folder / "run.json").write_text("{}")
        row = {"decisions": 100, "minutes": 0.5, "metrics": {"episodes/distance": 300.0, "evaluation/clear_rate": 0.0}}
        (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    for words, name in ((("checkpoints/one", "two"), "two.png"), ((), os.fsdecode(b"one-\xff.png"))):
        picture = tmp_path / name
        code, out, _ = main("plot", *words, "--out", picture)
        assert code == 0
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert ("two.png: one, two." if words else "one-?.png: two.") in out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("evaluate", "nowhere.safetensors"), "There is no model nowhere.safetensors"),
        (("evaluate", "MODEL", "--world", 9, "--stage", 1), "--world 9: must be a whole number between 1 and 8."),
        (("evaluate", "MODEL", "--world", 1, "--stage", "x"), "--stage x: must be a whole number between 1 and 4."),
        (("evaluate", "MODEL", "--world", 1), "--world and --stage belong together"),
        (("evaluate", "MODEL", "--sticky", 2), "--sticky 2: must be a number between 0.0 and 1.0."),
        (("evaluate", "MODEL", "--episodes", -1), "--episodes -1: must be a whole number"),
        (("evaluate", "MODEL", "--seed", "pi"), "--seed pi: must be a whole number"),
        (("evaluate", "x" * 300), "cannot be read (File name too long)"),
        (("record", "MODEL", "--out", "film.txt"), "film.txt"),
        (("record", "MODEL", "--start", "soon"), "--start soon"),
        (("record", "MODEL", "--out", f"{'x' * 300}/film.mp4"), "cannot be written (File name too long)"),
        (("plot",), "There is no run in checkpoints/ to plot: start one, and wait for its first epoch."),
        (("plot", "nowhere"), "There is no run in checkpoints/ to plot"),
    ],
)
def test_a_mistake_gets_one_sentence(main, model, words, complaint):
    code, _, err = main(*(model if word == "MODEL" else word for word in words))
    assert code == command_line.USER_ERROR
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert complaint in line


def test_two_mistakes_are_told_at_once(main, model):
    code, _, err = main("evaluate", model, "--sticky", "much", "--episodes", "many")
    assert code == command_line.USER_ERROR
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize("command", ["evaluate", "record", "plot"])
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as ended:
        command_line.main(PROJECT, StopSignals(), [command, "--help"])
    assert ended.value.code == 0
    assert f"mario_rl_optimized.py {command}" in capsys.readouterr().out


def test_the_model_that_ships_clears_its_level(main, tmp_path):
    model = Path(__file__).parent.parent.parent / "models" / "mario-1-1.safetensors"
    file = tmp_path / "result.json"
    assert main("evaluate", model, "--episodes", 0, "--json", file)[0] == 0
    card = json.loads(model.with_suffix(".json").read_text())
    # Another processor may round otherwise, and one step decides; but it is the same player.
    assert _clear_rate(file.read_text()) >= card["clear_rate"] - 0.25
