"""What an evaluation finds out about a policy: episodes, their means, and the score that policies are ranked by."""

from collections.abc import Sequence
from typing import NamedTuple

from mario_rl.emulation.rules import Level


class Episode(NamedTuple):
    """How one episode of an evaluation went."""

    cleared: bool
    distance: int
    reward: float  # raw, as gym-super-mario-bros counts it
    decisions: int


class Evaluation(NamedTuple):
    """Both halves of the evaluation of one policy on one level."""

    level: Level
    starts: list[Episode]
    sticky: list[Episode]

    @property
    def clear_rate(self) -> float:
        """From the different starts."""
        return _mean([episode.cleared for episode in self.starts])

    @property
    def sticky_clear_rate(self) -> float:
        """With sticky actions; 0 where that half was left out."""
        return _mean([episode.cleared for episode in self.sticky])

    @property
    def mean_distance(self) -> float:
        """From the different starts."""
        return _mean([episode.distance for episode in self.starts])

    @property
    def mean_reward(self) -> float:
        """From the different starts."""
        return _mean([episode.reward for episode in self.starts])


class Totals(NamedTuple):
    """The means over all levels."""

    clear_rate: float
    sticky_clear_rate: float | None  # None where that half was left out for a level
    mean_distance: float
    mean_reward: float

    @property
    def score(self) -> "Score":
        """What counts when policies are compared."""
        return Score(self.clear_rate, self.sticky_clear_rate or 0.0, self.mean_distance)


class Score(NamedTuple):
    """How good a policy is; the larger one wins, and the first figure that differs decides."""

    clear_rate: float
    sticky_clear_rate: float
    mean_distance: float


class Goal(NamedTuple):
    """What a policy must reach before it counts as one that can play."""

    clear_rate: float
    sticky_clear_rate: float

    @property
    def is_possible(self) -> bool:
        """Whether a policy can reach it: a rate above 1 means that a run never ends by it."""
        return max(self) <= 1.0

    def is_reached(self, score: Score) -> bool:
        """Whether this policy does."""
        return score.clear_rate >= self.clear_rate and score.sticky_clear_rate >= self.sticky_clear_rate


def summarise(evaluations: list[Evaluation]) -> Totals:
    """The means over all levels."""
    tried = all(evaluation.sticky for evaluation in evaluations)
    return Totals(
        _mean([evaluation.clear_rate for evaluation in evaluations]),
        _mean([evaluation.sticky_clear_rate for evaluation in evaluations]) if tried else None,
        _mean([evaluation.mean_distance for evaluation in evaluations]),
        _mean([evaluation.mean_reward for evaluation in evaluations]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
