"""What the user sees: plain lines, and on a terminal a progress bar below them."""

import os
import sys
from types import TracebackType
from typing import NamedTuple

from rich.console import Console as RichConsole
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class MainFigures(NamedTuple):
    """The [MAIN] line: one epoch."""

    epoch: int
    loss: float | None  # None before learning begins
    td_error: float | None
    reward: float
    distance: float
    epsilon: float
    buffer: int


def main_line(figures: MainFigures) -> str:
    """The [MAIN] line as text."""
    loss = "warming up" if figures.loss is None else f"{figures.loss:.4f}"
    td_error = "warming up" if figures.td_error is None else f"{figures.td_error:.4f}"
    return (
        f"[MAIN] Epoch: {figures.epoch:,} | Loss: {loss} | TD Error: {td_error} | Reward: {figures.reward:,.1f} | "
        f"Distance: {figures.distance:,.0f} | Epsilon: {figures.epsilon:.3f} | Buffer: {figures.buffer:,}"
    )


def processor_line(processed: int, batches: int, drops: int, buffer: int, consolidated_queue: int) -> str:
    """The [PROCESSOR] line as text."""
    return (
        f"[PROCESSOR] Processed: {processed:,} | Batches: {batches:,} | Drops: {drops:,} | Buffer: {buffer:,} | "
        f"Consolidated Queue: {consolidated_queue:,}"
    )


class EvaluationFigures(NamedTuple):
    """The [EVAL] line: one evaluation of the newest policy."""

    decisions: int
    minutes: float
    clear_rate: float
    sticky_clear_rate: float | None  # None where that was not tried
    distance: float
    reward: float
    is_best: bool


def evaluation_line(figures: EvaluationFigures) -> str:
    """The [EVAL] line as text."""
    sticky = "not tried" if figures.sticky_clear_rate is None else f"{figures.sticky_clear_rate:.0%}"
    return (
        f"[EVAL] Decisions: {figures.decisions:,} | Minutes: {figures.minutes:.1f} | "
        f"Clear Rate: {figures.clear_rate:.0%} | Sticky: {sticky} | Distance: {figures.distance:,.0f} | "
        f"Reward: {figures.reward:,.1f}" + (" | Best so far" if figures.is_best else "")
    )


class Console:
    """Lines for everyone, a progress bar for terminals. Safe to use from several threads."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        if sys.stdout.isatty():
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeElapsedColumn(),
                console=RichConsole(),
                transient=True,
                expand=True,
            )
            self._task = self._progress.add_task("starting", total=1.0)

    def __enter__(self) -> "Console":
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def line(self, text: str) -> None:
        """Print a line. A reader that has gone away (`| head`) is no reason to stop training."""
        try:
            if self._progress is not None:
                self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                print(text, flush=True)
        except OSError:  # the pipe is closed, the terminal is gone, or the disk of a redirected log is full
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (stays open until the end)

    def progress(self, share: float, description: str) -> None:
        """Move the bar; without a terminal, nothing."""
        if self._progress is not None:
            self._progress.update(self._task, completed=min(1.0, share), description=description)
