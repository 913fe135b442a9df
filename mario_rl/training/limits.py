"""When a run ends by itself: at a limit that the user gave, or when the level is learned."""

from dataclasses import dataclass
from typing import Annotated

from mario_rl.evaluation.results import Goal, Score
from mario_rl.ranges import Between, Positive, Probability


@dataclass(frozen=True)
class LimitRules:
    """When a run ends that was not told when to."""

    max_epochs: Annotated[int, Positive]
    stop_at_clear_rate: Annotated[float, Between(0.0, 2.0)]  # 2: never
    stop_at_sticky_clear_rate: Annotated[float, Probability]

    @property
    def goal(self) -> Goal:
        """What a policy must reach, and what its confirmation must reach again: once may be luck."""
        return Goal(self.stop_at_clear_rate, self.stop_at_sticky_clear_rate)


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

    def learned(self, score: Score, confirmation: Score | None) -> str | None:
        """Whether the run may end because this policy can play, in words."""
        if self.stopping_rule is None or confirmation is None:
            return None
        if not all(map(self.stopping_rule.goal.is_reached, (score, confirmation))):
            return None
        return (
            f"the level is learned: a policy cleared it from {score.clear_rate:.0%} of the starts, and from "
            f"{confirmation.clear_rate:.0%} of others that it had never seen"
        )

    def share(self, epochs: int, decisions: int, seconds: float) -> float:
        """How much of the way to the nearest limit is done."""
        shares = [epochs / self.epochs]
        if self.decisions is not None:
            shares.append(decisions / self.decisions)
        if self.minutes is not None:
            shares.append(seconds / (self.minutes * 60))
        return max(shares)
