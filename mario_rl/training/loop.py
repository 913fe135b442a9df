"""The training loop, from top to bottom. Runs in the main thread of the learner process."""

import functools
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from mario_rl.evaluation.evaluator import Result, unpack_weights
from mario_rl.evaluation.results import summarise
from mario_rl.storage.checkpoints import CheckpointStore, SaveAbandonedError
from mario_rl.storage.runs import Run, command_line, git_commit, read_search
from mario_rl.training.limits import Limits
from mario_rl.training.pipeline import Pipeline
from mario_rl.training.schedule import ScheduleRules


class Outcome(NamedTuple):
    """How a session of training ended."""

    reason: str
    decisions: int
    epochs: int
    minutes: float  # of the whole run
    best_distance: int
    num_restarts: int  # of collectors
    num_lost: int  # decisions that were in their rings
    failure: str | None


@dataclass(frozen=True)
class _Clock:
    """The time of this session, and of the whole run."""

    seconds_before: float  # of earlier sessions
    begun: float = field(default_factory=time.monotonic)

    @property
    def session_seconds(self) -> float:
        return time.monotonic() - self.begun

    @property
    def run_seconds(self) -> float:
        return self.seconds_before + self.session_seconds


def train(pipeline: Pipeline, schedule: ScheduleRules, limits: Limits, run: Run, store: CheckpointStore) -> Outcome:
    """Train until a limit, a stop request or a failure; then stop all parts and save, whatever the reason."""
    learner, ledger, progress = pipeline.learner, pipeline.ledger, pipeline.progress
    clock = _Clock(progress.training_seconds)

    def save(should_abandon: Callable[[], bool] = lambda: False) -> str | None:
        """Write a checkpoint and the newest policy; why that was not possible, if so."""
        progress.training_seconds = clock.run_seconds
        if not learner.networks.is_finite():
            return "No checkpoint was written, because the weights are not finite numbers; the one before it is kept"
        try:
            pipeline.trainer.settle()
            pipeline.saver.save(store, is_best=progress.has_unsaved_best, should_abandon=should_abandon)
            progress.has_unsaved_best = False
        except SaveAbandonedError:
            return None  # the run was asked to stop, and saves once more when all parts have stopped
        except OSError as error:
            return f"No checkpoint could be written ({error.strerror or error}); the one before it is kept"
        card = _card(run, ledger.collected, progress.training_seconds / 60)
        return pipeline.saver.export(run.newest_model, learner.networks.averaged.state_dict(), card)

    failure = None
    try:
        save_now_and_then = functools.partial(save, pipeline.source.is_stopping)
        reason = _train_until_done(pipeline, schedule, limits, clock, run, store, save_now_and_then)
    finally:
        try:
            pipeline.stop()
        finally:
            failure = save()
    minutes = progress.training_seconds / 60
    pipeline.reporter.finish(minutes)
    return Outcome(
        reason=reason,
        decisions=ledger.collected,
        epochs=progress.epoch,
        minutes=minutes,
        best_distance=progress.best_distance,
        num_restarts=pipeline.source.num_restarts,
        num_lost=pipeline.source.num_lost,
        failure=ledger.failure or failure,
    )


