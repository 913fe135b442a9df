"""What the learner tells its collectors, in shared memory: stop, the run's progress, and how far each may go.

At first a collector may not go at all. Written by the learner process alone, read by collectors between ticks. Each
entry is one aligned 8-byte word, so a read is never torn; a stale read only delays an effect by a tick.
"""

from multiprocessing.context import SpawnContext

import numpy as np

from mario_rl.channels.shared_array import shared_array

UNLIMITED = np.iinfo(np.int64).max


class Control:
    """One block for all collectors."""

    def __init__(self, context: SpawnContext, num_collectors: int) -> None:
        self._stop = shared_array(context, np.int64, (1,))
        self._decisions = shared_array(context, np.int64, (1,))
        self._granted_decisions = shared_array(context, np.int64, (num_collectors,))

    @property
    def stop(self) -> bool:
        """Whether collectors should end."""
        return bool(self._stop.array[0])

    @stop.setter
    def stop(self, value: bool) -> None:
        self._stop.array[0] = value

    @property
    def decisions(self) -> int:
        """Decisions of all collectors so far; exploration follows it."""
        return int(self._decisions.array[0])

    @decisions.setter
    def decisions(self, value: int) -> None:
        self._decisions.array[0] = value

    def granted_decisions(self, collector: int) -> int:
        """How many decisions, counted from its start, a collector may have written."""
        return int(self._granted_decisions.array[collector])

    def grant_decisions(self, collector: int, decisions: int) -> None:
        """Let a collector go as far as `decisions`."""
        self._granted_decisions.array[collector] = decisions
