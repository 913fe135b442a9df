"""Sampling one batch ahead: a thread draws the next sample call while the learner trains on the last."""

import queue
import threading
import time

from mario_rl.learning.targets import GoalsAhead
from mario_rl.replay.sampler import SampleBuffer, Sampler


class SampleInline:
    """Draws when asked. For serial mode, where the order of all random numbers must be the same every time."""

    def __init__(self, sampler: Sampler, size: int, prioritized: bool = False) -> None:
        self._sampler = sampler
        self._buffer = SampleBuffer(size, prioritized=prioritized)

    def next(self) -> SampleBuffer:
        """A new batch, in the same memory each time."""
        self._sampler.sample(self._buffer)
        return self._buffer

    def settle(self) -> None:
        """Before a checkpoint: let the sampler see what the learner has noted so far."""
        self._sampler.take_back(self._buffer)

    wait_seconds = 0.0  # nobody to wait for

    def close(self) -> None:
        """Nothing to stop."""


class SampleAhead:
    """Two buffers go round: the learner has one, the thread fills the other. Both ends sleep on a queue."""

    def __init__(
        self,
        sampler: Sampler,
        size: int,
        pinned: bool,
        goals: GoalsAhead | None = None,
        prioritized: bool = False,
    ) -> None:
        self._sampler = sampler
        self._goals = goals
        self._empty: queue.SimpleQueue[SampleBuffer | None] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[SampleBuffer | BaseException] = queue.SimpleQueue()
        self._first: SampleBuffer | None = SampleBuffer(size, pinned, prioritized)  # given out at the first call
        self._in_use = SampleBuffer(size, pinned, prioritized)
        self.wait_seconds = 0.0  # that the learner has waited here, since the start
        self._thread = threading.Thread(target=self._run, name="sampling", daemon=True)
        self._thread.start()

    def next(self) -> SampleBuffer:
        """The batch that was drawn meanwhile. The one before it is refilled from now on."""
        if self._first is not None:
            self._give(self._first)
            self._first = None
        begun = time.perf_counter()
        full = self._full.get()
        self.wait_seconds += time.perf_counter() - begun
        if isinstance(full, BaseException):
            raise full
        self._give(self._in_use)
        self._in_use = full
        return full

    def settle(self) -> None:
        """Nothing: the thread goes on by itself, and a checkpoint takes the priorities as it finds them."""

    def close(self) -> None:
        """Stop the thread."""
        self._empty.put(None)
        self._thread.join()

    def _give(self, buffer: SampleBuffer) -> None:
        """Have a buffer filled. The thread rests until now, so nobody reads the networks while they are copied."""
        if self._goals is not None:
            self._goals.refresh()
        self._empty.put(buffer)

    def _run(self) -> None:
        while (buffer := self._empty.get()) is not None:
            try:
                self._sampler.sample(buffer)
                if self._goals is not None:
                    self._goals.fill(buffer)
                self._full.put(buffer)
            except BaseException as error:  # raised again in the thread that asked
                self._full.put(error)
                return
