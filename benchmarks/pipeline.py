"""The whole pipeline at its default settings, learning on: what it does a second, and who waits for whom."""

import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.measure import Sample, StudyResult, at_most
from mario_rl.channels.experience_ring import CollectorStat
from mario_rl.checkpoints import CheckpointStore
from mario_rl.command_line import PROJECT
from mario_rl.config import choose_settings
from mario_rl.emulation.choosing import choose_emulator
from mario_rl.hardware import has_gpu, make_plan, num_cores, prepare
from mario_rl.pipeline import connect
from mario_rl.reporting import Reporter
from mario_rl.runs import Run
from mario_rl.session import load_config_file
from mario_rl.telemetry.console import Console
from mario_rl.telemetry.metrics import Metrics
from mario_rl.training import Limits, train

QUESTION = "Who waits for whom in the whole pipeline at its default settings?"


class _Silent(Console):
    """A study prints its own table."""

    def line(self, text: str) -> None:
        """Nothing."""


class _Recorder:
    """Keeps every epoch's metrics."""

    def __init__(self) -> None:
        self.epochs: list[Metrics] = []

    def write(self, metrics: Metrics, decisions: int, minutes: float) -> None:
        """Keep one row."""
        self.epochs.append(metrics)

    def close(self) -> None:
        """Nothing to close."""


def run(quick: bool) -> StudyResult:
    """Train for a while and read the telemetry."""
    values, overrides = load_config_file(PROJECT)
    settings = choose_settings(values, overrides, {}, has_gpu=has_gpu).settings
    recorder = _Recorder()
    console = _Silent()
    # Compiled before the clock runs, or every collector would compile for itself while it is measured.
    settings = replace(settings, emulator=choose_emulator(settings.emulator, console.line))
    with tempfile.TemporaryDirectory() as folder:
        run_ = Run("benchmark", Path(folder) / "checkpoints", Path(folder) / "models")
        plan = make_plan(settings, serial=False)
        prepare(plan)
        pipeline = connect(settings, plan, console, serial=False)
        store = CheckpointStore(run_.checkpoints, keep=1)
        limits = Limits(epochs=10**9, minutes=0.75 if quick else 4.0)
        train(pipeline, limits, run_, store, Reporter(console, [recorder]))
    learning = [epoch for epoch in recorder.epochs if "learner/loss" in epoch][1:] or recorder.epochs
    ring_waits, throttle_waits = [], []
    for stats in pipeline.source.total_stats():
        ring_waits.append(stats[CollectorStat.RING_WAIT_SECONDS] / stats[CollectorStat.RUNNING_SECONDS])
        throttle_waits.append(stats[CollectorStat.THROTTLE_SECONDS] / stats[CollectorStat.RUNNING_SECONDS])
    cpu_shares = [
        stats[CollectorStat.CPU_SECONDS] / stats[CollectorStat.RUNNING_SECONDS] / num_cores()
        for stats in pipeline.source.total_stats()
    ]
    drops = float(pipeline.source.consolidation.figures.drops)
    names = (
        "run/decisions_per_second",
        "learner/updates_per_second",
        "learner/samples_per_second",
        "learner/wait_share",
        "processor/busy_share",
        "locks/mean_wait_milliseconds",
        "locks/contention_ratio",
        "run/cpu_percent",
    )
    samples = {name: Sample([epoch[name] for epoch in learning]) for name in names}
    rows = [
        {
            "metric": name,
            "median of epochs": f"{sample.median:,.4g}",
            "quartiles": f"{sample.low:,.4g} - {sample.high:,.4g}",
        }
        for name, sample in samples.items()
    ]
    rows.append(
        {
            "metric": "share of collectors' time waiting for the replay ratio",
            "median of epochs": f"{Sample(throttle_waits).median:.2%}",
            "quartiles": "",
        }
    )
    return StudyResult(
        rows,
        {
            "share of collectors' time waiting for a ring": at_most(Sample(ring_waits), 0.01, "share"),
            "share of the CPU that collectors use": at_most(Sample([sum(cpu_shares)]), 0.15, "share"),
            "dropped experiences": at_most(Sample([drops]), 0.0, "count"),
        },
        [f"{len(recorder.epochs)} epochs, {pipeline.ledger.collected:,} decisions; rates are of epochs that learned."],
    )
