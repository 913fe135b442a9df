"""The command line of `benchmark_performance.py`: choose studies, run them, show and keep the results."""

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.charts import draw_charts
from benchmarks.measure import UNITS, MissingPackageError, Ratio, StudyResult
from mario_rl.errors import UserError
from mario_rl.hardware import describe_machine

STUDIES = (
    "pipeline",
    "peers",
    "emulation",
    "scaling",
    "transport",
    "publish",
    "replay",
    "learner",
    "gil",
    "locks",
    "recovery",
)
USER_ERROR = 2
QUIET_SHARE = 0.15


def main(arguments: list[str] | None = None) -> int:
    """Run studies. The exit code: 0, or 2 for wrong input; a goal that is not reached is a result, not an error."""
    options = _parse(arguments)
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in STUDIES}
    if options.list:
        for name, module in modules.items():
            print(f"{name:15} {module.QUESTION}")
        return 0
    unknown = [name for name in options.study if name not in STUDIES]
    if unknown:
        print(f"error: --study {unknown[0]}: there are {', '.join(STUDIES)}.", file=sys.stderr)
        return USER_ERROR
    if options.json and options.json.is_dir():
        print(f"error: --json {options.json}: this is a folder; name a file.", file=sys.stderr)
        return USER_ERROR
    if options.json and not options.json.parent.is_dir():
        print(f"error: --json {options.json}: the folder {options.json.parent} does not exist.", file=sys.stderr)
        return USER_ERROR
    if options.plots and options.plots.exists() and not options.plots.is_dir():
        print(f"error: --plots {options.plots}: this is a file; name a folder.", file=sys.stderr)
        return USER_ERROR
    chosen = options.study or list(STUDIES)
    console = Console() if sys.stdout.isatty() else Console(width=120)
    machine = describe_machine()
    console.print(f"{machine['cpu']}, {machine['cores']} cores, GPU: {machine['gpu']}, torch {machine['torch']}")
    if (load := busy_share()) > QUIET_SHARE:
        console.print(f"This machine is {load:.0%} busy with other things: expect a wide spread.", style="yellow")
    length = "quick" if options.quick else "full"
    seconds = sum(modules[name].SECONDS[length] for name in chosen)
    minutes = f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds} seconds"
    console.print(f"This takes about {minutes} on 2 cores.")
    results: dict[str, StudyResult] = {}
    with _progress(console) as progress:
        task = progress.add_task("", total=seconds)
        for name in chosen:
            progress.update(task, description=name)
            console.print(f"\n[bold]{name}[/bold]: {modules[name].QUESTION}")
            begun = time.monotonic()
            try:
                results[name] = modules[name].run(options.quick)
            except (MissingPackageError, UserError) as error:
                console.print(f"left out: {error}")
            else:
                _show(console, results[name])
                console.print(f"({time.monotonic() - begun:.0f} s)", style="dim")
            progress.advance(task, modules[name].SECONDS[length])
    if options.json:
        options.json.write_text(json.dumps(_as_json(machine, results), indent=2) + "\n")
        console.print(f"\nwritten to {options.json}")
    if options.plots:
        for path in draw_charts(results, options.plots):
            console.print(f"drawn to {path}")
    return 0


def _progress(console: Console) -> Progress:
    """A bar on a terminal, nothing in a file."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console, transient=True
    )


def busy_share() -> float:
    """How much of the machine others use right now."""
    return float(psutil.cpu_percent(interval=1.0)) / 100


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmark_performance.py",
        description="Measure the pipeline's parts on this machine. Timings depend on what else it is doing: "
        "variants are interleaved, and every figure comes with its spread.",
        allow_abbrev=False,
    )
    parser.add_argument("--study", action="append", default=[], metavar="NAME", help="run only this one (repeatable)")
    parser.add_argument("--list", action="store_true", help="name the studies and what they ask")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repeats: 3 minutes in all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to a file")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="also draw each study's ratios as a chart")
    return parser.parse_args(arguments)


def _show(console: Console, result: StudyResult) -> None:
    ratios = Table("figure", "value", "quartiles", "goal", "")
    for name, ratio in result.ratios.items():
        verdict = "" if ratio.reached is None else ("reached" if ratio.reached else "[red]not reached[/red]")
        ratios.add_row(
            name,
            _figure(ratio.value, ratio),
            f"{_figure(ratio.low, ratio)} - {_figure(ratio.high, ratio)}",
            ratio.goal or "",
            verdict,
        )
    console.print(ratios)
    if result.rows:
        rows = Table(*result.rows[0].keys())
        for row in result.rows:
            rows.add_row(*(f"{value:,}" if isinstance(value, int | float) else str(value) for value in row.values()))
        console.print(rows)
    for note in result.notes:
        console.print(note, style="dim")


def _figure(value: float, ratio: Ratio) -> str:
    if ratio.unit == "share":
        return f"{value:.2%}"
    return f"{value:,.0f}" if value >= 100 or ratio.unit == "count" else f"{value:.3g}{UNITS.get(ratio.unit, '')}"


def _as_json(machine: dict[str, str | int], results: dict[str, StudyResult]) -> dict[str, object]:
    studies = {
        name: {
            "rows": result.rows,
            "ratios": {label: ratio._asdict() for label, ratio in result.ratios.items()},
            "notes": result.notes,
        }
        for name, result in results.items()
    }
    return {"machine": machine, "studies": studies}
