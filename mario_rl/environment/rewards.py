"""The training reward: a sum of terms. The raw reward, which is what is reported, does not depend on it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mario_rl.environment.player import Player, Tick
from mario_rl.environment.task import TaskRules

LARGEST_GAIN = 6  # cells in a decision
DEATH_COST = 1.0
DECISION_COST = 0.02  # what the clock takes from the raw reward is a little less

RewardTerm = Callable[[Player, Tick], npt.NDArray[Any]]  # what each game earns in a tick: [games]


def scaled_raw_reward(rules: TaskRules) -> RewardTerm:
    """The raw reward x `reward_scale`."""
    return lambda _player, tick: tick.raw_reward * rules.reward_scale


def map_progress(rules: TaskRules) -> RewardTerm:
    """`map_reward` for each cell that Mario came nearer to the flag, and what a death and each decision cost.

    A way back costs as much as the way there earned, however long it is, so no walk in a circle earns anything. What is
    gained at once is limited: a leap on the map is a guess, until the map has learned it.
    """

    def earned(player: Player, tick: Tick) -> npt.NDArray[Any]:
        died = tick.terminated & ~tick.reached_flag
        gained = np.minimum(tick.gained, LARGEST_GAIN) * rules.map_reward
        return np.where(player.at_start, 0.0, gained - died * DEATH_COST - DECISION_COST)

    return earned


def progress(rules: TaskRules) -> RewardTerm:
    """What PROGRESS says."""
    return map_progress(rules) if rules.progress == "map" else scaled_raw_reward(rules)


def flag_bonus(rules: TaskRules) -> RewardTerm:
    """`flag_bonus` on the decision that reaches the flag."""
    return lambda _player, tick: tick.reached_flag * rules.flag_bonus


# A term is added here. Each is made once for all games of a collector, by the rules of the task.
TERMS: tuple[Callable[[TaskRules], RewardTerm], ...] = (
    progress,
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
