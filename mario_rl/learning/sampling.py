"""Sampling one batch ahead: a thread draws the next sample call while the learner trains on the last."""

import queue
import threading
import time
from typing import Protocol

from mario_rl.learning.targets import TargetsAhead
from mario_rl.replay.sampler import SampleBuffer, Sampler


class Samples(Protocol):
    """Where a trainer gets its sample calls from."""

    wait_seconds: float  # that the learner has waited here, since the start

    def next(self) -> SampleBuffer:
        """A new batch. The one before it may be overwritten from now on."""

    def settle(self) -> None:
        """Before a checkpoint: let the sampler see what the learner has noted so far, if that is possible."""

    def close(self) -> None:
        """Stop."""


class SampleInline:
    """Draws when asked. For serial mode, where the order of all random numbers must be the same every time."""

    def __init__(self, sampler: Sampler, size: int) -> None:
        self._sampler = sampler
        self._buffer = sampler.new_buffer(size)
        self.wait_seconds = 0.0  # there is no thread to wait for

    def next(self) -> SampleBuffer:
        """A new batch, in the same memory each time."""
        self._sampler.sample(self._buffer)
        return self._buffer

    def settle(self) -> None:
        """Before a checkpoint: let the sampler see what the learner has noted so far."""
        self._sampler.take_back(self._buffer)

    def close(self) -> None:
        """Nothing to stop."""


class SampleAhead:
    """Two buffers go round: the learner has one, the thread fills the other. Both ends sleep on a queue."""

    def __init__(self, sampler: Sampler, size: int, pinned: bool, targets: TargetsAhead | None = None) -> None:
        self._sampler = sampler
        self._targets = targets
        self._empty: queue.SimpleQueue[SampleBuffer | None] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[SampleBuffer | BaseException] = queue.SimpleQueue()
        self._first: SampleBuffer | None = sampler.new_buffer(size, pinned=pinned)  # given out at the first call
        self._in_use = sampler.new_buffer(size, pinned=pinned)
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
        """Have a buffer filled. The thread rests until now, so the networks are not read while they are copied."""
        if self._targets is not None:
            self._targets.refresh()
        self._empty.put(buffer)

    def _run(self) -> None:
        while (buffer := self._empty.get()) is not None:
            try:
                self._sampler.sample(buffer)
                if self._targets is not None:
                    self._targets.fill(buffer)
                self._full.put(buffer)
            except BaseException as error:  # raised again in the thread that asked
                self._full.put(error)
                return
