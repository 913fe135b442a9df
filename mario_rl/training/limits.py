"""When a run ends by itself: at a limit that the user gave, or when the level is learned."""

from dataclasses import dataclass
from typing import Annotated

from mario_rl.evaluation.results import Score
from mario_rl.ranges import Between, Positive, Probability

EVALUATIONS_IN_A_ROW = 2  # that must be good enough: one may be luck


@dataclass(frozen=True)
class LimitRules:
    """When a run ends that was not told when to."""

    max_epochs: Annotated[int, Positive]
    stop_at_clear_rate: Annotated[float, Between(0.0, 2.0)]  # 2: never
    stop_at_sticky_clear_rate: Annotated[float, Probability]

    def learned(self, evaluations: list[Score]) -> str | None:
        """The stopping rule: whether the last evaluations were good enough, in words."""
        latest = evaluations[-EVALUATIONS_IN_A_ROW:]
        if len(latest) < EVALUATIONS_IN_A_ROW or not all(map(self._is_good, latest)):
            return None
        rates = " and ".join(f"{score.clear_rate:.0%}" for score in latest)
        return f"the level is learned, {rates} of the last two evaluations' episodes cleared it"

    def _is_good(self, score: Score) -> bool:
        return score.clear_rate >= self.stop_at_clear_rate and score.sticky_clear_rate >= self.stop_at_sticky_clear_rate


@dataclass(frozen=True)
class Limits:
    """When this run ends. Epochs and decisions count from the run's start, minutes from this session's."""

    epochs: int
    decisions: int | None = None
    minutes: float | None = None
    stopping_rule: LimitRules | None = None  # None: learned or not, it goes on

    def reached(self, epochs: int, decisions: int, seconds: float) -> str | None:
        """Which limit is reached, in words."""
        if epochs >= self.epochs:
            return f"{self.epochs:,} epochs are done"
        if self.decisions is not None and decisions >= self.decisions:
            return f"{self.decisions:,} decisions are made"
        if self.minutes is not None and seconds >= self.minutes * 60:
            return f"{self.minutes:g} minutes are over"
        return None

    def learned(self, evaluations: list[Score]) -> str | None:
        """Whether the run may end because it has learned the level, in words."""
        return None if self.stopping_rule is None else self.stopping_rule.learned(evaluations)

    def share(self, epochs: int, decisions: int, seconds: float) -> float:
        """How much of the way to the nearest limit is done."""
        shares = [epochs / self.epochs]
        if self.decisions is not None:
            shares.append(decisions / self.decisions)
        if self.minutes is not None:
            shares.append(seconds / (self.minutes * 60))
        return max(shares)
