"""Exploration: an epsilon for every emulator, random actions that are held for a while, and sticky ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from mario_rl.environment.actions import ActionSet, action_bounds
from mario_rl.ranges import Between, Positive, Probability


@dataclass(frozen=True)
class ExplorationRules:
    """When collectors try something else than the best action, and what."""

    epsilon_decay_decisions: Annotated[int, Positive]
    epsilon_ladder_low: Annotated[float, Probability]
    epsilon_ladder_high: Annotated[float, Probability]
    explore_right_probability: Annotated[float, Probability]
    explore_sticky_probability: Annotated[float, Probability]
    explore_max_hold: Annotated[int, Between(1, 1000)]
    explore_short_hold: Annotated[int, Between(1, 1000)]

    def conflicts(self) -> list[str]:
        """A ladder that stands on its head."""
        if self.epsilon_ladder_low <= self.epsilon_ladder_high:
            return []
        return [
            f"EPSILON_LADDER_LOW = {self.epsilon_ladder_low} is above "
            f"EPSILON_LADDER_HIGH = {self.epsilon_ladder_high}: swap them."
        ]


class EpsilonLadder:
    """Each emulator decays from 1 to an epsilon of its own, so that one plays nearly greedily while others explore."""

    def __init__(self, rules: ExplorationRules, num_streams: int) -> None:
        low, high = rules.epsilon_ladder_low, rules.epsilon_ladder_high
        # Equal ratios between neighbours; a ladder with a zero in it can only have equal differences.
        spaced = np.geomspace if low > 0 else np.linspace
        self._final = spaced(low, high, num_streams) if num_streams > 1 else np.array([low])
        self._decay_decisions = rules.epsilon_decay_decisions

    def epsilons(self, decisions: int) -> npt.NDArray[np.float64]:
        """All epsilons after this many decisions of the whole run."""  # [streams]
        remaining = max(0.0, 1.0 - decisions / self._decay_decisions)
        result: npt.NDArray[np.float64] = self._final + (1.0 - self._final) * remaining
        return result


class Explorer:
    """Decides for each emulator whether it explores now, and with which action.

    A random action is held for 1 to `explore_max_hold` decisions, all lengths equally likely: a high jump needs its
    button for half a second, which actions drawn afresh at every decision hardly ever give. Every second emulator holds
    them for `explore_short_hold` at most: to swim is to let go of the button and press it again. Epsilon stays the
    share of decisions that are random.

    Besides, with a small probability, the action before is repeated, as in the evaluation with sticky actions: the
    greedy policy then knows the states in which it ends up when a button goes down too late.
    """

    def __init__(self, rules: ExplorationRules, num_envs: int, actions: ActionSet, rng: np.random.Generator) -> None:
        self._rng = rng
        self._max_holds = np.resize([rules.explore_max_hold, rules.explore_short_hold], num_envs)
        self._sticky_probability = rules.explore_sticky_probability
        self._bounds = action_bounds(actions, rules.explore_right_probability)
        self._held = np.zeros(num_envs, np.int64)  # the action
        self._remaining = np.zeros(num_envs, np.int64)  # decisions for which it is still held
        self._last = np.zeros(num_envs, np.int64)  # what each emulator did last

    def decide(
        self, epsilons: npt.NDArray[np.float64], best_actions: Callable[[], npt.NDArray[np.int64]]
    ) -> npt.NDArray[np.int64]:
        """Every emulator's action; the best ones are only computed where at least one is wanted."""  # [envs]
        explores = self._explore(epsilons)
        sticks = self._rng.random(len(epsilons)) < self._sticky_probability
        self._last = np.where(explores, self._held, self._last)
        undecided = ~(explores | sticks)
        if undecided.any():
            self._last[undecided] = best_actions()[undecided]
        return self._last

    def _explore(self, epsilons: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Which emulators hold a random action now. The generator advances equally, whatever the answer."""
        num_envs = len(epsilons)
        # Between two holds of `mean` decisions lie (1 - start) / start greedy ones.
        mean = (1 + self._max_holds) / 2
        start = epsilons / (epsilons + mean * (1 - epsilons))
        draws = self._rng.random(num_envs)
        actions = self._bounds.searchsorted(self._rng.random(num_envs), side="right")
        lengths = self._rng.integers(1, self._max_holds + 1)
        begins = (self._remaining == 0) & (draws < start)
        self._held[begins], self._remaining[begins] = actions[begins], lengths[begins]
        explores = self._remaining > 0
        self._remaining[explores] -= 1
        return explores

    def state(self) -> dict[str, Any]:
        """What serial mode's checkpoint keeps."""
        return {
            "rng": self._rng.bit_generator.state,
            "held": self._held.tolist(),
            "remaining": self._remaining.tolist(),
            "last": self._last.tolist(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self._rng.bit_generator.state = state["rng"]
        self._held[:], self._remaining[:], self._last[:] = state["held"], state["remaining"], state["last"]
