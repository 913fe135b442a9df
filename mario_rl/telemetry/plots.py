"""Learning curves of runs in one picture. Runs in the process of the command that asks for it.

A row for each question: how often is the level cleared, how far does Mario get, what does he earn, how wrong is the
network? The left column asks it against decisions, the right one against minutes: runs can differ in either.
"""

import io
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from mario_rl.errors import UserError
from mario_rl.storage.files import replace_durably
from mario_rl.storage.runs import METRICS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_PIXELS, HEIGHT_PIXELS, DOTS_PER_INCH = 1600, 1000, 100
SMOOTHED_SHARE = 1 / 40  # of a run's rows: what a running mean covers

# Okabe and Ito's colours, which people tell apart whatever their colour vision; without black and the pale yellow.
RUN_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_INK, _PALE_INK, _GRID = "#222222", "#70757A", "#E8EAED"
_TEXT_LEFT, _AXES_LEFT, _AXES_RIGHT = 0.022, 0.057, 0.982  # of the width
_TITLE_SIZE, _TEXT_SIZE, _SMALL_SIZE = 16, 11, 10

Style: TypeAlias = dict[str, Any]  # a line's arguments to matplotlib
_TRAINING: Style = {"linewidth": 1.2, "alpha": 0.55, "solid_joinstyle": "round"}
_STARTS: Style = {"linewidth": 2.0, "marker": "o", "markersize": 5}
_STICKY: Style = {"linewidth": 1.2, "marker": "o", "markersize": 5, "markerfacecolor": "white"}
_LEVEL: Style = {"linewidth": 1.2, "linestyle": "--", "marker": ".", "markersize": 5}
_MARKS: Style = _STARTS | {"linewidth": 0.0}
_LEVEL_RATE = re.compile(r"evaluation_(.+)/clear_rate")


class PlottingError(UserError):
    """Curves cannot be read or drawn; the message is for the user."""


class Points(NamedTuple):
    """One metric of a run."""

    decisions: npt.NDArray[np.float64]  # [rows]
    minutes: npt.NDArray[np.float64]  # [rows]
    values: npt.NDArray[np.float64]  # [rows]


class Curve(NamedTuple):
    """A run's metrics by name."""

    run_name: str
    metrics: dict[str, Points]


class _Panel(NamedTuple):
    """A row of the picture: how each of its metrics is drawn."""

    title: str
    training: str
    evaluation: dict[str, Style]  # by metric


_PANELS = (
    _Panel(
        "Clear rate",
        "episodes/clear_rate",
        {"evaluation/sticky_clear_rate": _STICKY, "evaluation/clear_rate": _STARTS},
    ),
    _Panel("Distance in pixels", "episodes/distance", {"evaluation/distance": _MARKS}),
    _Panel("Reward of an episode", "episodes/reward", {"evaluation/reward": _MARKS}),
    _Panel("Loss", "learner/loss", {}),
)


def read_curve(run_folder: Path) -> Curve:
    """What a run has written down so far.

    A run that was killed leaves half a line, which a resumed run continues: such lines are left out. A resumed run also
    goes through some decisions once more, and the second time counts.
    """
    path = run_folder / METRICS
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise PlottingError(
            f"{path} cannot be read ({error.strerror}): give the folder of a run that has trained, as in checkpoints/."
        ) from None
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for line in lines:
        try:
            entry = json.loads(line)
            decisions, minutes = float(entry["decisions"]), float(entry["minutes"])
            metrics = {name: float(value) for name, value in entry["metrics"].items()}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            continue
        if not (math.isfinite(decisions) and math.isfinite(minutes)):
            continue  # no axis reaches so far
        for name, value in metrics.items():
            row = rows.setdefault(name, [])
            while row and row[-1][0] >= decisions:
                row.pop()
            row.append((decisions, minutes, value))
    if not rows:
        raise PlottingError(f"{path} holds no metrics: wait for the run's first epoch, or give another run.")
    return Curve(run_folder.resolve().name, {name: Points(*np.array(row).T) for name, row in rows.items()})


