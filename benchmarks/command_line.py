"""The command line of `benchmark_performance.py`: choose studies, run them, show and keep the results."""

import argparse
import importlib
import multiprocessing
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.charts import draw_chart
from benchmarks.destinations import check_json, check_plots
from benchmarks.measure import MissingPackageError, first_line
from benchmarks.noise import QUIET_SHARE, NoiseWatch, busy_share
from benchmarks.report import DOCS, write_report
from benchmarks.results import ResultsFile, show
from mario_rl.errors import UserError
from mario_rl.machine.facts import describe_machine
from mario_rl.storage.runs import git_commit

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
FAILED = 1
USER_ERROR = 2
INTERRUPTED = 130  # 128 + SIGINT, as a shell says it


def main(arguments: list[str] | None = None) -> int:
    """Run studies. The exit code: a threshold that is not reached is a result, not an error.

    0, also where a package was missing; 1 when a study failed; 2 for wrong input; 130 after Ctrl-C.
    """
    options = _parse(arguments)
    modules = study_modules()
    if options.list:
        for name, module in modules.items():
            print(f"{name:15} {module.QUESTION}")
        return 0
    try:
        if options.report:
            print(f"written to {write_report(modules, DOCS)}")
            return 0
        _check(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return USER_ERROR
    chosen = {name: modules[name] for name in options.study or STUDIES}
    console = Console() if sys.stdout.isatty() else Console(width=120)
    machine = describe_machine()
    console.print(f"{machine['cpu']}, {machine['cores']} cores, GPU: {machine['gpu']}, torch {machine['torch']}")
    if (load := busy_share()) > QUIET_SHARE:
        console.print(f"This machine is {load:.0%} busy with other things: expect a wide spread.", style="yellow")
    length = "quick" if options.quick else "full"
    seconds = sum(module.SECONDS[length] for module in chosen.values())
    minutes = f"{seconds / 60:.0f} minutes" if seconds > 90 else f"{seconds} seconds"
    console.print(f"This takes about {minutes} on 2 cores.")
    results = ResultsFile(options.json, machine, git_commit(), quick=options.quick)
    session = _Session(console, results, options.plots, options.quick)
    try:
        with _progress(console) as progress:
            task = progress.add_task("", total=seconds)
            for name, module in chosen.items():
                progress.update(task, description=name)
                session.run(name, module)
                progress.advance(task, module.SECONDS[length])
    except KeyboardInterrupt:
        console.print("\ninterrupted: what was measured before this study is kept.", style="yellow")
        return INTERRUPTED
    if options.json:
        console.print(f"\nwritten to {options.json}", markup=False)
    return FAILED if session.has_failed else 0


def study_modules() -> dict[str, Any]:
    """Each has a QUESTION, what it TEACHES, the SECONDS that it takes, and `run`."""
    return {name: importlib.import_module(f"benchmarks.{name}") for name in STUDIES}


class _Session:
    """Runs one study after the other; what goes wrong in one is told, and the next begins."""

    def __init__(self, console: Console, results: ResultsFile, plots: Path | None, quick: bool) -> None:
        self._console = console
        self._results = results
        self._plots = plots
        self._quick = quick
        self.has_failed = False

    def run(self, name: str, module: Any) -> None:
        """Measure, show and keep one study."""
        self._console.print(f"\n[bold]{name}[/bold]: {module.QUESTION}")
        watch, begun = NoiseWatch(), time.monotonic()
        try:
            result = module.run(self._quick)
        except (MissingPackageError, UserError) as error:
            self._leave_out(name, f"left out: {error}")
            return
        except Exception as error:  # whatever it is, the other studies have nothing to do with it
            traceback.print_exc()
            self.has_failed = True
            self._leave_out(name, f"failed: {type(error).__name__}: {first_line(error)}")
            return
        finally:
            _end_children()
        seconds, noise = time.monotonic() - begun, watch.noise()
        show(self._console, result)
        self._console.print(f"({seconds:.0f} s; {noise})", style="dim")
        if noise.is_loud:
            self._console.print("The machine was noisy while this ran: trust it less.", style="yellow")
        try:
            self._results.add(name, result, noise, seconds)
            if self._plots is not None and (path := draw_chart(name, result, self._plots)):
                self._console.print(f"drawn to {path}", markup=False)
        except OSError as error:
            self._cannot_keep(error)

    def _leave_out(self, name: str, reason: str) -> None:
        self._console.print(reason, markup=False)
        try:
            self._results.leave_out(name, reason)
        except OSError as error:
            self._cannot_keep(error)

    def _cannot_keep(self, error: OSError) -> None:
        """A full disk must not end an hour of measuring: the tables are on the screen."""
        self.has_failed = True
        self._console.print(f"failed: this could not be written ({error.strerror or error})", markup=False)


def _end_children() -> None:
    """A study that failed may leave processes, which would disturb the next one. Collectors ignore SIGTERM."""
    for child in multiprocessing.active_children():
        child.kill()
        child.join()


def _check(options: argparse.Namespace) -> None:
    unknown = [name for name in options.study if name not in STUDIES]
    if unknown:
        raise UserError(f"--study {unknown[0]}: there are {', '.join(STUDIES)}.")
    if options.json is not None:
        check_json(options.json)
    if options.plots is not None:
        check_plots(options.plots)


def _progress(console: Console) -> Progress:
    """A bar on a terminal, nothing in a file."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console, transient=True
    )


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmark_performance.py",
        description="Measure the pipeline's parts on this machine. Timings depend on what else it is doing: "
        "variants are interleaved, and every figure comes with its spread.",
        allow_abbrev=False,
    )
    parser.add_argument("--study", action="append", default=[], metavar="NAME", help="run only this one (repeatable)")
    parser.add_argument("--list", action="store_true", help="name the studies and what they ask")
    parser.add_argument(
        "--report",
        action="store_true",
        help="measure nothing: write docs/benchmarks.md and its charts out of docs/benchmarks.json",
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter repeats: 3 minutes in all")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write the results to a file, after each study; other studies that it holds already stay in it",
    )
    parser.add_argument("--plots", type=Path, metavar="DIR", help="also draw each study's ratios as a chart")
    return parser.parse_args(arguments)
