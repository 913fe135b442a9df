"""What the main loop reports: the [MAIN] line, the progress bar, and every metric. Learner process only."""

import time
from collections.abc import Callable, Sequence

import psutil

from mario_rl.accounts.ledger import Ledger
from mario_rl.evaluation.evaluator import Result
from mario_rl.evaluation.results import Totals, summarise
from mario_rl.experience import EpisodeSummary
from mario_rl.telemetry.console import Console, EvaluationFigures, MainFigures, evaluation_line, main_line
from mario_rl.telemetry.locks import LockRules, lock_warning
from mario_rl.telemetry.metrics import Metrics, MetricSink
from mario_rl.training.progress import Progress

# Where every decision has gone: what is written once more when all parts have stopped.
ACCOUNTS = (
    "collectors/restarts",
    "collectors/written_decisions",
    "collectors/lost_decisions",
    "replay/decisions",
    "replay/overwritten_decisions",
)


class Reporter:
    """Asks all parts for their metrics once an epoch; between epochs it only moves the progress bar."""

    def __init__(
        self,
        console: Console,
        sinks: Sequence[MetricSink],
        parts: Sequence[Callable[[], Metrics]],
        ledger: Ledger,
        progress: Progress,
        locks: LockRules,
    ) -> None:
        """`parts` are the functions that give the parts' metrics, with rates since their last call."""
        self._console = console
        self._sinks = sinks
        self._parts = parts
        self._ledger = ledger
        self._progress = progress
        self._locks = locks
        self._last_time = time.perf_counter()
        self._wait_seconds = 0.0
        self._rates = "warming up"
        self._warned_about_lock = False

    def begin(self) -> None:
        """Training starts now: rates count from here, and a resumed run does not start at zero."""
        self._ask_parts()
        self._last_time = time.perf_counter()
        psutil.cpu_percent()  # the first call starts the measurement

    def add_wait(self, seconds: float) -> None:
        """The main loop had nothing to do for this long."""
        self._wait_seconds += seconds

    def notice(self, sentence: str) -> None:
        """Something that the user should know."""
        self._console.line(sentence)

    def epoch(self, episodes: list[EpisodeSummary], minutes: float) -> None:
        """Print the [MAIN] line and write all metrics."""
        metrics = self._ask_parts() | self._time_split() | _means(episodes) | self._lock()
        self._rates = (
            f"{metrics['run/decisions_per_second']:,.0f} decisions/s · "
            f"{metrics['learner/updates_per_second']:,.1f} updates/s"
        )
        self._console.line(
            main_line(
                MainFigures(
                    epoch=self._progress.epoch,
                    loss=metrics.get("learner/loss"),
                    td_error=metrics.get("learner/td_error"),
                    reward=metrics["episodes/reward"],
                    distance=metrics["episodes/distance"],
                    epsilon=metrics["exploration/epsilon"],
                    buffer=int(metrics["replay/rows"]),
                )
            )
        )
        self._write(metrics, self._ledger.collected, minutes)

    def evaluation(self, result: Result, *, is_best: bool) -> None:
        """Print the [EVAL] line and write its metrics."""
        request, evaluations, confirmation = result
        total = summarise(evaluations)
        self._console.line(evaluation_line(EvaluationFigures(request.decisions, request.minutes, *total, is_best)))
        metrics = _evaluation_metrics("evaluation", total)
        if len(evaluations) > 1:
            for evaluation in evaluations:
                metrics |= _evaluation_metrics(f"evaluation_{evaluation.level}", summarise([evaluation]))
            rates = ", ".join(f"{evaluation.level} {evaluation.clear_rate:.0%}" for evaluation in evaluations)
            self._console.line(f"[EVAL] Clear rate by level: {rates}")
        if confirmation is not None:
            confirmed = summarise(confirmation)
            metrics |= _evaluation_metrics("confirmation", confirmed)
            self._console.line(
                f"[EVAL] Confirmation, with starts and seeds that had no part in choosing: {confirmed.clear_rate:.0%} "
                f"of the starts, {confirmed.sticky_clear_rate or 0.0:.0%} with sticky actions"
            )
        self._write(metrics, request.decisions, request.minutes)

    def progress(self, share: float) -> None:
        """Move the bar to `share` of the run."""
        epoch, best = self._progress.epoch, self._progress.best_distance
        self._console.progress(
            share, f"epoch {epoch:,} · {self._ledger.collected:,} decisions · {self._rates} · best {best:,} px"
        )

    def finish(self, minutes: float) -> None:
        """All parts have stopped: the accounts as they stand."""
        accounts = {name: value for name, value in self._ask_parts().items() if name in ACCOUNTS}
        self._write(accounts, self._ledger.collected, minutes)

    def close(self) -> None:
        """Flush the metrics."""
        for sink in self._sinks:
            sink.close()

    def _ask_parts(self) -> Metrics:
        return {name: value for metrics in self._parts for name, value in metrics().items()}

    def _time_split(self) -> Metrics:
        now = time.perf_counter()
        seconds = max(1e-9, now - self._last_time)
        wait_share = self._wait_seconds / seconds
        self._last_time, self._wait_seconds = now, 0.0
        return {
            "run/epoch_seconds": seconds,
            "run/cpu_percent": psutil.cpu_percent(),
            "learner/wait_share": wait_share,
        }

    def _lock(self) -> Metrics:
        report = self._ledger.take_lock_report()
        warning = lock_warning(report, self._locks)
        if warning and not self._warned_about_lock:
            self._warned_about_lock = True
            self._console.line(f"[LOCK] {warning}: the machine may be overloaded, try fewer NUM_PROCESSES.")
        return {
            "locks/mean_wait_milliseconds": report.mean_wait_milliseconds,
            "locks/hold_seconds": report.hold_seconds,
            "locks/contention_ratio": report.contention_ratio,
        }

    def _write(self, metrics: Metrics, decisions: int, minutes: float) -> None:
        for sink in self._sinks:
            sink.write(metrics, decisions, minutes)


def _means(episodes: list[EpisodeSummary]) -> Metrics:
    count = len(episodes)
    return {
        "episodes/reward": sum(episode.reward for episode in episodes) / count,
        "episodes/distance": sum(episode.distance for episode in episodes) / count,
        "episodes/decisions": sum(episode.decisions for episode in episodes) / count,
        "episodes/clear_rate": sum(episode.cleared for episode in episodes) / count,
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
