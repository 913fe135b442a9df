"""Metrics: named numbers, and the files they go to. Used by the main loop of the learner process only.

A sink that fails (a full disk, no TensorBoard) is reported once and never stops training; it is tried again with every
row, because disks get room again.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

Metrics = dict[str, float]  # "group/name" -> value; docs/metrics.md explains each


class MetricSink(Protocol):
    """Where metrics go."""

    def write(self, metrics: Metrics, decisions: int, minutes: float) -> None:
        """One row, after so many decisions and minutes of the run."""

    def close(self) -> None:
        """No more rows."""


class TensorBoardSink:
    """Writes metrics as event files. TensorBoard's own thread does the disk work."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter  # fails where TensorBoard is not installed

        self._writer = SummaryWriter(str(folder), flush_secs=10)

    def write(self, metrics: Metrics, decisions: int, minutes: float) -> None:
        """One row; the step is the number of decisions, which runs with different batch sizes share."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, decisions)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


class JsonLinesSink:
    """Writes each row as a line of JSON: {"decisions": ..., "minutes": ..., "metrics": {...}}."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_broken = False  # in the middle of a line

    def write(self, metrics: Metrics, decisions: int, minutes: float) -> None:
        """One row."""
        # Counts stay exact; of measurements, six digits are more than enough.
        rounded = {name: int(v) if float(v).is_integer() else float(f"{v:.6g}") for name, v in metrics.items()}
        line = json.dumps({"decisions": decisions, "minutes": round(minutes, 4), "metrics": rounded}) + "\n"
        was_broken, self._is_broken = self._is_broken, True
        # Opened for each line: a run in progress can be plotted, and a disk that was full is no matter once it is not.
        with self._path.open("a") as file:
            file.write("\n" * was_broken + line)
        self._is_broken = False

    def close(self) -> None:
        """Nothing is open."""


class ForgivingSink:
    """A sink whose failures are one sentence for the user and nothing else."""

    def __init__(self, make_sink: Callable[[], MetricSink], name: str, on_notice: Callable[[str], None]) -> None:
        self._make_sink = make_sink
        self._name = name
        self._on_notice = on_notice
        self._has_failed = False
        self._sink: MetricSink | None = None
        with self._forgiving():
            self._sink = make_sink()

    def write(self, metrics: Metrics, decisions: int, minutes: float) -> None:
        """One row, if it can be written."""
        with self._forgiving():
            self._sink = self._sink or self._make_sink()
            self._sink.write(metrics, decisions, minutes)

    def close(self) -> None:
        """No more rows."""
        if self._sink is not None:
            with self._forgiving():
                self._sink.close()

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever a disk or a library may raise
            if not self._has_failed:
                self._has_failed = True
                self._on_notice(f"[METRICS] {self._name} cannot be written ({error}); training goes on without it.")
