"""How studies measure and what they return: interleaved repeats, medians with their spread, ratios first."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

Measured = TypeVar("Measured")
Variant = TypeVar("Variant")
UNITS = {"x": "x", "s": " s"}  # that stand behind a figure


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
        return self._quartiles[0]

    @property
    def high(self) -> float:
        """The third quartile."""
        return self._quartiles[2]

    @property
    def _quartiles(self) -> list[float]:
        """Within what was measured: Python's default guesses beyond the smallest and largest of few values."""
        if len(self.values) < 2:
            return self.values * 3
        return statistics.quantiles(self.values, n=4, method="inclusive")

    @property
    def spread(self) -> float:
        """Distance of the quartiles, as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


class Ratio(NamedTuple):
    """A figure that counts, with the threshold it was given where there is one."""

    value: float
    low: float
    high: float
    unit: str  # "x", "share", "1/s", ...
    threshold: str | None = None
    reached: bool | None = None


class StudyResult(NamedTuple):
    """What a study found."""

    rows: list[dict[str, Any]]  # a row with other columns than the one before it begins another table
    ratios: dict[str, Ratio]
    notes: list[str]


class MissingPackageError(Exception):
    """A study compares with a package that is not installed; the message is for the user."""


# What a package may raise when it is imported or first used and is missing, half installed, or built for another torch.
BROKEN_INSTALL = (ImportError, OSError, RuntimeError, AttributeError)


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def interleave(
    variants: Mapping[Variant, Callable[[], float]], repeats: int, *, warm_up: bool = True
) -> dict[Variant, Sample]:
    """Measure A B A B ..., so that a noisy minute hits all variants alike; the first round warms up and is left out."""
    return {name: Sample(values) for name, values in interleave_many(variants, repeats, warm_up=warm_up).items()}


def interleave_many(
    variants: Mapping[Variant, Callable[[], Measured]], repeats: int, *, warm_up: bool = True
) -> dict[Variant, list[Measured]]:
    """The same for measurements of several figures at once."""
    values: dict[Variant, list[Measured]] = {name: [] for name in variants}
    for round_number in range(repeats + warm_up):
        for name, measure in variants.items():
            value = measure()
            if round_number >= warm_up:
                values[name].append(value)
    return values


def rate(call: Callable[[], Any], seconds: float) -> float:
    """Calls a second, counted for about `seconds`."""
    count, begun = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begun) < seconds:
        call()
        count += 1
    return count / elapsed


def at_least(sample: Sample, threshold: float, unit: str) -> Ratio:
    """A figure that should be large."""
    return _judged(sample, unit, f">= {threshold:,g}", sample.median >= threshold)


def at_most(sample: Sample, threshold: float, unit: str) -> Ratio:
    """A figure that should be small."""
    return _judged(sample, unit, f"<= {threshold:,g}", sample.median <= threshold)


def _judged(sample: Sample, unit: str, threshold: str, reached: bool) -> Ratio:
    """With its threshold, about which nothing can be said where the figure is not a number."""
    verdict = None if math.isnan(sample.median) else reached
    return Ratio(sample.median, sample.low, sample.high, unit, threshold, verdict)


def as_is(sample: Sample, unit: str) -> Ratio:
    """A figure without a threshold."""
    return Ratio(sample.median, sample.low, sample.high, unit)


def quotient(numerator: Sample, denominator: Sample) -> Sample:
    """The ratios of measurements that were made side by side; none where there is nothing to divide by."""
    pairs = zip(numerator.values, denominator.values, strict=True)
    return Sample([a / b for a, b in pairs if b] or [math.nan])
