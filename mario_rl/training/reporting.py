"""What the main loop reports: the [MAIN] line, the progress bar, and every metric. Learner process only."""

import time

import psutil

from mario_rl.app.wiring import Pipeline
from mario_rl.collecting.sources import CollectorFigures
from mario_rl.evaluation.evaluator import Result
from mario_rl.evaluation.playing import Totals, summarise
from mario_rl.experience import EpisodeSummary
from mario_rl.learning.learner import LearnerFigures
from mario_rl.telemetry.console import Console, EvaluationFigures, MainFigures, evaluation_line, main_line
from mario_rl.telemetry.locks import lock_warning
from mario_rl.telemetry.metrics import Metrics, MetricSink


class Reporter:
    """Gathers figures once an epoch; between epochs it only moves the progress bar."""

    def __init__(self, console: Console, sinks: list[MetricSink]) -> None:
        self._console = console
        self._sinks = sinks
        self._last_time = time.perf_counter()
        self._last_decisions = self._last_updates = 0
        self._last_commit_seconds = 0.0
        self._wait_seconds = 0.0
        self._last_sample_wait_seconds = 0.0
        self._rates = "warming up"
        self._warned_about_lock = False
        self._learner: LearnerFigures | None = None
        psutil.cpu_percent()  # the first call starts the measurement

    def begin(self, pipeline: Pipeline) -> None:
        """Training starts now; a resumed run does not start at zero."""
        self._last_time = time.perf_counter()
        self._last_decisions, self._last_updates = pipeline.ledger.collected, pipeline.learner.num_updates

    def add_wait(self, seconds: float) -> None:
        """The main loop had nothing to do for so long."""
        self._wait_seconds += seconds

    def notice(self, sentence: str) -> None:
        """Something that the user should know."""
        self._console.line(sentence)

    def epoch(self, pipeline: Pipeline, episodes: list[EpisodeSummary], minutes: float) -> None:
        """Print the [MAIN] line and write all metrics."""
        # An epoch may end before the next round of training: then the last figures stand.
        learner = self._learner = pipeline.learner.take_figures() or self._learner
        processor = pipeline.source.consolidation.figures
        metrics = self._speed(pipeline)
        count = len(episodes)
        epsilon = float(pipeline.ladder.epsilons(pipeline.ledger.collected).mean())
        metrics |= {
            "episodes/reward": sum(episode.reward for episode in episodes) / count,
            "episodes/distance": sum(episode.distance for episode in episodes) / count,
            "episodes/decisions": sum(episode.decisions for episode in episodes) / count,
            "episodes/clear_rate": sum(episode.cleared for episode in episodes) / count,
            "episodes/best_distance": pipeline.progress.best_distance,
            "exploration/epsilon": epsilon,
            "replay/rows": processor.buffer,
            "replay/redraws": pipeline.sampler.num_redraws,
            "replay/ratio": pipeline.ledger.trained / max(1, pipeline.ledger.collected),
            "processor/processed": processor.processed,
            "processor/batches": processor.batches,
            "processor/drops": processor.drops,
            "processor/consolidated_queue": processor.consolidated_queue,
            "weights/version": pipeline.slots.version,
            "run/epoch": pipeline.progress.epoch,
            "run/clears": pipeline.progress.num_clears,
        }
        if learner is not None:
            metrics |= {
                "learner/loss": learner.loss,
                "learner/td_error": learner.td_error,
                "learner/q_value": learner.q_value,
                "learner/gradient_norm": learner.gradient_norm,
                "learner/bad_updates": pipeline.learner.num_bad_updates,
            }
        for number, figures in enumerate(pipeline.source.collector_figures()):
            metrics |= _collector_metrics(number, figures)
        metrics |= _accounts(pipeline) | self._lock(pipeline)
        self._console.line(
            main_line(
                MainFigures(
                    pipeline.progress.epoch,
                    learner.loss if learner else None,
                    learner.td_error if learner else None,
                    metrics["episodes/reward"],
                    metrics["episodes/distance"],
                    epsilon,
                    processor.buffer,
                )
            )
        )
        self._write(metrics, pipeline.ledger.collected, minutes)

    def evaluation(self, result: Result, *, is_best: bool) -> None:
        """Print the [EVAL] line and write its metrics."""
        request, evaluations = result
        total = summarise(evaluations)
        self._console.line(evaluation_line(EvaluationFigures(request.decisions, request.minutes, *total, is_best)))
        metrics = _evaluation_metrics("evaluation", total)
        if len(evaluations) > 1:
            for evaluation in evaluations:
                metrics |= _evaluation_metrics(f"evaluation_{evaluation.level}", summarise([evaluation]))
            rates = ", ".join(f"{evaluation.level} {evaluation.clear_rate:.0%}" for evaluation in evaluations)
            self._console.line(f"[EVAL] Clear rate by level: {rates}")
        self._write(metrics, request.decisions, request.minutes)

    def _write(self, metrics: Metrics, decisions: int, minutes: float) -> None:
        for sink in self._sinks:
            sink.write(metrics, decisions, minutes)

    def progress(self, pipeline: Pipeline, share: float) -> None:
        """Move the bar to `share` of the run."""
        progress, decisions = pipeline.progress, pipeline.ledger.collected
        self._console.progress(
            share,
            f"epoch {progress.epoch:,} · {decisions:,} decisions · {self._rates} · best {progress.best_distance:,} px",
        )

    def finish(self, pipeline: Pipeline, minutes: float) -> None:
        """Everybody has stopped: the accounts as they stand."""
        self._write(_accounts(pipeline), pipeline.ledger.collected, minutes)

    def close(self) -> None:
        """Flush the metrics."""
        for sink in self._sinks:
            sink.close()

    def _speed(self, pipeline: Pipeline) -> Metrics:
        now = time.perf_counter()
        seconds = max(1e-9, now - self._last_time)
        decisions = pipeline.ledger.collected - self._last_decisions
        updates = max(0, pipeline.learner.num_updates - self._last_updates)  # a checkpoint may have set it back
        commit_seconds = pipeline.source.consolidation.busy_seconds
        sample_wait_seconds = pipeline.trainer.sample_wait_seconds
        rules = pipeline.learner.rules
        metrics = {
            "run/decisions_per_second": decisions / seconds,
            "run/epoch_seconds": seconds,
            "run/cpu_percent": psutil.cpu_percent(),
            "learner/updates_per_second": updates / seconds,
            "learner/samples_per_second": updates * rules.batch_size * rules.accumulation_steps / seconds,
            "learner/wait_share": self._wait_seconds / seconds,
            "learner/sample_wait_share": (sample_wait_seconds - self._last_sample_wait_seconds) / seconds,
            "processor/busy_share": (commit_seconds - self._last_commit_seconds) / seconds,
        }
        self._rates = f"{decisions / seconds:,.0f} decisions/s · {updates / seconds:,.1f} updates/s"
        self._last_time, self._last_decisions, self._last_updates = (
            now,
            pipeline.ledger.collected,
            pipeline.learner.num_updates,
        )
        self._last_commit_seconds, self._wait_seconds = commit_seconds, 0.0
        self._last_sample_wait_seconds = sample_wait_seconds
        return metrics

    def _lock(self, pipeline: Pipeline) -> Metrics:
        report = pipeline.ledger.take_lock_report()
        settings = pipeline.settings
        warning = lock_warning(report, settings.lock_warn_milliseconds, settings.lock_warn_ratio)
        if warning and not self._warned_about_lock:
            self._warned_about_lock = True
            self._console.line(f"[LOCK] {warning}: the machine may be overloaded, try fewer NUM_PROCESSES.")
        return {
            "locks/mean_wait_milliseconds": report.mean_wait_milliseconds,
            "locks/hold_seconds": report.hold_seconds,
            "locks/contention_ratio": report.contention_ratio,
        } | pipeline.trainer.take_lock_metrics()


def _accounts(pipeline: Pipeline) -> Metrics:
    """Where every decision has gone. While collectors play, they may be a commit apart."""
    source, replay = pipeline.source, pipeline.replay
    return {
        "collectors/restarts": source.num_restarts,
        "collectors/written_decisions": source.num_written,
        "collectors/lost_decisions": source.num_lost,
        "replay/decisions": replay.num_decisions,
        "replay/overwritten_decisions": replay.num_overwritten,
    }


def _evaluation_metrics(group: str, total: Totals) -> Metrics:
    metrics = {
        f"{group}/clear_rate": total.clear_rate,
        f"{group}/distance": total.mean_distance,
        f"{group}/reward": total.mean_reward,
    }
    if total.sticky_clear_rate is not None:
        metrics[f"{group}/sticky_clear_rate"] = total.sticky_clear_rate
    return metrics


def _collector_metrics(number: int, figures: CollectorFigures) -> Metrics:
    return {f"collector_{number}/{name}": float(value) for name, value in figures._asdict().items()}
