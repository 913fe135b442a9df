"""A chart of a study's figures that are ratios or seconds, with their quartiles and thresholds."""

from pathlib import Path

from benchmarks.measure import UNITS, Ratio, StudyResult

INK, ACCENT, MISSED = "#33415c", "#2a9d8f", "#c1121f"


def draw_chart(name: str, result: StudyResult, folder: Path) -> Path | None:
    """Draw a PNG; None where a study has nothing to draw."""
    ratios = chart_ratios(result)
    if not ratios:
        return None
    path = folder / f"{name}.png"
    _draw(name, ratios, path)
    return path


def chart_ratios(result: StudyResult) -> dict[str, Ratio]:
    """What a chart shows: figures of one unit."""
    unit = "x" if any(ratio.unit == "x" for ratio in result.ratios.values()) else "s"
    return {label: ratio for label, ratio in result.ratios.items() if ratio.unit == unit and ratio.value > 0}


def _draw(name: str, ratios: dict[str, Ratio], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.0 + 0.5 * len(ratios)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for row, ratio in enumerate(ratios.values()):
        colour = MISSED if ratio.reached is False else ACCENT
        axes.barh(row, ratio.value, color=colour, height=0.6)
        axes.plot([ratio.low, ratio.high], [row, row], color=INK, linewidth=2, solid_capstyle="butt")
        axes.annotate(
            f"  {ratio.value:.3g}{UNITS[ratio.unit]}", (max(ratio.value, ratio.high), row), va="center", color=INK
        )
        if ratio.threshold is not None:
            threshold = float(ratio.threshold.split()[-1].replace(",", ""))
            axes.plot([threshold, threshold], [row - 0.4, row + 0.4], color=INK, linestyle=":", linewidth=1.5)
    axes.set_yticks(range(len(ratios)), list(ratios))
    axes.invert_yaxis()
    if any(ratio.unit == "x" for ratio in ratios.values()):
        axes.axvline(1.0, color=INK, linewidth=0.8)
    if max(ratio.value for ratio in ratios.values()) > 20 * min(ratio.value for ratio in ratios.values()):
        axes.set_xscale("log")
    axes.margins(x=0.2)
    title = f"{name}: medians, lines to the quartiles; dotted: thresholds"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, color=INK)  # over the labels, too: they may be long
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
