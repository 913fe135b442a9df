"""The action sets, and the joypad byte of each action."""

from typing import Literal

ActionSet = Literal["right_only", "simple", "complex"]

RIGHT, LEFT, DOWN, UP, START, B, A = 0x80, 0x40, 0x20, 0x10, 0x08, 0x02, 0x01
NOOP = 0x00

_RIGHT_ONLY = (NOOP, RIGHT, RIGHT | A, RIGHT | B, RIGHT | A | B)
_SIMPLE = (*_RIGHT_ONLY, A, LEFT)
_COMPLEX = (*_SIMPLE, LEFT | A, LEFT | B, LEFT | A | B, DOWN, UP)

# The same sets in the same order as gym-super-mario-bros' RIGHT_ONLY, SIMPLE_MOVEMENT and COMPLEX_MOVEMENT.
ACTION_SETS: dict[ActionSet, tuple[int, ...]] = {"right_only": _RIGHT_ONLY, "simple": _SIMPLE, "complex": _COMPLEX}
