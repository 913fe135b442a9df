"""The product's whole pipeline, run for a while with learning on, and what its own telemetry says."""

import math
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.cost_split import Costs, CostWatch, Timed
from benchmarks.measure import Sample
from mario_rl.app.wiring import connect
from mario_rl.channels.experience_ring import CollectorStat
from mario_rl.collecting.parallel_source import ParallelSource
from mario_rl.emulation.choosing import choose_emulator
from mario_rl.learning.trainers import LoneTrainer
from mario_rl.machine.facts import has_gpu, num_cores
from mario_rl.settings.choosing import choose_settings
from mario_rl.settings.config_file import load_config_file
from mario_rl.settings.hardware import make_plan, prepare
from mario_rl.settings.settings import Settings
from mario_rl.storage.checkpoints import CheckpointStore
from mario_rl.storage.runs import Run
from mario_rl.telemetry.console import Console
from mario_rl.telemetry.metrics import Metrics, MetricSink
from mario_rl.training.limits import Limits
from mario_rl.training.loop import train
from mario_rl.training.pipeline import Pipeline

PROJECT = Path(__file__).resolve().parent.parent
MAX_CORES = 16  # config_optimized.py uses no more collectors either
# As short as the settings allow with eight emulators a core: it is not what is measured.
SHORT_WARMUP = 150 * min(num_cores(), MAX_CORES)


def gpu_percent() -> float:
    """How busy the GPU is right now; not a number where there is none, or where it cannot be read (pynvml)."""
    try:
        return float(torch.cuda.utilization()) if has_gpu() else math.nan
    except (ModuleNotFoundError, RuntimeError):
        return math.nan


class ProductFigures(NamedTuple):
    """Rates in the measured window, and medians over the epochs that learned."""

    decisions_per_second: float
    updates_per_second: float
    samples_per_second: float
    episodes_per_second: float
    lock_wait_milliseconds: float  # of the ledger's lock, the only one that the main loop and another thread share
    lock_wait_share: float
    sample_wait_share: float  # of its time the main loop waited for the thread that samples and computes targets
    cpu_percent: float
    gpu_percent: float
    learner_wait_share: float  # of its time the learner had nothing to train on
    ring_wait_share: float  # of a collector's time, for a free slot
    throttle_share: float  # of a collector's time, for the replay ratio
    collector_cpu_share: float  # of the machine, all collectors together
    drops: float
    costs_per_decision: Costs  # CPU seconds
    core_shares: Costs  # CPU seconds a second


class _Silent(Console):
    """A study prints its own table; it may listen to what a run would print."""

    def __init__(self, on_line: Callable[[str], None] = lambda text: None) -> None:
        super().__init__()
        self._on_line = on_line

    def line(self, text: str) -> None:
        """Print nothing."""
        self._on_line(text)


class _Recorder:
    """Keeps every row of metrics: of epochs, of evaluations, and the accounts in the end."""

    def __init__(self) -> None:
        self._rows: list[Metrics] = []

    def write(self, metrics: Metrics, decisions: int, minutes: float) -> None:
        """Keep one row."""
        self._rows.append(metrics)

    def close(self) -> None:
        """Nothing to close."""

    @property
    def epochs(self) -> list[Metrics]:
        """Those that learned, without the first, in which everything is touched for the first time; else the last."""
        epochs = [row for row in self._rows if "run/epoch_seconds" in row]
        return [epoch for epoch in epochs if "learner/loss" in epoch][1:] or epochs[-1:]

    def median(self, name: str) -> float:
        """Of an epoch's metric; not a number where there is none."""
        return Sample([epoch.get(name, math.nan) for epoch in self.epochs] or [math.nan]).median


class _Counts(NamedTuple):
    seconds: float
    decisions: float
    updates: float
    samples: float
    episodes: float
    work_wait_seconds: float  # of the main loop
    sample_wait_seconds: float


class _Watch:
    """Looks at a pipeline's counters ten times a second, and stops it when it has learned for long enough."""

    def __init__(self, pipeline: Pipeline, seconds: float, settle_seconds: float) -> None:
        self._pipeline = pipeline
        self._seconds = seconds
        self._settle_seconds = settle_seconds
        self._costs = CostWatch(pipeline, parallel_source(pipeline))
        self._waiting = Timed(pipeline.source.wait_for_work, time.perf_counter)
        pipeline.source.wait_for_work = self._waiting  # type: ignore[method-assign]
        self._window: tuple[_Counts, _Counts] | None = None
        self._window_costs: Costs | None = None
        self.gpu_percents: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._pipeline.learner.num_updates:
            if self._stop.wait(0.1):
                return
        if self._stop.wait(self._settle_seconds):
            return
        first, first_costs = self._counts(), self._costs.read()
        while not self._stop.wait(0.1):
            self.gpu_percents.append(gpu_percent())
            last = self._counts()
            if last.seconds - first.seconds >= self._seconds:
                self._window, self._window_costs = (first, last), self._costs.read().since(first_costs)
                self._pipeline.ledger.request_stop("measured long enough")
                return

    def _counts(self) -> _Counts:
        pipeline = self._pipeline
        return _Counts(
            seconds=time.perf_counter(),
            decisions=pipeline.ledger.collected,
            updates=pipeline.learner.num_updates,
            samples=pipeline.ledger.trained,
            episodes=pipeline.ledger.num_episodes,
            work_wait_seconds=self._waiting.seconds,
            sample_wait_seconds=lone_trainer(pipeline).sample_wait_seconds,
        )

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join()

    def take(self) -> tuple[_Counts, Costs]:
        """What happened in the window, and what it cost."""
        if self._window is None or self._window_costs is None:
            raise RuntimeError("the run ended before it had learned for long enough to be measured")
        first, last = self._window
        return _Counts(*(new - old for new, old in zip(last, first, strict=True))), self._window_costs


