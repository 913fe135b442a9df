"""Which values a setting may have: what a part writes beside a field of its rule class, and `settings/` checks."""

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Between:
    """An inclusive range."""

    low: float
    high: float


@dataclass(frozen=True)
class OneOf:
    """The names in a registry, as it is when a setting is checked."""

    names: Collection[str]


Positive = Between(1, 10**9)
Probability = Between(0.0, 1.0)
