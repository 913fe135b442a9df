"""A lock for many readers or one writer, which knows how long threads waited for it.

One condition guards all counters, and a thread that leaves wakes all that may go on. (Two conditions on two locks look
tidier and can hang: a leaving reader then notifies readers, and the writer that waits for it sleeps for ever.)

A writer that waits keeps new readers out, so a steady stream of readers cannot starve it. Writers could starve readers;
here every thread that writes has read before, so there is always one that lets go.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from mario_rl.telemetry.locks import LockReport


class ReadWriteReport(NamedTuple):
    """What happened since the last report."""

    reading: LockReport
    writing: LockReport


class ReadWriteLock:
    """Not reentrant, and a reader cannot become a writer: two that tried would wait for each other."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._num_readers = 0
        self._num_waiting_writers = 0
        self._is_writing = False
        self._reads = _Tally()
        self._writes = _Tally()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Together with other readers; no writer meanwhile."""
        begun = time.perf_counter()
        with self._condition:
            while self._is_writing or self._num_waiting_writers:
                self._condition.wait()
            self._num_readers += 1
        entered = time.perf_counter()
        try:
            yield
        finally:
            with self._condition:
                self._num_readers -= 1
                self._reads.add(entered - begun, time.perf_counter() - entered)
                self._condition.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Alone."""
        begun = time.perf_counter()
        with self._condition:
            self._num_waiting_writers += 1
            try:
                while self._is_writing or self._num_readers:
                    self._condition.wait()
                self._is_writing = True
            finally:
                self._num_waiting_writers -= 1
                if not self._is_writing:  # interrupted while waiting: let those in who waited for this writer
                    self._condition.notify_all()
        entered = time.perf_counter()
        try:
            yield
        finally:
            with self._condition:
                self._is_writing = False
                self._writes.add(entered - begun, time.perf_counter() - entered)
                self._condition.notify_all()

    def take_report(self) -> ReadWriteReport:
        """The figures since the last call."""
        with self._condition:
            report = ReadWriteReport(self._reads.report(), self._writes.report())
            self._reads, self._writes = _Tally(), _Tally()
        return report


class _Tally:
    """Sums that the condition's lock guards."""

    def __init__(self) -> None:
        self._count = 0
        self._wait_seconds = 0.0
        self._hold_seconds = 0.0

    def add(self, wait_seconds: float, hold_seconds: float) -> None:
        self._count += 1
        self._wait_seconds += wait_seconds
        self._hold_seconds += hold_seconds

    def report(self) -> LockReport:
        return LockReport(self._count, self._wait_seconds, self._hold_seconds)
