"""A lock that knows how long threads waited for it and how long they held it."""

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Annotated, NamedTuple

from mario_rl.ranges import Between, Probability


@dataclass(frozen=True)
class LockRules:
    """From when on waiting for a lock is worth a warning."""

    lock_warn_milliseconds: Annotated[float, Between(0.0, 1e6)]  # a mean acquisition
    lock_warn_ratio: Annotated[float, Probability]


class LockReport(NamedTuple):
    """What happened since the last report."""

    acquisitions: int
    wait_seconds: float
    hold_seconds: float

    @property
    def mean_wait_milliseconds(self) -> float:
        """How long an acquisition took on average."""
        return 1e3 * self.wait_seconds / max(1, self.acquisitions)

    @property
    def mean_hold_milliseconds(self) -> float:
        """How long it was held each time."""
        return 1e3 * self.hold_seconds / max(1, self.acquisitions)

    @property
    def contention_ratio(self) -> float:
        """Wait / (wait + work): 0 where there is no waiting."""
        total = self.wait_seconds + self.hold_seconds
        return self.wait_seconds / total if total > 0 else 0.0


class TimedLock:
    """A plain lock with telemetry.

    Works as the lock of a `threading.Condition`: sleeping there is not counted as waiting for the lock, only the
    acquisition after it is. The figures are changed only by the thread that holds the lock, so they need no lock of
    their own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acquisitions = 0
        self._wait_seconds = 0.0
        self._hold_seconds = 0.0
        self._held_since = 0.0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.Lock.acquire`."""
        waited = 0.0
        if not self._lock.acquire(blocking=False):  # a free lock costs no waiting
            begun = time.perf_counter()
            if not blocking or not self._lock.acquire(blocking, timeout):
                return False
            waited = time.perf_counter() - begun
        self._held_since = time.perf_counter()
        self._wait_seconds += waited
        self._acquisitions += 1
        return True

    def release(self) -> None:
        """As `threading.Lock.release`."""
        self._hold_seconds += time.perf_counter() - self._held_since
        self._lock.release()

    def locked(self) -> bool:
        """As `threading.Lock.locked`."""
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def take_report(self) -> LockReport:
        """The figures since the last call. Only while holding the lock."""
        report = LockReport(self._acquisitions, self._wait_seconds, self._hold_seconds)
        self._acquisitions, self._wait_seconds, self._hold_seconds = 0, 0.0, 0.0
        return report


def lock_warning(report: LockReport, rules: LockRules) -> str | None:
    """A sentence where threads get into each other's way, else None."""
    if report.mean_wait_milliseconds > rules.lock_warn_milliseconds:
        return f"threads waited {report.mean_wait_milliseconds:.1f} ms on average for the ledger's lock"
    # A ratio of microseconds is noise: a lock that is nearly never used is not contended.
    if report.contention_ratio > rules.lock_warn_ratio and report.wait_seconds > 0.1:
        return f"threads spent {report.contention_ratio:.0%} of their time at the ledger's lock waiting for it"
    return None
