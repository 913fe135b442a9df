"""The ledger: what was collected, trained and finished, and the place where the main loop sleeps.

Two threads use it: the consolidation thread adds experience, the main loop adds training and waits for work. One
condition guards it, held for a few additions at a time; nothing is copied or computed under it.
"""

import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor

from mario_rl.experience import EpisodeSummary
from mario_rl.saved_part import check_counts, check_like
from mario_rl.telemetry.locks import LockReport, TimedLock
from mario_rl.telemetry.metrics import Metrics, Rates


class Ledger:
    """Counters of the whole run; they continue across a resume."""

    def __init__(self) -> None:
        self._lock = TimedLock()
        self._changed = threading.Condition(self._lock)  # type: ignore[arg-type]
        self.collected = 0  # decisions whose rows are in replay
        self.trained = 0  # experiences
        self.num_episodes = 0
        self._new_episodes: list[EpisodeSummary] = []
        self._stop_reason: str | None = None
        self._failure: str | None = None
        self._rates = Rates()

    @property
    def stop_reason(self) -> str | None:
        """Why the run should end, once it should."""
        return self._stop_reason

    @property
    def failure(self) -> str | None:
        """What went wrong in a collector or thread, if anything did."""
        return self._failure

    def add_collected(self, decisions: int, episodes: list[EpisodeSummary]) -> None:
        """A commit has moved decisions into replay, and with them the ends of episodes."""
        with self._changed:
            self.collected += decisions
            self.num_episodes += len(episodes)
            self._new_episodes += episodes
            self._changed.notify_all()

    def add_trained(self, experiences: int) -> None:
        """A round of training is done."""
        with self._changed:
            self.trained += experiences

    def wake(self) -> None:
        """Let the main loop look for work."""
        with self._changed:
            self._changed.notify_all()

    def request_stop(self, reason: str) -> None:
        """Wake the main loop and let it end. Not from a signal handler: that may interrupt a holder of the lock."""
        with self._changed:
            self._stop_reason = self._stop_reason or reason
            self._changed.notify_all()

    def fail(self, failure: str) -> None:
        """As request_stop, after something went wrong."""
        with self._changed:
            self._failure = self._failure or failure
            self._stop_reason = self._stop_reason or "failure"
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float | None) -> None:
        """Sleep until the condition holds, the run should stop, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop_reason is not None or condition(), timeout_seconds)

    def take_episodes(self, count: int) -> list[EpisodeSummary]:
        """The next finished episodes, oldest first."""
        with self._changed:
            taken, self._new_episodes = self._new_episodes[:count], self._new_episodes[count:]
            return taken

    def take_lock_report(self) -> LockReport:
        """Waiting and holding times since the last report."""
        with self._changed:
            return self._lock.take_report()

    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        with self._changed:
            return {
                "collected": self.collected,
                "trained": self.trained,
                "num_episodes": self.num_episodes,
                "new_episodes": [list(episode) for episode in self._new_episodes],
            }

    def metrics(self) -> Metrics:
        """Of collecting and training together; rates since the last call."""
        rates = self._rates.since({"run/decisions_per_second": self.collected})
        return rates | {"replay/ratio": self.trained / max(1, self.collected)}

    def tensors(self) -> dict[str, Tensor]:
        """None."""
        return {}

    def check(self, state: Any, tensors: dict[str, Tensor]) -> None:
        """Counts, and finished episodes that no epoch has counted yet."""
        episodes = [[0.0, 0, 0, False] for _ in state["new_episodes"]]  # as EpisodeSummary
        check_like(state, self.state() | {"new_episodes": episodes}, "ledger")
        check_counts(state, "ledger")

    def load(self, state: Any, tensors: dict[str, Tensor]) -> list[str]:
        """From a checkpoint, before anything runs."""
        self.collected, self.trained = state["collected"], state["trained"]
        self.num_episodes = state["num_episodes"]
        self._new_episodes = [EpisodeSummary(*episode) for episode in state["new_episodes"]]
        return []