def plot(curves: list[Curve], out: Path) -> None:
    """Draw the curves of one or several runs as a PNG."""
    if not curves:
        raise PlottingError("There is nothing to plot: give the folder of at least one run.")
    if out.suffix.lower() != ".png":
        raise PlottingError(f"A plot is a .png file, and {out} is not: give it such a name.")
    picture = io.BytesIO()
    try:
        if not out.parent.is_dir():  # which itself fails where the name is too long, or a folder above is closed to us
            raise PlottingError(f"There is no folder {out.parent} for {out.name}: create it, or give another path.")
        if out.is_dir():
            raise PlottingError(f"{out} is a folder: give another name.")
        _draw(curves).savefig(picture, format="png")
        replace_durably(out, picture.getvalue())
    except OSError as error:
        raise PlottingError(f"{out} cannot be written ({error.strerror}): give another path.") from None


def _draw(curves: list[Curve]) -> "Figure":
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise PlottingError("A plot needs the package matplotlib: run pip install -r requirements.txt.") from None

    size = WIDTH_PIXELS / DOTS_PER_INCH, HEIGHT_PIXELS / DOTS_PER_INCH
    figure = Figure(size, DOTS_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    legend_rows = (len(curves) + 2) // 3 if len(curves) > 1 else 1
    top = 0.868 - 0.024 * (legend_rows - 1)
    axes = figure.subplots(len(_PANELS), 2, sharex="col", sharey="row", height_ratios=[1.4, 1, 1, 1])
    figure.subplots_adjust(_AXES_LEFT, 0.062, _AXES_RIGHT, top, wspace=0.04, hspace=0.32)
    for panel, (left, right) in zip(_PANELS, axes, strict=True):
        for number, curve in enumerate(curves):
            colour = RUN_COLOURS[number % len(RUN_COLOURS)]
            _draw_curve(left, panel, curve, colour, against_minutes=False)
            _draw_curve(right, panel, curve, colour, against_minutes=True)
        y = left.get_position().y1 + 0.01
        figure.text(_TEXT_LEFT, y, panel.title, fontsize=_TEXT_SIZE, fontweight="bold", color=_INK, va="bottom")
        for axis in (left, right):
            _tidy(axis)
        _set_range(left, panel, curves)
    if len(curves) == 1:
        for axis, against_minutes in zip(axes[0], (False, True), strict=True):
            _draw_levels(axis, curves[0], against_minutes=against_minutes)
    _label_columns(axes[-1][0], axes[-1][1])
    _write_heading(figure, curves)
    return figure


def _draw_curve(axes: "Axes", panel: _Panel, curve: Curve, colour: str, *, against_minutes: bool) -> None:
    if panel.training in curve.metrics:
        points = running_mean(curve.metrics[panel.training])
        x = points.minutes if against_minutes else points.decisions
        axes.plot(x, points.values, color=colour, zorder=2, **_TRAINING)
    for name, style in panel.evaluation.items():
        if name in curve.metrics:
            points = curve.metrics[name]
            x = points.minutes if against_minutes else points.decisions
            axes.plot(x, points.values, color=colour, zorder=3, clip_on=False, **style)


def _draw_levels(axes: "Axes", curve: Curve, *, against_minutes: bool) -> None:
    """Of a run that plays several levels: how often each is cleared, from the different starts."""
    levels = {found[1]: name for name in sorted(curve.metrics) if (found := _LEVEL_RATE.fullmatch(name))}
    for number, (level, name) in enumerate(levels.items(), 1):
        points, colour = curve.metrics[name], RUN_COLOURS[number % len(RUN_COLOURS)]
        x = points.minutes if against_minutes else points.decisions
        axes.plot(x, points.values, color=colour, zorder=2.5, clip_on=False, label=level, **_LEVEL)
    if levels and not against_minutes:
        axes.legend(fontsize=_SMALL_SIZE, labelcolor=_INK, frameon=False, loc="upper left", ncols=4)


def running_mean(points: Points) -> Points:
    """Each value's mean with its neighbours, fewer of them at the ends; values that are not numbers are left out."""
    decisions, minutes, values = (column[np.isfinite(points.values)] for column in points)
    half = int(len(values) * SMOOTHED_SHARE / 2)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    first, last = np.maximum(places - half, 0), np.minimum(places + half + 1, len(values))
    return Points(decisions, minutes, (sums[last] - sums[first]) / (last - first))


def _tidy(axes: "Axes") -> None:
    axes.set_axisbelow(True)
    axes.grid(color=_GRID, linewidth=1)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#BDC1C6")
    axes.tick_params(length=0, pad=6, colors=_PALE_INK, labelsize=_SMALL_SIZE)
    axes.margins(x=0.01)


def _set_range(axes: "Axes", panel: _Panel, curves: list[Curve]) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    if panel.title == "Clear rate":
        axes.set_ylim(0, 1)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        return
    axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    if panel.title == "Loss":
        smooth = [
            running_mean(curve.metrics[panel.training]).values for curve in curves if panel.training in curve.metrics
        ]
        # The first losses can be many times as large as all others.
        highest = max((float(np.quantile(values, 0.98)) for values in smooth if len(values)), default=0.0)
        axes.set_ylim(0, 1.15 * highest or 1)


def _label_columns(left: "Axes", right: "Axes") -> None:
    from matplotlib.ticker import EngFormatter

    left.xaxis.set_major_formatter(EngFormatter(sep=" "))
    for axes, label in ((left, "decisions"), (right, "minutes")):
        axes.set_xlabel(label, fontsize=_TEXT_SIZE, color=_INK, labelpad=8)
        axes.set_xlim(left=0)


def _write_heading(figure: "Figure", curves: list[Curve]) -> None:
    """What is shown: the runs on the left, what lines and marks mean on the right."""
    from matplotlib.lines import Line2D

    top = 0.972
    text: Style = {
        "fontsize": _TEXT_SIZE,
        "labelcolor": _INK,
        "frameon": False,
        "borderaxespad": 0,
        "handletextpad": 0.6,
    }
    title = curves[0].run_name if len(curves) == 1 else f"{len(curves)} runs"
    figure.text(_TEXT_LEFT, top, title, fontsize=_TITLE_SIZE, fontweight="bold", color=_INK, va="top")
    if len(curves) == 1:
        figure.text(_TEXT_LEFT, 0.938, _summary(curves[0]), fontsize=_TEXT_SIZE, color=_PALE_INK, va="top")
    else:
        colours = [RUN_COLOURS[number % len(RUN_COLOURS)] for number in range(len(curves))]
        runs = [Line2D([], [], color=colour, linewidth=3) for colour in colours]
        names = [curve.run_name for curve in curves]
        place: Style = {"loc": "upper left", "bbox_to_anchor": (_TEXT_LEFT, 0.94), "ncols": 3, "columnspacing": 2.0}
        figure.legend(runs, names, **place, **text)
    styles = {
        "greedy, from 31 starts": Line2D([], [], color=_PALE_INK, **_STARTS),
        "greedy, sticky actions": Line2D([], [], color=_PALE_INK, **_STICKY),
        "training, running mean": Line2D([], [], color=_PALE_INK, **_TRAINING),
    }
    place = {"loc": "upper right", "bbox_to_anchor": (_AXES_RIGHT, top), "ncols": 3, "columnspacing": 2.0}
    figure.legend(list(styles.values()), list(styles), **place, **text)


def _summary(curve: Curve) -> str:
    decisions = max(points.decisions[-1] for points in curve.metrics.values())
    minutes = max(points.minutes[-1] for points in curve.metrics.values())
    return f"{decisions:,.0f} decisions in {minutes:,.1f} minutes"
