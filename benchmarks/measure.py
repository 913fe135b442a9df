"""How studies measure and what they return: interleaved repeats, medians with their spread, ratios first."""

import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Sample(NamedTuple):
    """Repeated measurements of one thing."""

    values: list[float]

    @property
    def median(self) -> float:
        """The middle one."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The first quartile."""
        return statistics.quantiles(self.values, n=4)[0] if len(self.values) > 1 else self.values[0]

    @property
    def high(self) -> float:
        """The third quartile."""
        return statistics.quantiles(self.values, n=4)[2] if len(self.values) > 1 else self.values[0]

    @property
    def spread(self) -> float:
        """Distance of the quartiles, as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


class Ratio(NamedTuple):
    """A figure that counts, with the goal it was given where there is one."""

    value: float
    low: float
    high: float
    unit: str  # "x", "share", "1/s", ...
    goal: str | None = None
    reached: bool | None = None


class StudyResult(NamedTuple):
    """What a study found."""

    rows: list[dict[str, Any]]
    ratios: dict[str, Ratio]
    notes: list[str]


class MissingPackageError(Exception):
    """A study compares with a package that is not installed; the message is for the user."""


def interleave(variants: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Sample]:
    """Measure A B A B ..., so that a noisy minute hits all variants alike; the first round warms up and is left out."""
    values: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(repeats + 1):
        for name, measure in variants.items():
            value = measure()
            if round_number:
                values[name].append(value)
    return {name: Sample(measured) for name, measured in values.items()}


def at_least(sample: Sample, goal: float, unit: str) -> Ratio:
    """A figure that should be large."""
    return Ratio(sample.median, sample.low, sample.high, unit, f">= {goal:,g}", sample.median >= goal)


def at_most(sample: Sample, goal: float, unit: str) -> Ratio:
    """A figure that should be small."""
    return Ratio(sample.median, sample.low, sample.high, unit, f"<= {goal:,g}", sample.median <= goal)


def as_is(sample: Sample, unit: str) -> Ratio:
    """A figure without a goal."""
    return Ratio(sample.median, sample.low, sample.high, unit)


def quotient(numerator: Sample, denominator: Sample) -> Sample:
    """The ratios of measurements that were made side by side."""
    return Sample([a / b for a, b in zip(numerator.values, denominator.values, strict=True)])
