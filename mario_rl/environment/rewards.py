"""The training reward: a sum of terms. The raw reward, which is what is reported, does not depend on it."""

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from mario_rl.environment.player import Player, Tick
from mario_rl.environment.task import TaskRules

RewardTerm = Callable[[Player, Tick], npt.NDArray[Any]]  # what each game earns in a tick: [games]


def scaled_raw_reward(rules: TaskRules) -> RewardTerm:
    """The raw reward x `reward_scale`."""
    return lambda _player, tick: tick.raw_reward * rules.reward_scale


def flag_bonus(rules: TaskRules) -> RewardTerm:
    """`flag_bonus` on the decision that reaches the flag."""
    return lambda _player, tick: tick.reached_flag * rules.flag_bonus


# A term is added here. Each is made once for all games of a collector, by the rules of the task.
TERMS: tuple[Callable[[TaskRules], RewardTerm], ...] = (
    scaled_raw_reward,
    flag_bonus,
)


class TrainingReward:
    """What the games of one collector earn."""

    def __init__(self, rules: TaskRules) -> None:
        self._terms = [make_term(rules) for make_term in TERMS]

    def of(self, player: Player, tick: Tick) -> npt.NDArray[Any]:
        """The sum of all terms."""  # [games]
        total: npt.NDArray[Any] = sum(term(player, tick) for term in self._terms)  # type: ignore[assignment]
        return total
