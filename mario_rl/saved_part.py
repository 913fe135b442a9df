"""How a part of a run is saved and taken up again; the same for every part.

A checkpoint that is whole by its hashes may still come from elsewhere. A part that stumbles over it later would do so
when processes run already, so each part checks what it is given before any part loads it: types, ranges and sizes are
compared with what this version would save itself.
"""

import math
from typing import Any, Protocol

from torch import Tensor

from mario_rl.errors import shown

LARGEST_COUNT = 10**15  # of decisions, updates, ...: what a run of a thousand years does not reach, and int64 holds


class SavedPart(Protocol):
    """A part that a checkpoint keeps. Names of tensors are the part's own and differ from all other parts'."""

    def state(self) -> dict[str, Any]:
        """What is kept as JSON."""

    def tensors(self) -> dict[str, Tensor]:
        """What is kept as tensors."""

    def check(self, state: Any, tensors: dict[str, Tensor]) -> None:
        """ValueError, TypeError or LookupError where this is not what `state` and `tensors` gave."""

    def load(self, state: Any, tensors: dict[str, Tensor]) -> list[str]:
        """Go on from there, before anything runs; what could not be taken up, in words."""


def check_like(saved: Any, expected: Any, name: str) -> None:
    """ValueError where a saved value is of another kind than the one that this version would save in its place.

    Numbers may differ, and lists may not differ in length. What an older version did not save yet is not missed here.
    """
    if isinstance(expected, dict):
        fits = isinstance(saved, dict)
        for key, value in expected.items() if fits else ():
            if key in saved:
                check_like(saved[key], value, f"{name}.{key}")
    elif isinstance(expected, list):
        fits = isinstance(saved, list) and len(saved) == len(expected)
        for number, value in enumerate(expected if fits else ()):
            check_like(saved[number], value, f"{name}[{number}]")
    elif isinstance(expected, float):
        fits = isinstance(saved, int | float) and not isinstance(saved, bool) and math.isfinite(saved)
    else:
        fits = type(saved) is type(expected)  # True is no number here
    if not fits:
        raise ValueError(f"{name} is {shown(saved)}")


def check_counts(saved: dict[str, Any], name: str) -> None:
    """ValueError where a whole number among these is not a count of anything."""
    for key, value in saved.items():
        if isinstance(value, int) and not 0 <= value <= LARGEST_COUNT:
            raise ValueError(f"{name}.{key} is {value}")
