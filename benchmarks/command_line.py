"""The command line of `benchmark_performance.py`: choose studies, run them, show and keep the results."""

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.measure import MissingPackageError, Ratio, StudyResult
from mario_rl.hardware import describe_machine

STUDIES = ("emulation", "ring", "consolidation", "sampling", "pipeline")
USER_ERROR = 2


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
    if options.json and not options.json.parent.is_dir():
        print(f"error: --json {options.json}: the folder {options.json.parent} does not exist.", file=sys.stderr)
        return USER_ERROR
    console = Console()
    machine = describe_machine()
    console.print(f"{machine['cpu']}, {machine['cores']} cores, GPU: {machine['gpu']}, torch {machine['torch']}")
    results: dict[str, StudyResult] = {}
    for name in options.study or STUDIES:
        console.print(f"\n[bold]{name}[/bold]: {modules[name].QUESTION}")
        begun = time.monotonic()
        try:
            with console.status(f"measuring {name} ..."):
                results[name] = modules[name].run(options.quick)
        except MissingPackageError as missing:
            console.print(f"left out: {missing}")
            continue
        _show(console, results[name])
        console.print(f"({time.monotonic() - begun:.0f} s)", style="dim")
    if options.json:
        options.json.write_text(json.dumps(_as_json(machine, results), indent=2) + "\n")
        console.print(f"\nwritten to {options.json}")
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmark_performance.py",
        description="Measure the pipeline's parts on this machine. Timings depend on what else it is doing: "
        "variants are interleaved, and every figure comes with its spread.",
        allow_abbrev=False,
    )
    parser.add_argument("--study", action="append", default=[], metavar="NAME", help="run only this one (repeatable)")
    parser.add_argument("--list", action="store_true", help="name the studies and what they ask")
    parser.add_argument("--quick", action="store_true", help="fewer repeats: about 2 minutes in all, instead of 10")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to a file")
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
    rows = Table(*result.rows[0].keys())
    for row in result.rows:
        rows.add_row(*(f"{value:,}" if isinstance(value, int | float) else str(value) for value in row.values()))
    console.print(rows)
    for note in result.notes:
        console.print(note, style="dim")


def _figure(value: float, ratio: Ratio) -> str:
    if ratio.unit == "share":
        return f"{value:.2%}"
    return (
        f"{value:,.0f}"
        if value >= 100 or ratio.unit == "count"
        else f"{value:.3g}{ratio.unit if ratio.unit == 'x' else ''}"
    )


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
