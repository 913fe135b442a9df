"""The action sets, and the joypad byte of each action."""

from typing import Literal

import numpy as np
import numpy.typing as npt

ActionSet = Literal["right_only", "simple", "complex"]

RIGHT, LEFT, DOWN, UP, START, B, A = 0x80, 0x40, 0x20, 0x10, 0x08, 0x02, 0x01
NOOP = 0x00

_RIGHT_ONLY = (NOOP, RIGHT, RIGHT | A, RIGHT | B, RIGHT | A | B)
_SIMPLE = (*_RIGHT_ONLY, A, LEFT)
_COMPLEX = (*_SIMPLE, LEFT | A, LEFT | B, LEFT | A | B, DOWN, UP)

# The same sets in the same order as gym-super-mario-bros' RIGHT_ONLY, SIMPLE_MOVEMENT and COMPLEX_MOVEMENT.
ACTION_SETS: dict[ActionSet, tuple[int, ...]] = {"right_only": _RIGHT_ONLY, "simple": _SIMPLE, "complex": _COMPLEX}


def action_bounds(actions: ActionSet, right_probability: float) -> npt.NDArray[np.float64]:
    """For random actions: an even number below the first bound draws the first one, and so on."""
    bounds: npt.NDArray[np.float64] = np.cumsum(action_probabilities(actions, right_probability))
    bounds[-1] = 1.0
    return bounds


def action_probabilities(actions: ActionSet, right_probability: float) -> npt.NDArray[np.float64]:
    """Probability of each random action: `right_probability` is shared by the actions that hold right."""
    holds_right = np.array([bool(buttons & RIGHT) for buttons in ACTION_SETS[actions]])
    share: npt.NDArray[np.float64] = np.where(
        holds_right, right_probability / holds_right.sum(), (1 - right_probability) / (~holds_right).sum()
    )
    share /= share.sum()  # a set without left-over actions, or rounding
    return share
