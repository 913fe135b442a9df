"""Metrics: named numbers, and the files they go to. Used by the main loop of the learner process only.

A sink that fails (a full disk, no TensorBoard) is reported once and never stops training; it is tried again with every
row, because disks get room again.
"""

import errno
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

Metrics = dict[str, float]  # "group/name" -> value; docs/metrics.md explains each


class Rates:
    """Running totals as rates: how much each grew a second since the last look."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._last_time = time.perf_counter()

    def since(self, totals: dict[str, float]) -> Metrics:
        """The rates, by the totals' names. The first look finds none, and a total that was set back counts as still."""
        now = time.perf_counter()
        seconds = max(1e-9, now - self._last_time)
        rates = {name: max(0.0, total - self._last.get(name, total)) / seconds for name, total in totals.items()}
        self._last, self._last_time = totals, now
        return rates


class MetricSink(Protocol):
    """Where metrics go."""

    def write(self, metrics: Metrics, decisions: int, minutes: float) -> None:
        """One row, as of this many decisions and minutes of the run."""

    def close(self) -> None:
        """No more rows."""


class TensorBoardSink:
    """Writes metrics as an event file, one record a row.

    TensorBoard's own writer has a thread, which dies of a full disk, prints a traceback, and never writes again.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event  # fails where TensorBoard is not installed
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._record_writer = Event, Summary, RecordWriter
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"events.out.tfevents.{time.time():.6f}.mario-rl"
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def write(self, metrics: Metrics, decisions: int, minutes: float) -> None:
        """One row; the step is the number of decisions, which runs with different batch sizes share."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._append(self._event(wall_time=time.time(), step=decisions, summary=self._summary(value=values)))

    def _append(self, event: Any) -> None:
        record = io.BytesIO()
        self._record_writer(record).write(event.SerializeToString())
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            if file.write(record.getvalue()) < record.tell():  # the rest would hide all later rows from TensorBoard
                file.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Nothing is open."""


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
    """A sink whose failures are one sentence for the user and nothing else. It is made by `open`, or with a row."""

    def __init__(self, make_sink: Callable[[], MetricSink], name: str, on_notice: Callable[[str], None]) -> None:
        self._make_sink = make_sink
        self._name = name
        self._on_notice = on_notice
        self._has_failed = False
        self._sink: MetricSink | None = None

    def open(self) -> None:
        """Make the sink, which may take a second: before training begins."""
        with self._forgiving():
            self._sink = self._make_sink()

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
