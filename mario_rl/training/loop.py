"""The training loop, from top to bottom. Runs in the main thread of the learner process."""

import contextlib
import functools
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mario_rl.app.wiring import Pipeline
from mario_rl.evaluation.evaluator import Result, unpack_weights
from mario_rl.evaluation.playing import summarise
from mario_rl.storage.checkpoints import CheckpointError, CheckpointStore, SaveAbandonedError
from mario_rl.storage.policies import Policy, export_policy
from mario_rl.storage.runs import Run, command_line, git_commit
from mario_rl.training.reporting import Reporter

GOAL_EVALUATIONS = 2
SMALLEST_RATE_FACTOR = 1 / 16  # after so many halvings it is not the learning rate


class Goal(NamedTuple):
    """What two evaluations in a row must reach."""

    clear_rate: float
    sticky_clear_rate: float

    def reached(self, evaluations: list[list[float]]) -> str | None:
        """What was reached, in words."""
        latest = evaluations[-GOAL_EVALUATIONS:]
        if len(latest) < GOAL_EVALUATIONS or any(
            clear_rate < self.clear_rate or sticky < self.sticky_clear_rate for clear_rate, sticky, _ in latest
        ):
            return None
        rates = " and ".join(f"{clear_rate:.0%}" for clear_rate, _, _ in latest)
        return f"the level is learned, {rates} of the last two tests' episodes cleared it"


@dataclass(frozen=True)
class Limits:
    """When the run ends by itself. Epochs and decisions count from the run's start, minutes from this session's."""

    epochs: int
    decisions: int | None = None
    minutes: float | None = None
    goal: Goal | None = None

    def reached(self, epochs: int, decisions: int, seconds: float) -> str | None:
        """Which limit is reached, in words."""
        if epochs >= self.epochs:
            return f"{self.epochs:,} epochs are done"
        if self.decisions is not None and decisions >= self.decisions:
            return f"{self.decisions:,} decisions are made"
        if self.minutes is not None and seconds >= self.minutes * 60:
            return f"{self.minutes:g} minutes are over"
        return None

    def share(self, epochs: int, decisions: int, seconds: float) -> float:
        """How much of the way to the nearest limit is done."""
        shares = [epochs / self.epochs]
        if self.decisions is not None:
            shares.append(decisions / self.decisions)
        if self.minutes is not None:
            shares.append(seconds / (self.minutes * 60))
        return max(shares)


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


