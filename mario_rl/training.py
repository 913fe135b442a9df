"""The training loop, from top to bottom. Runs in the main thread of the learner process."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mario_rl.checkpoints import CheckpointStore
from mario_rl.pipeline import Pipeline
from mario_rl.policies import export_policy
from mario_rl.reporting import Reporter
from mario_rl.runs import Run, git_commit

RECENT_EPISODES = 20  # the best policy is the one with the largest mean distance over so many


@dataclass(frozen=True)
class Limits:
    """When the run ends by itself. Epochs and decisions count from the run's start, minutes from this session's."""

    epochs: int
    decisions: int | None = None
    minutes: float | None = None

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
    failure: str | None


def train(pipeline: Pipeline, limits: Limits, run: Run, store: CheckpointStore, reporter: Reporter) -> Outcome:
    """Train until a limit, a stop request or a failure; then stop everybody and save, whatever the reason."""
    ledger, progress = pipeline.ledger, pipeline.progress
    begun, seconds_before = time.monotonic(), progress.training_seconds

    def save() -> None:
        progress.training_seconds = seconds_before + time.monotonic() - begun
        pipeline.save(store)
        _export(pipeline, run, best=False)

    try:
        reason = _train_until_done(pipeline, limits, run, reporter, save)
    finally:
        pipeline.stop()
        save()
    minutes = progress.training_seconds / 60
    return Outcome(reason, ledger.collected, progress.epoch, minutes, progress.best_distance, ledger.failure)


def _train_until_done(
    pipeline: Pipeline, limits: Limits, run: Run, reporter: Reporter, save: Callable[[], None]
) -> str:
    """The loop; why it ended."""
    settings, ledger, flow, progress = pipeline.settings, pipeline.ledger, pipeline.flow, pipeline.progress
    learner, source, publisher = pipeline.learner, pipeline.source, pipeline.publisher
    begun = time.monotonic()

    def may_train() -> bool:
        return flow.may_train(ledger.collected, ledger.trained)

    def epoch_is_over() -> bool:
        return ledger.num_episodes - progress.num_episodes >= settings.episodes_per_epoch

    def publish_is_due() -> bool:
        return (
            progress.epoch - progress.published_epoch >= settings.model_update_frequency
            or ledger.collected - progress.published_decisions >= settings.publish_max_decisions
        )

    def limit_reached() -> str | None:
        return limits.reached(progress.epoch, ledger.collected, time.monotonic() - begun)

    def there_is_work() -> bool:
        return may_train() or epoch_is_over() or ledger.collected > shown_decisions or bool(limit_reached())

    shown_decisions = -1  # as of the last round; -1 lets the first round come at once, with what a resume left undone
    if pipeline.slots.version == 0:  # unless a resumed serial run has brought back what its collector acts with
        publisher.publish(learner.num_updates)
    source.start()
    source.limit_collection(flow.collection_limit(ledger.trained))

    while True:
        # Sleep (or, in serial mode, play) until there is something to do or to show.
        remaining = None if limits.minutes is None else max(0.0, begun + limits.minutes * 60 - time.monotonic())
        waited_since = time.perf_counter()
        source.wait_for_work(there_is_work, remaining)
        reporter.add_wait(time.perf_counter() - waited_since)
        if reason := ledger.stop_reason or limit_reached():
            return reason

        # One round: sample calls, micro-batches, optimizer steps. Sampling happens one batch ahead in its own thread.
        if may_train():
            ledger.add_trained(learner.train(pipeline.samples.next))
            source.limit_collection(flow.collection_limit(ledger.trained))

        # Epochs are counted in finished episodes, so they also pass while replay is still warming up.
        save_is_due = False
        while epoch_is_over() and progress.epoch < limits.epochs:
            progress.epoch += 1
            episodes = ledger.take_episodes(settings.episodes_per_epoch)
            progress.num_episodes += len(episodes)
            improved = _note_episodes(pipeline, [episode.distance for episode in episodes])
            progress.num_clears += sum(episode.cleared for episode in episodes)
            reporter.epoch(pipeline, episodes)
            if improved:
                _export(pipeline, run, best=True)
            save_is_due |= progress.epoch % settings.checkpoint_epochs == 0
            if settings.cache_clear_epochs and progress.epoch % settings.cache_clear_epochs == 0:
                torch.cuda.empty_cache()  # does nothing without a GPU

        # Collectors get the new weights between two of their chunks.
        if publish_is_due():
            publisher.publish(learner.num_updates)
            progress.published_epoch, progress.published_decisions = progress.epoch, ledger.collected

        # A checkpoint comes last, so that a resume begins where a round would.
        if save_is_due:
            save()
        shown_decisions = ledger.collected
        reporter.progress(pipeline, limits.share(progress.epoch, shown_decisions, time.monotonic() - begun))


def _note_episodes(pipeline: Pipeline, distances: list[int]) -> bool:
    """Keep the distances of late; whether their mean has never been better."""
    progress = pipeline.progress
    progress.best_distance = max(progress.best_distance, *distances)
    progress.recent_distances = (progress.recent_distances + distances)[-RECENT_EPISODES:]
    mean = sum(progress.recent_distances) / len(progress.recent_distances)
    if len(progress.recent_distances) < RECENT_EPISODES or mean <= progress.best_mean_distance:
        return False
    progress.best_mean_distance = mean
    return True


def _export(pipeline: Pipeline, run: Run, *, best: bool) -> None:
    """Write a policy to models/: the weights the recent episodes were played with, or the newest ones."""
    settings, progress = pipeline.settings, pipeline.progress
    card = {
        "run": run.name,
        "level": f"{settings.world}-{settings.stage}",
        "observation": "4 pictures of 84 x 84 pixels, grey, one every FRAME_SKIP frames",
        "frame_skip": settings.frame_skip,
        "decisions": pipeline.ledger.collected,
        "updates": pipeline.learner.num_updates,
        "minutes": round(progress.training_seconds / 60, 2),
        "mean_distance_of_recent_episodes": round(
            sum(progress.recent_distances) / max(1, len(progress.recent_distances)), 1
        ),
        "commit": git_commit(),
    }
    state = pipeline.publisher.snapshot if best else pipeline.learner.online.state_dict()
    export_policy(run.best_model if best else run.newest_model, state, pipeline.network_shape, settings.actions, card)
