"""The commands `evaluate`, `record` and `plot`, as a user types them; and what their mistakes look like."""

import json
from pathlib import Path

import pytest
import torch

from mario_rl import command_line
from mario_rl.emulation.rules import Level
from mario_rl.network import NetworkShape, QNetwork
from mario_rl.policies import Policy, export_policy
from mario_rl.stop_signals import StopSignals
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
    assert (result["clear_rate"], result["sticky_clear_rate"], result["seed"]) == (0.0, 0.0, 3)
    assert len(result["episodes"]) == 31 + 5
    starts = [episode for episode in result["episodes"] if episode["test"] == "starts"]
    assert result["mean_distance"] == pytest.approx(sum(episode["distance"] for episode in starts) / 31)
    assert 250 < result["mean_distance"] < 350  # where the first enemy is


def test_evaluate_plays_another_level_when_asked_to(main, model, tmp_path):
    file = tmp_path / "result.json"
    assert main("evaluate", model, "--episodes", 0, "--world", 1, "--stage", 2, "--json", file)[0] == 0
    result = json.loads(file.read_text())
    assert result["levels"] == ["1-2"]
    assert result["sticky_clear_rate"] is None


def test_record_films_an_episode(main, model, tmp_path):
    film = tmp_path / "film.mp4"
    code, out, _ = main("record", model, "--out", film)
    assert code == 0
    assert film.stat().st_size > 10_000
    assert "got to" in out


def test_plot_draws_runs_by_name_and_the_last_one_by_default(main, tmp_path):
    for name in ("one", "two"):
        folder = tmp_path / "checkpoints" / name
        (folder / "checkpoint-000001").mkdir(parents=True)
        (folder / "run.json").write_text("{}")
        row = {"decisions": 100, "minutes": 0.5, "metrics": {"episodes/distance": 300.0, "evaluation/clear_rate": 0.0}}
        (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    for words in (("one", "two"), ()):
        picture = tmp_path / f"{len(words)}.png"
        code, out, _ = main("plot", *words, "--out", picture)
        assert code == 0
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert all(word in out for word in words)


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
        (("evaluate", "MODEL", "--episodes", 0, "--json", "no/such/folder/x.json"), "cannot be written"),
        (("record", "MODEL", "--out", "film.txt"), "film.txt"),
        (("record", "MODEL", "--start", "soon"), "--start soon"),
        (("plot", "nowhere"), "There is no run"),
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
    model = Path(__file__).parent.parent / "models" / "mario-1-1.safetensors"
    file = tmp_path / "result.json"
    assert main("evaluate", model, "--episodes", 0, "--json", file)[0] == 0
    card, result = json.loads(model.with_suffix(".json").read_text()), json.loads(file.read_text())
    assert result["levels"] == ["1-1"]
    # Another processor may round otherwise, and one step decides; but it is the same player.
    assert result["clear_rate"] >= card["clear_rate"] - 0.25
