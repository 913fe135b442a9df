"""When updates are no longer numbers: back to the last checkpoint with half the learning rate, or the end."""

import contextlib
from dataclasses import dataclass
from typing import Annotated, Literal

from mario_rl.accounts.ledger import Ledger
from mario_rl.learning.learner import Learner
from mario_rl.learning.publishing import WeightPublisher
from mario_rl.ranges import Positive
from mario_rl.storage.checkpoints import CheckpointError, CheckpointStore

SMALLEST_RATE_FACTOR = 1 / 16  # after this many halvings it is not the learning rate


@dataclass(frozen=True)
class RecoveryRules:
    """How much trouble is too much, and what to do then."""

    max_bad_updates: Annotated[int, Positive]  # in a row
    when_updates_fail: Literal["roll_back", "stop"]


@dataclass(frozen=True)
class Recovery:
    """Looks after the learner. Used by the main loop, between two rounds."""

    rules: RecoveryRules
    learner: Learner
    publisher: WeightPublisher
    ledger: Ledger

    @property
    def is_due(self) -> bool:
        """Whether too many updates in a row were not numbers."""
        return self.learner.num_bad_updates_in_a_row >= self.rules.max_bad_updates

    def recover(self, store: CheckpointStore) -> str:
        """Go back, or have the run end; which of both, in words."""
        learner = self.learner
        trouble = f"{learner.num_bad_updates_in_a_row} updates in a row were not finite numbers"
        checkpoint = None
        if self.rules.when_updates_fail == "roll_back" and learner.rate_factor > SMALLEST_RATE_FACTOR:
            with contextlib.suppress(CheckpointError):
                checkpoint = store.load_newest()
        if checkpoint is None:
            self.ledger.fail(f"{trouble}: lower LEARNING_RATE, or look for what is wrong with the rewards.")
            return f"[LEARNER] {trouble}; the run ends."
        rate_factor = learner.rate_factor / 2  # of what was tried last, which a checkpoint may not know of
        learner.load(checkpoint.numbers["learner"], checkpoint.tensors)
        learner.rate_factor = rate_factor
        self.publisher.forget()
        return f"[LEARNER] {trouble}: back to {checkpoint.folder.name}, with {rate_factor:g} of the learning rate."