def _train_until_done(
    pipeline: Pipeline,
    schedule: ScheduleRules,
    limits: Limits,
    clock: _Clock,
    run: Run,
    store: CheckpointStore,
    save: Callable[[], str | None],
) -> str:
    """The loop; why it ended."""
    ledger, flow, progress, reporter = pipeline.ledger, pipeline.flow, pipeline.progress, pipeline.reporter
    learner, source, publisher = pipeline.learner, pipeline.source, pipeline.publisher
    evaluator, averaged = pipeline.evaluator, pipeline.learner.networks.averaged

    def may_train() -> bool:
        # While a policy is confirmed that probably ends the run, the machine is the evaluator's.
        return not evaluator.is_confirming and flow.may_train(ledger.collected, ledger.trained)

    def epoch_is_over() -> bool:
        return ledger.num_episodes - progress.num_episodes >= schedule.episodes_per_epoch

    def publish_is_due() -> bool:
        return (
            progress.epoch - progress.published_epoch >= schedule.model_update_frequency
            or ledger.collected - progress.published_decisions >= schedule.publish_max_decisions
        )

    def evaluation_is_due() -> bool:
        return (
            0 < schedule.evaluation_decisions <= ledger.collected - progress.evaluated_decisions
            and learner.num_updates > 0
            and evaluator.is_idle
        )

    def limit_reached() -> str | None:
        return limits.reached(progress.epoch, ledger.collected, clock.session_seconds)

    def there_is_work() -> bool:
        return (
            may_train()
            or epoch_is_over()
            or evaluator.has_results
            or ledger.collected > shown_decisions
            or bool(limit_reached())
        )

    shown_decisions = -1  # as of the last round; -1 lets the first round come at once, with what a resume left undone
    if publisher.version == 0:  # unless a resumed serial run has brought back what its collector acts with
        publisher.publish(learner.num_updates)
    pipeline.start()
    reporter.begin()
    source.limit_collection(flow.collection_limit(ledger.trained))

    while True:
        # Sleep (or, in serial mode, play) until there is something to do or to show.
        remaining = None if limits.minutes is None else max(0.0, limits.minutes * 60 - clock.session_seconds)
        waited_since = time.perf_counter()
        source.wait_for_work(there_is_work, remaining)
        reporter.add_wait(time.perf_counter() - waited_since)
        if reason := ledger.stop_reason or limit_reached():
            return reason

        # One round: sample calls, micro-batches, optimizer steps. Sampling happens one batch ahead in its own thread.
        if may_train():
            learner.set_learning_rate(ledger.collected)
            ledger.add_trained(pipeline.trainer.train())
            if pipeline.recovery.is_due:
                reporter.notice(pipeline.recovery.recover(store))
            source.limit_collection(flow.collection_limit(ledger.trained))

        # Epochs are counted in finished episodes, so they also pass while replay is still warming up.
        save_is_due = False
        while epoch_is_over() and progress.epoch < limits.epochs:
            episodes = ledger.take_episodes(schedule.episodes_per_epoch)
            progress.add_epoch(episodes)
            reporter.epoch(episodes, clock.run_seconds / 60)
            save_is_due |= progress.epoch % schedule.checkpoint_epochs == 0
            if schedule.cache_clear_epochs and progress.epoch % schedule.cache_clear_epochs == 0:
                torch.cuda.empty_cache()  # does nothing without a GPU

        # Collectors get the new weights between two of their chunks.
        if publish_is_due():
            publisher.publish(learner.num_updates)
            progress.published_epoch, progress.published_decisions = progress.epoch, ledger.collected

        # Evaluations are played elsewhere: here they are asked for, and their results noted.
        if evaluation_is_due():
            progress.evaluated_decisions = ledger.collected
            evaluator.request(ledger.collected, clock.run_seconds / 60, averaged.state_dict())
        while (result := evaluator.take_result()) is not None:
            score = summarise(result.evaluations).score
            confirmation = None if result.confirmation is None else summarise(result.confirmation).score
            is_best = progress.add_evaluation(score)
            save_is_due |= is_best  # or a crash would make it forget how good the best was
            reporter.evaluation(result, is_best=is_best)
            reason = limits.learned(score, confirmation)
            if (is_best or reason) and (trouble := _export_best(pipeline, run, result)):
                reporter.notice(f"[EVAL] {trouble}; training goes on.")
            if reason:
                return reason

        # A checkpoint comes last, so that a resume begins where a round would.
        if save_is_due and (trouble := save()):
            reporter.notice(f"[CHECKPOINT] {trouble}; training goes on, and the next one is tried as usual.")
        shown_decisions = ledger.collected
        reporter.progress(limits.share(progress.epoch, shown_decisions, clock.session_seconds))


def _export_best(pipeline: Pipeline, run: Run, result: Result) -> str | None:
    """Keep the policy that was evaluated; why that was not possible, if so."""
    request, total = result.request, summarise(result.evaluations)
    card = _card(run, request.decisions, request.minutes) | {
        "clear_rate": total.clear_rate,
        "sticky_clear_rate": total.sticky_clear_rate,
        "mean_distance": round(total.mean_distance, 1),
        "mean_reward": round(total.mean_reward, 1),
    }
    if result.confirmation is not None:
        confirmed = summarise(result.confirmation)
        card["unseen_clear_rate"] = confirmed.clear_rate
        card["unseen_sticky_clear_rate"] = confirmed.sticky_clear_rate
    return pipeline.saver.export(run.best_model, unpack_weights(request.weights), card)


def _card(run: Run, decisions: int, minutes: float) -> dict[str, Any]:
    """What is worth knowing about a policy."""
    return {
        "run": run.name,
        "search": read_search(run),
        "decisions": decisions,
        "minutes": round(minutes, 2),
        "commit": git_commit(),
        "command": shlex.join(command_line()),
    }
