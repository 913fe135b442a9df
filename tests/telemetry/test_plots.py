import json
import sys

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from mario_rl.errors import UserError
from mario_rl.telemetry.metrics import JsonLinesSink
from mario_rl.telemetry.plots import RUN_COLOURS, Curve, Points, plot, read_curve, running_mean


def write_run(folder, num_epochs=200, num_evaluations=10, best=1.0):
    """Lines as a run writes them."""
    folder.mkdir()
    sink = JsonLinesSink(folder / "metrics.jsonl")
    for epoch in range(1, num_epochs + 1):
        done = epoch / num_epochs
        metrics = {"distance": 600 + 2500 * done, "reward": 500 + 2500 * done, "clear_rate": best * done**3}
        learner = {"learner/loss": 0.1 + 0.5 * 0.9**epoch, "exploration/epsilon": 1 - done}
        sink.write({f"episodes/{name}": value for name, value in metrics.items()} | learner, 4096 * epoch, 0.1 * epoch)
        if epoch % (num_epochs // num_evaluations) == 0:
            metrics |= {"clear_rate": best * done, "sticky_clear_rate": best * done**2}
            # The answer comes after further epochs.
            sink.write(
                {f"evaluation/{name}": value for name, value in metrics.items()}, 4096 * epoch - 9999, 0.1 * epoch
            )
    sink.close()
    return folder


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "mario-1-1-a")


