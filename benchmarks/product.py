"""The product's whole pipeline, run for a while with learning on, and what its own telemetry says."""

import math
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.measure import Sample
from mario_rl.channels.experience_ring import CollectorStat
from mario_rl.checkpoints import CheckpointStore
from mario_rl.config import Settings, choose_settings
from mario_rl.emulation.choosing import choose_emulator
from mario_rl.hardware import has_gpu, make_plan, num_cores, prepare
from mario_rl.pipeline import Pipeline, connect
from mario_rl.reporting import Reporter
from mario_rl.runs import Run
from mario_rl.session import load_config_file
from mario_rl.telemetry.console import Console
from mario_rl.telemetry.metrics import Metrics
from mario_rl.training import Limits, train

PROJECT = Path(__file__).resolve().parent.parent
MAX_CORES = 16  # config_optimized.py uses no more collectors either
# As short as the settings allow with eight emulators a core: it is not what is measured.
SHORT_WARMUP = 150 * min(num_cores(), MAX_CORES)


def gpu_percent() -> float:
    """How busy the GPU is right now; not a number where there is none, or where nobody can tell (pynvml)."""
    try:
        return float(torch.cuda.utilization()) if has_gpu() else math.nan
    except (ModuleNotFoundError, RuntimeError):
        return math.nan


class ProductFigures(NamedTuple):
    """Medians over the epochs that learned."""

    decisions_per_second: float
    updates_per_second: float
    samples_per_second: float
    lock_wait_milliseconds: float
    lock_wait_share: float
    epoch_seconds: float
    cpu_percent: float
    gpu_percent: float
    learner_wait_share: float  # of its time the learner had nothing to train on
    ring_wait_share: float  # of a collector's time, for a free slot
    throttle_share: float  # of a collector's time, for the replay ratio
    collector_cpu_share: float  # of the machine, all collectors together
    drops: float


class _Silent(Console):
    """A study prints its own table; it may listen to what a run would print."""

    def __init__(self, on_line: Callable[[str], None] = lambda text: None) -> None:
        super().__init__()
        self._on_line = on_line

    def line(self, text: str) -> None:
        """Print nothing."""
        self._on_line(text)


class _Recorder:
    """Keeps every epoch's metrics."""

    def __init__(self) -> None:
        self.epochs: list[Metrics] = []

    def write(self, metrics: Metrics, decisions: int, minutes: float) -> None:
        """Keep one row."""
        self.epochs.append(metrics)

    def close(self) -> None:
        """Nothing to close."""


class _Watch:
    """Looks at a pipeline's counters ten times a second, and stops it when it has learned for so many seconds."""

    def __init__(self, pipeline: Pipeline, seconds: float) -> None:
        self._pipeline = pipeline
        self._seconds = seconds
        self._marks: list[tuple[float, int, int, int]] = []
        self.gpu_percents: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            ledger = self._pipeline.ledger
            updates = self._pipeline.learner.num_updates
            self._marks.append((time.perf_counter(), ledger.collected, updates, ledger.trained))
            learning = self._learning()
            self.gpu_percents.append(gpu_percent())
            if learning and learning[-1][0] - learning[0][0] >= self._seconds:
                ledger.request_stop("measured long enough")
                return

    def _learning(self) -> list[tuple[float, int, int, int]]:
        """From half a second after the first update on."""
        return [mark for mark in self._marks if mark[2]][5:]

    def rates(self) -> tuple[float, float, float]:
        """Decisions, updates and samples a second."""
        self._stop.set()
        self._thread.join()
        learning = self._learning() or self._marks[-2:]
        (begun, *before), (ended, *after) = learning[0], learning[-1]
        decisions, updates, samples = (
            (new - old) / max(1e-9, ended - begun) for new, old in zip(after, before, strict=True)
        )
        return decisions, updates, samples


def product_settings(changes: Mapping[str, Any] | None = None) -> Settings:
    """The settings as shipped, with some changed."""
    values, overrides = load_config_file(PROJECT)
    settings = choose_settings(values, overrides, changes or {}, has_gpu=has_gpu).settings
    # Compiled before any clock runs, or every collector would compile for itself while it is measured.
    return replace(settings, emulator=choose_emulator(settings.emulator, print))


def nes_py_changes() -> dict[str, Any]:
    """What config_optimized.py says for machines on which nes-py plays: all cores collect."""
    cores = min(num_cores(), MAX_CORES)
    return {
        "EMULATOR": "nes_py",
        "NUM_PROCESSES": cores,
        "REP_Q_SIZE": 2_048 * cores,
        "PUBLISH_MAX_DECISIONS": 3_000 - 256 - 128 * cores,
    }


def connect_silently(settings: Settings, on_line: Callable[[str], None] = lambda text: None) -> Pipeline:
    """The pipeline, ready to start."""
    plan = make_plan(settings, serial=False)
    prepare(plan)
    return connect(settings, plan, _Silent(on_line), serial=False)


def run_product(settings: Settings, seconds: float) -> ProductFigures:
    """Train until it has learned for so long, and read the telemetry."""
    recorder = _Recorder()
    with tempfile.TemporaryDirectory() as folder:
        run = Run("benchmark", Path(folder) / "checkpoints", Path(folder) / "models")
        settings = replace(settings, checkpoint_replay=False)  # saving it at the end would only take time
        pipeline = connect_silently(settings)
        watch = _Watch(pipeline, seconds)
        limits = Limits(epochs=10**9, minutes=5 + seconds / 60)
        train(pipeline, limits, run, CheckpointStore(run.checkpoints, keep=1), Reporter(_Silent(), [recorder]))
        decisions, updates, samples = watch.rates()
    # The first epoch that learned is also the one in which everything was touched for the first time.
    epochs = [epoch for epoch in recorder.epochs if "learner/loss" in epoch][1:] or recorder.epochs[-1:]

    def median(name: str) -> float:
        return Sample([epoch[name] for epoch in epochs]).median if epochs else math.nan

    waits = [epoch["locks/hold_seconds"] * _odds(epoch["locks/contention_ratio"]) for epoch in epochs]
    totals = pipeline.source.total_stats()
    shares = {
        stat: [stats[stat] / stats[CollectorStat.RUNNING_SECONDS] for stats in totals]
        for stat in (CollectorStat.RING_WAIT_SECONDS, CollectorStat.THROTTLE_SECONDS, CollectorStat.CPU_SECONDS)
    }
    return ProductFigures(
        decisions_per_second=decisions,
        updates_per_second=updates,
        samples_per_second=samples,
        lock_wait_milliseconds=median("locks/mean_wait_milliseconds"),
        lock_wait_share=sum(waits) / sum(epoch["run/epoch_seconds"] for epoch in epochs) if epochs else math.nan,
        epoch_seconds=median("run/epoch_seconds"),
        cpu_percent=median("run/cpu_percent"),
        gpu_percent=Sample(watch.gpu_percents[5:] or [math.nan]).median,
        learner_wait_share=median("learner/wait_share"),
        ring_wait_share=Sample(shares[CollectorStat.RING_WAIT_SECONDS]).median,
        throttle_share=Sample(shares[CollectorStat.THROTTLE_SECONDS]).median,
        collector_cpu_share=sum(shares[CollectorStat.CPU_SECONDS]) / num_cores(),
        drops=float(pipeline.source.consolidation.figures.drops),
    )


def _odds(ratio: float) -> float:
    return ratio / (1.0 - ratio) if ratio < 1.0 else 0.0
