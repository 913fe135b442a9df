"""Metrics: named numbers, and the files they go to. Used by the main loop of the learner process only."""

import json
from pathlib import Path
from typing import Protocol

from torch.utils.tensorboard.writer import SummaryWriter

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
        self._file = path.open("a", buffering=1)  # every line at once: a run in progress can be plotted

    def write(self, metrics: Metrics, decisions: int, minutes: float) -> None:
        """One row."""
        rounded = {name: float(f"{value:.6g}") for name, value in metrics.items()}
        self._file.write(json.dumps({"decisions": decisions, "minutes": round(minutes, 4), "metrics": rounded}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()