def refusal(call, *arguments):
    with pytest.raises(UserError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    return message


def num_pixels(path, colour):
    """How many are of exactly this colour."""
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    return int((pixels == np.round(np.array(to_rgb(colour)) * 255)).all(axis=2).sum())


def test_a_curve_holds_what_the_run_wrote(run):
    curve = read_curve(run)
    assert curve.run_name == "mario-1-1-a"
    assert {name: len(points.values) for name, points in curve.metrics.items()} == {
        **dict.fromkeys(["episodes/distance", "episodes/reward", "episodes/clear_rate"], 200),
        **dict.fromkeys(["learner/loss", "exploration/epsilon"], 200),
        **dict.fromkeys([f"evaluation/{name}" for name in ("distance", "reward", "clear_rate")], 10),
        "evaluation/sticky_clear_rate": 10,
    }
    distance = curve.metrics["episodes/distance"]
    assert [column[1] for column in distance] == [8192, 0.2, 625]
    assert curve.metrics["evaluation/clear_rate"].values[-1] == 1


@pytest.mark.parametrize(
    "cut",
    [
        "[" * 100_000,
        '{"decisions": 9, "minutes": 1, "metrics": {"learner/loss": %s}}' % ("9" * 400),
        '{"decisions": 9, "minutes": 1.0, "metr',
        '{"decisions": 9, "minutes": 1}',
        "7",
        "\udcff",
    ],
)
def test_a_line_that_was_cut_off_is_left_out_wherever_a_resumed_run_went_on(run, cut):
    whole = read_curve(run)
    with (run / "metrics.jsonl").open("a", errors="surrogateescape") as file:
        file.write(cut)
    assert_same(read_curve(run), whole)
    line = json.dumps({"decisions": 10**7, "minutes": 99.0, "metrics": {"learner/loss": 0.25}})
    with (run / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n{line}\n")  # the first one continues the cut line
    assert read_curve(run).metrics["learner/loss"].values.tolist() == [*whole.metrics["learner/loss"].values, 0.25]


def test_a_row_that_no_axis_reaches_is_left_out(run):
    whole = read_curve(run)
    with (run / "metrics.jsonl").open("a") as file:
        for decisions, minutes in (("Infinity", "1"), ("1", "NaN"), ("1e999", "1")):
            file.write(f'{{"decisions": {decisions}, "minutes": {minutes}, "metrics": {{"learner/loss": 1}}}}\n')
    assert_same(read_curve(run), whole)


def assert_same(curve, other):
    assert curve.metrics.keys() == other.metrics.keys()
    for name, points in curve.metrics.items():
        np.testing.assert_array_equal(points, other.metrics[name])


def test_decisions_that_a_resumed_run_repeats_count_once(run):
    with (run / "metrics.jsonl").open("a") as file:
        for decisions in (4096 * 150, 4096 * 151):
            file.write(json.dumps({"decisions": decisions, "minutes": 30.0, "metrics": {"learner/loss": 7.0}}) + "\n")
    loss = read_curve(run).metrics["learner/loss"]
    assert loss.decisions.tolist() == [4096 * epoch for epoch in range(1, 152)]
    assert loss.values[-3:].tolist() == [pytest.approx(0.1), 7.0, 7.0]
    assert len(read_curve(run).metrics["episodes/distance"].values) == 200


def test_a_run_without_metrics_is_refused(tmp_path):
    assert str(tmp_path / "nowhere") in refusal(read_curve, tmp_path / "nowhere")
    (tmp_path / "metrics.jsonl").touch()
    assert "holds no metrics" in refusal(read_curve, tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"decisions": 1, "min')
    assert "holds no metrics" in refusal(read_curve, tmp_path)


def test_a_running_mean_covers_neighbours_on_both_sides_and_skips_what_is_no_number():
    values = np.arange(161.0)
    values[7] = np.nan
    points = running_mean(Points(np.arange(161.0), np.arange(161.0) / 10, values))
    assert 7 not in points.decisions
    assert points.values[100] == points.decisions[100] == 101  # no lag on a straight line
    assert points.values[0] == 1.0  # of 0, 1 and 2
    steps = np.repeat([0.0, 1.0], 80)
    smooth = running_mean(Points(steps, steps, steps)).values
    assert smooth[76:84].tolist() == pytest.approx([0, 0, 0.2, 0.4, 0.6, 0.8, 1, 1])


def test_the_picture_shows_each_run_in_its_colour(tmp_path, run):
    other = write_run(tmp_path / "mario-1-1-b", num_epochs=100, best=0.4)
    one, two = tmp_path / "one.png", tmp_path / "two.PNG"
    plot([read_curve(run)], one)
    plot([read_curve(run), read_curve(other)], two)
    with Image.open(one) as picture:
        assert picture.size == (1600, 1000)
        assert picture.format == "PNG"
    assert num_pixels(one, RUN_COLOURS[0]) > 2_000
    assert num_pixels(one, RUN_COLOURS[1]) == 0
    assert num_pixels(two, RUN_COLOURS[0]) > 1_000
    assert num_pixels(two, RUN_COLOURS[1]) > 1_000
    assert {path.name for path in tmp_path.iterdir()} == {run.name, other.name, "one.png", "two.PNG"}


def test_a_run_of_several_levels_shows_each_ones_clear_rate(tmp_path, run):
    curve = read_curve(run)
    rates = {f"evaluation_1-{stage}/clear_rate": curve.metrics["evaluation/clear_rate"] for stage in (1, 2)}
    plot([Curve(curve.run_name, curve.metrics | rates)], tmp_path / "levels.png")
    plot([curve], tmp_path / "one.png")
    for number in (1, 2):
        assert num_pixels(tmp_path / "levels.png", RUN_COLOURS[number]) > num_pixels(
            tmp_path / "one.png", RUN_COLOURS[number]
        )


def test_a_run_that_has_only_begun_can_be_drawn(tmp_path):
    nan = np.array([np.nan])
    at = np.array([4096.0]), np.array([0.1])
    curves = [
        Curve("begun", {"episodes/distance": Points(*at, np.array([300.0]))}),
        Curve("broken", {"learner/loss": Points(*at, nan), "evaluation/distance": Points(*at, nan)}),
        *[Curve(f"run {number}", {"learner/loss": Points(*at, np.zeros(1))}) for number in range(9)],
    ]
    plot(curves, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_what_cannot_be_drawn_or_written_is_refused(tmp_path, run, monkeypatch):
    curves = [read_curve(run)]
    assert "at least one run" in refusal(plot, [], tmp_path / "plot.png")
    assert "plot.pdf" in refusal(plot, curves, tmp_path / "plot.pdf")
    assert str(tmp_path / "nowhere") in refusal(plot, curves, tmp_path / "nowhere" / "plot.png")
    (tmp_path / "plot.png").mkdir()
    assert "is a folder" in refusal(plot, curves, tmp_path / "plot.png")
    for name in (f"{'x' * 300}.png", f"{'x' * 300}/plot.png", f"{'x/' * 3_000}plot.png"):
        assert "cannot be written (File name too long)" in refusal(plot, curves, tmp_path / name)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install -r requirements.txt" in refusal(plot, curves, tmp_path / "other.png")
    assert sorted(path.name for path in tmp_path.iterdir()) == [run.name, "plot.png"]