def train(pipeline: Pipeline, limits: Limits, run: Run, store: CheckpointStore, reporter: Reporter) -> Outcome:
    """Train until a limit, a stop request or a failure; then stop everybody and save, whatever the reason."""
    ledger, progress = pipeline.ledger, pipeline.progress
    clock = _Clock(progress.training_seconds)

    def save(should_abandon: Callable[[], bool] = lambda: False) -> str | None:
        """Write a checkpoint and the newest policy; why that was not possible, if so."""
        progress.training_seconds = clock.run_seconds
        if not pipeline.learner.is_finite():
            return "No checkpoint was written, because the weights are not finite numbers; the one before it is kept"
        try:
            pipeline.save(store, should_abandon)
        except SaveAbandonedError:
            return None  # the run was asked to stop, and saves once more when everybody has stopped
        except OSError as error:
            return f"No checkpoint could be written ({error.strerror or error}); the one before it is kept"
        card = _card(run, ledger.collected, progress.training_seconds / 60)
        return _export(pipeline, run.newest_model, pipeline.learner.averaged.state_dict(), card)

    failure = None
    try:
        save_now_and_then = functools.partial(save, pipeline.source.is_stopping)
        reason = _train_until_done(pipeline, limits, clock, run, store, reporter, save_now_and_then)
    finally:
        try:
            pipeline.stop()
        finally:
            failure = save()
    minutes = progress.training_seconds / 60
    reporter.finish(pipeline, minutes)
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
    limits: Limits,
    clock: _Clock,
    run: Run,
    store: CheckpointStore,
    reporter: Reporter,
    save: Callable[[], str | None],
) -> str:
    """The loop; why it ended."""
    settings, ledger, flow, progress = pipeline.settings, pipeline.ledger, pipeline.flow, pipeline.progress
    learner, source, publisher = pipeline.learner, pipeline.source, pipeline.publisher
    evaluator = pipeline.evaluator

    def may_train() -> bool:
        return flow.may_train(ledger.collected, ledger.trained)

    def epoch_is_over() -> bool:
        return ledger.num_episodes - progress.num_episodes >= settings.episodes_per_epoch

    def publish_is_due() -> bool:
        return (
            progress.epoch - progress.published_epoch >= settings.model_update_frequency
            or ledger.collected - progress.published_decisions >= settings.publish_max_decisions
        )

    def evaluation_is_due() -> bool:
        return (
            0 < settings.evaluation_decisions <= ledger.collected - progress.evaluated_decisions
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
    if pipeline.slots.version == 0:  # unless a resumed serial run has brought back what its collector acts with
        publisher.publish(learner.num_updates)
    pipeline.start()
    reporter.begin(pipeline)
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
            if learner.num_bad_updates_in_a_row >= settings.max_bad_updates:
                reporter.notice(_recover(pipeline, store))
            source.limit_collection(flow.collection_limit(ledger.trained))

        # Epochs are counted in finished episodes, so they also pass while replay is still warming up.
        save_is_due = False
        while epoch_is_over() and progress.epoch < limits.epochs:
            progress.epoch += 1
            episodes = ledger.take_episodes(settings.episodes_per_epoch)
            progress.num_episodes += len(episodes)
            progress.best_distance = max(progress.best_distance, *(episode.distance for episode in episodes))
            progress.num_clears += sum(episode.cleared for episode in episodes)
            reporter.epoch(pipeline, episodes, clock.run_seconds / 60)
            save_is_due |= progress.epoch % settings.checkpoint_epochs == 0
            if settings.cache_clear_epochs and progress.epoch % settings.cache_clear_epochs == 0:
                torch.cuda.empty_cache()  # does nothing without a GPU

        # Collectors get the new weights between two of their chunks.
        if publish_is_due():
            publisher.publish(learner.num_updates)
            progress.published_epoch, progress.published_decisions = progress.epoch, ledger.collected

        # Tests are played elsewhere: here they are asked for, and their results noted.
        if evaluation_is_due():
            progress.evaluated_decisions = ledger.collected
            evaluator.request(ledger.collected, clock.run_seconds / 60, learner.averaged.state_dict())
        while (result := evaluator.take_result()) is not None:
            is_best = _note_evaluation(pipeline, result)
            save_is_due |= is_best  # or a crash would make it forget how good the best was
            reporter.evaluation(result, is_best=is_best)
            if is_best and (trouble := _export_best(pipeline, run, result)):
                reporter.notice(f"[EVAL] {trouble}; training goes on.")
            if limits.goal is not None and (reason := limits.goal.reached(progress.evaluations)):
                return reason

        # A checkpoint comes last, so that a resume begins where a round would.
        if save_is_due and (trouble := save()):
            reporter.notice(f"[CHECKPOINT] {trouble}; training goes on, and the next one is tried as usual.")
        shown_decisions = ledger.collected
        reporter.progress(pipeline, limits.share(progress.epoch, shown_decisions, clock.session_seconds))


def _recover(pipeline: Pipeline, store: CheckpointStore) -> str:
    """Too many updates in a row were not numbers: go back to the last checkpoint with half the rate, or stop."""
    learner, settings = pipeline.learner, pipeline.settings
    trouble = f"{learner.num_bad_updates_in_a_row} updates in a row were not finite numbers"
    checkpoint = None
    if settings.when_updates_fail == "roll_back" and learner.rate_factor > SMALLEST_RATE_FACTOR:
        with contextlib.suppress(CheckpointError):
            checkpoint = store.load_newest()
    if checkpoint is None:
        pipeline.ledger.fail(f"{trouble}: lower LEARNING_RATE, or look for what is wrong with the rewards.")
        return f"[LEARNER] {trouble}; the run ends."
    rate_factor = learner.rate_factor / 2  # of what was tried last, which a checkpoint may not know of
    learner.load(checkpoint.tensors, checkpoint.numbers["learner"])
    learner.rate_factor = rate_factor
    pipeline.publisher.forget()
    return f"[LEARNER] {trouble}: back to {checkpoint.folder.name}, with {learner.rate_factor:g} of the learning rate."


def _note_evaluation(pipeline: Pipeline, result: Result) -> bool:
    """Keep the figures; whether they are the best so far."""
    total = summarise(result.evaluations)
    figures = [total.clear_rate, total.sticky_clear_rate or 0.0, total.mean_distance]
    is_best = all(figures > before for before in pipeline.progress.evaluations)
    pipeline.progress.evaluations.append(figures)
    pipeline.progress.has_unsaved_best |= is_best
    return is_best


def _export_best(pipeline: Pipeline, run: Run, result: Result) -> str | None:
    """Keep the policy that was tested; why that was not possible, if so."""
    request, total = result.request, summarise(result.evaluations)
    card = _card(run, request.decisions, request.minutes) | {
        "clear_rate": total.clear_rate,
        "sticky_clear_rate": total.sticky_clear_rate,
        "mean_distance": round(total.mean_distance, 1),
        "mean_reward": round(total.mean_reward, 1),
    }
    return _export(pipeline, run.best_model, unpack_weights(request.weights), card)


def _card(run: Run, decisions: int, minutes: float) -> dict[str, Any]:
    """What is worth knowing about a policy."""
    return {
        "run": run.name,
        "decisions": decisions,
        "minutes": round(minutes, 2),
        "commit": git_commit(),
        "command": shlex.join(command_line()),
    }


def _export(pipeline: Pipeline, path: Path, state: dict[str, torch.Tensor], card: dict[str, Any]) -> str | None:
    """Write a policy; why that was not possible, if so."""
    settings = pipeline.settings
    policy = Policy(state, pipeline.network_shape, settings.actions, settings.frame_skip, settings.levels_played)
    try:
        export_policy(path, policy, card)
    except OSError as error:
        return f"{path.name} could not be written ({error.strerror or error})"
    return None
