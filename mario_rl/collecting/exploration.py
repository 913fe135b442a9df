"""Exploration: an epsilon for every emulator, and random actions that favour the right."""

import numpy as np
import numpy.typing as npt

from mario_rl.environment.actions import ACTION_SETS, RIGHT, ActionSet


class EpsilonLadder:
    """Each emulator decays from 1 to an epsilon of its own, so that one plays nearly greedily while others explore."""

    def __init__(self, num_streams: int, low: float, high: float, decay_decisions: int) -> None:
        # Equal ratios between neighbours; a ladder with a zero in it can only have equal differences.
        spaced = np.geomspace if low > 0 else np.linspace
        self._final = spaced(low, high, num_streams) if num_streams > 1 else np.array([low])
        self._decay_decisions = decay_decisions

    def epsilons(self, decisions: int) -> npt.NDArray[np.float64]:
        """All epsilons after so many decisions of the whole run."""  # [streams]
        remaining = max(0.0, 1.0 - decisions / self._decay_decisions)
        result: npt.NDArray[np.float64] = self._final + (1.0 - self._final) * remaining
        return result


def exploration_probabilities(actions: ActionSet, right_probability: float) -> npt.NDArray[np.float64]:
    """How likely a random action is each of the set's: so much for those that hold right, the rest for the others."""
    holds_right = np.array([bool(buttons & RIGHT) for buttons in ACTION_SETS[actions]])
    share: npt.NDArray[np.float64] = np.where(
        holds_right, right_probability / holds_right.sum(), (1 - right_probability) / (~holds_right).sum()
    )
    share /= share.sum()  # a set without left-over actions, or rounding
    return share
