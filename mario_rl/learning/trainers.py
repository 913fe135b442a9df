"""What trains, as the main loop knows it: one worker in the main thread, or a team of threads (`worker_team.py`)."""

from typing import Protocol

from mario_rl.learning.learner import Learner
from mario_rl.learning.sampling import Samples
from mario_rl.telemetry.metrics import Metrics, Rates


class Trainer(Protocol):
    """Between two rounds it rests, so the main loop may save or publish."""

    def train(self) -> int:
        """One round: whole sample calls and whole updates. The number of experiences trained on."""

    def settle(self) -> None:
        """Before a checkpoint: let the sampler see what the learner has noted so far, if that is possible."""

    def metrics(self) -> Metrics:
        """What it waited for; rates since the last call."""

    def close(self) -> None:
        """Stop all threads."""


class LoneTrainer:
    """Trains in the thread that asks."""

    def __init__(self, learner: Learner, samples: Samples) -> None:
        self._learner = learner
        self._samples = samples
        self._rates = Rates()

    def train(self) -> int:
        """One round; the number of experiences trained on."""
        rules = self._learner.rules
        for _ in range(rules.samples_per_round):
            self._learner.train_on(self._samples.next())
        return rules.samples_per_round * rules.sample_size

    @property
    def sample_wait_seconds(self) -> float:
        """That it has waited for samples, since the start."""
        return self._samples.wait_seconds

    def settle(self) -> None:
        """Before a checkpoint."""
        self._samples.settle()

    def metrics(self) -> Metrics:
        """The share of its time that it waited for samples."""
        return self._rates.since({"learner/sample_wait_share": self.sample_wait_seconds})

    def close(self) -> None:
        """Stop sampling."""
        self._samples.close()