def product_settings(changes: Mapping[str, Any] | None = None) -> Settings:
    """The settings as shipped, with some changed; but rewarded by x, as everything is that it is compared with."""
    values, overrides = load_config_file(PROJECT)
    settings = choose_settings(values, overrides, {"PROGRESS": "x", **(changes or {})}, has_gpu=has_gpu).settings
    # Compiled before any clock runs, or every collector would compile for itself while it is measured.
    return settings.changed(EMULATOR=choose_emulator(settings.play.emulator, print))


def product_device(settings: Settings) -> torch.device:
    """Where the product would train with these settings; whatever it is compared with trains there too."""
    return make_plan(settings, serial=False).device


def nes_py_changes() -> dict[str, Any]:
    """What config_optimized.py says for machines on which nes-py plays: all cores collect."""
    cores = min(num_cores(), MAX_CORES)
    return {
        "EMULATOR": "nes_py",
        "NUM_PROCESSES": cores,
        "REP_Q_SIZE": 2_048 * cores,
        "PUBLISH_MAX_DECISIONS": 3_000 - 256 - 128 * cores,
    }


def connect_silently(
    settings: Settings, on_line: Callable[[str], None] = lambda text: None, sinks: Sequence[MetricSink] = ()
) -> Pipeline:
    """The pipeline, ready to start."""
    plan = make_plan(settings, serial=False)
    prepare(plan)
    return connect(settings, plan, _Silent(on_line), sinks, serial=False)


def lone_trainer(pipeline: Pipeline) -> LoneTrainer:
    """The product's trainer, which knows how long it waited."""
    assert isinstance(pipeline.trainer, LoneTrainer)
    return pipeline.trainer


def parallel_source(pipeline: Pipeline) -> ParallelSource:
    """Its collectors, which know more about themselves than the main loop asks for."""
    assert isinstance(pipeline.source, ParallelSource)
    return pipeline.source


def run_product(
    settings: Settings,
    seconds: float,
    weights: Mapping[str, torch.Tensor] | None = None,
    settle_seconds: float = 0.5,  # the first updates touch everything for the first time
) -> ProductFigures:
    """Train, from some weights on where they are given, until it has learned for `seconds`; read the telemetry."""
    recorder = _Recorder()
    with tempfile.TemporaryDirectory() as folder:
        run = Run("benchmark", Path(folder) / "checkpoints", Path(folder) / "models")
        settings = settings.changed(CHECKPOINT_REPLAY=False)  # saving it at the end would only take time
        pipeline = connect_silently(settings, sinks=[recorder])
        if weights is not None:
            pipeline.learner.networks.load_policy(dict(weights))
        watch = _Watch(pipeline, seconds, settle_seconds)
        limits = Limits(epochs=10**9, minutes=5 + seconds / 60)
        store = CheckpointStore(run.checkpoints, keep=1)
        try:
            outcome = train(pipeline, settings.schedule, limits, run, store)
        finally:
            watch.close()
    if outcome.failure is not None:
        raise RuntimeError(outcome.failure)
    counts, costs = watch.take()
    epochs = recorder.epochs
    waits = [epoch["locks/hold_seconds"] * _odds(epoch["locks/contention_ratio"]) for epoch in epochs]
    source = parallel_source(pipeline)
    totals = source.total_stats()
    shares = {
        stat: [stats[stat] / stats[CollectorStat.RUNNING_SECONDS] for stats in totals]
        for stat in (CollectorStat.RING_WAIT_SECONDS, CollectorStat.THROTTLE_SECONDS, CollectorStat.CPU_SECONDS)
    }
    return ProductFigures(
        decisions_per_second=counts.decisions / counts.seconds,
        updates_per_second=counts.updates / counts.seconds,
        samples_per_second=counts.samples / counts.seconds,
        episodes_per_second=counts.episodes / counts.seconds,
        lock_wait_milliseconds=recorder.median("locks/mean_wait_milliseconds"),
        lock_wait_share=sum(waits) / sum(epoch["run/epoch_seconds"] for epoch in epochs) if epochs else math.nan,
        sample_wait_share=counts.sample_wait_seconds / counts.seconds,
        cpu_percent=recorder.median("run/cpu_percent"),
        gpu_percent=Sample(watch.gpu_percents or [math.nan]).median,
        learner_wait_share=counts.work_wait_seconds / counts.seconds,
        ring_wait_share=Sample(shares[CollectorStat.RING_WAIT_SECONDS]).median,
        throttle_share=Sample(shares[CollectorStat.THROTTLE_SECONDS]).median,
        collector_cpu_share=sum(shares[CollectorStat.CPU_SECONDS]) / num_cores(),
        drops=float(source.consolidation.figures.drops),
        costs_per_decision=costs.divided_by(max(1, counts.decisions)),
        core_shares=costs.divided_by(counts.seconds),
    )


def _odds(ratio: float) -> float:
    return ratio / (1.0 - ratio) if ratio < 1.0 else 0.0
