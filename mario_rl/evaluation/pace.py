"""Lets an evaluation go on only as fast as its share of the cores allows."""

import time
from collections.abc import Callable

BEAT_SECONDS = 5.0  # between two signs of life


class Pace:
    """The CPU time used since its start, against the time that passed; with a sign of life now and then."""

    def __init__(self, cores: float, beat: Callable[[], None]) -> None:
        self._cores = cores
        self._beat = beat
        self._hurries = False
        self._begun = self._last_beat = time.monotonic()
        self._cpu_begun = time.process_time()

    def hurry(self) -> None:
        """From now on, sleep no more."""
        self._hurries = True

    def wait_for_turn(self) -> bool:
        """Sleep until as much CPU time may be used as was used already; then go on."""
        continues_at = self._begun + (time.process_time() - self._cpu_begun) / self._cores
        while True:
            now = time.monotonic()
            if now - self._last_beat >= BEAT_SECONDS:
                self._last_beat = now
                self._beat()
            if now >= continues_at or self._hurries:
                self._begun += now - continues_at  # what was not used is gone: no burst makes up for it
                return True
            time.sleep(min(continues_at - now, BEAT_SECONDS))
