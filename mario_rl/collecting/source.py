"""Where experience comes from, as the main loop knows it. `app/wiring.py` chooses one.

A source puts rows into replay, and tells the ledger about them. How it gets them is its own business: collector
processes (`parallel_source.py`), one collector in this very process (`serial_source.py`), or anything else.
"""

from collections.abc import Callable
from typing import Protocol

from mario_rl.replay.streams import ReplayStreams
from mario_rl.saved_part import SavedPart


class ExperienceSource(SavedPart, Protocol):
    """Used by the main loop alone, except where a method says otherwise."""

    @property
    def num_restarts(self) -> int:
        """How often collectors were started again."""

    @property
    def num_lost(self) -> int:
        """Decisions that were made and never reached replay."""

    def start(self) -> None:
        """Begin. The ledger is up to date by now, and the first weights are published."""

    def wait_for_work(self, condition: Callable[[], bool], timeout_seconds: float | None) -> None:
        """Return when the condition holds, the run should stop, or the time is over; collect or sleep until then."""

    def limit_collection(self, limit: int | None) -> None:
        """Make no more than `limit` decisions in the whole run; None: no limit."""

    def request_stop(self, reason: str) -> None:
        """Have the ledger asked to stop, soon. From a signal handler: it must not wait for any lock."""

    def is_stopping(self) -> bool:
        """Whether a signal has asked for a stop."""

    def metrics(self) -> dict[str, float]:
        """What there is to report, with rates since the last call."""

    def stop(self) -> None:
        """End, and leave nothing running; all that was collected is in replay."""

    def kill(self) -> None:
        """End all processes at once. From a signal handler, or after an error."""


def start_new_episodes(replay: ReplayStreams) -> list[str]:
    """For `load`: what comes does not continue what replay holds. That in words."""
    for stream in range(replay.num_streams):
        replay.interrupt(stream)
    return ["every emulator starts a new episode"]
