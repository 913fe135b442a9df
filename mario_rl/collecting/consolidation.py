"""Consolidation: from all rings into replay, in large commits. A thread of the learner process (inline in serial mode).

The thread sleeps on all doorbells at once. A *commit* moves everything that waits, when EXPERIENCE_BATCH_SIZE
experiences wait or half a second after the first of them. It copies straight from the ring's slot into replay and
holds no lock while it does.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext
from typing import NamedTuple

import numpy as np

from mario_rl.accounts.ledger import Ledger
from mario_rl.channels.doorbell import PeerGoneError, create_doorbell
from mario_rl.channels.experience_ring import CollectorStat, RingReader
from mario_rl.collecting.rules import CollectingRules
from mario_rl.experience import Mark, Rows, finished_episodes
from mario_rl.mapping.keeper import MapKeeper
from mario_rl.replay.streams import ReplayStreams
from mario_rl.telemetry.console import processor_line

logger = logging.getLogger(__name__)

MAX_DELAY_SECONDS = 0.5  # between the first waiting experience and its commit


class ProcessorFigures(NamedTuple):
    """The [PROCESSOR] line."""

    processed: int  # experiences moved into replay
    batches: int  # commits
    drops: int
    buffer: int  # rows in replay
    consolidated_queue: int  # rows that wait in rings


class Consolidation:
    """Moves experience. `commit` is used by one thread."""

    def __init__(
        self, readers: list[RingReader], replay: ReplayStreams, ledger: Ledger, keeper: MapKeeper | None = None
    ) -> None:
        self._readers = list(readers)
        self._replay = replay
        self._keeper = keeper  # of the map, where there is one
        self._ledger = ledger
        self.committed = [0] * len(readers)  # decisions out of each collector's present ring
        self._earlier_drops = 0  # of rings that are gone
        self._processed = 0
        self._batches = 0
        self.busy_seconds = 0.0  # inside commits

    @property
    def figures(self) -> ProcessorFigures:
        """As of now; the counts may be one commit apart."""
        drops = sum(int(reader.stats[CollectorStat.DECISIONS_DROPPED]) for reader in self._readers)
        drops += self._earlier_drops
        return ProcessorFigures(self._processed, self._batches, drops, self._replay.num_rows, self.num_waiting)

    @property
    def num_waiting(self) -> int:
        """Rows that are ready in rings."""
        return sum(reader.num_waiting_rows for reader in self._readers)

    def commit(self) -> None:
        """Move everything that waits into replay."""
        begun = time.perf_counter()
        decisions = 0
        episodes = []
        for collector, reader in enumerate(self._readers):
            num_chunks = 0
            while chunk := reader.next_chunk():
                self._append(collector, chunk.rows, chunk.continues)
                in_chunk = chunk.rows.marks.size - int(np.count_nonzero(chunk.rows.marks & Mark.FINAL))
                self.committed[collector] += in_chunk
                decisions += in_chunk
                episodes += finished_episodes(chunk.rows)
                reader.release()
                num_chunks += 1
            if num_chunks:
                _wake(reader)
        if decisions:
            self._processed += decisions
            self._batches += 1
            self._ledger.add_collected(decisions, episodes)
        self.busy_seconds += time.perf_counter() - begun

    def replace_ring(self, collector: int, reader: RingReader) -> None:
        """Read a collector's new ring from now on; the old one is gone with the process that wrote it."""
        old = self._readers[collector]
        self._earlier_drops += int(old.stats[CollectorStat.DECISIONS_DROPPED])
        old.close()
        self.committed[collector] = 0
        self._readers[collector] = reader
        self._interrupt(collector, reader.memory.shape.num_envs)

    def _append(self, collector: int, rows: Rows, continues: bool) -> None:
        num_envs = len(rows.action)
        if not continues:
            self._interrupt(collector, num_envs)
        self._replay.append(collector * num_envs, rows)
        if self._keeper is not None:
            self._keeper.add(collector * num_envs, rows, continues)

    def _interrupt(self, collector: int, num_envs: int) -> None:
        for stream in range(collector * num_envs, (collector + 1) * num_envs):
            self._replay.interrupt(stream)


class ConsolidationThread:
    """Runs a Consolidation until it is stopped."""

    def __init__(
        self,
        context: SpawnContext,
        rules: CollectingRules,
        consolidation: Consolidation,
        readers: list[RingReader],
        ledger: Ledger,
        on_collector_gone: Callable[[int], None],
        on_line: Callable[[str], None],
    ) -> None:
        self._rules = rules
        self._consolidation = consolidation
        self._readers = readers
        self._new_rings: queue.SimpleQueue[tuple[int, RingReader]] = queue.SimpleQueue()
        self._ledger = ledger
        self._on_collector_gone = on_collector_gone
        self._on_line = on_line
        # A signal handler may only do what cannot deadlock: it rings, and this thread tells the ledger.
        self.stop_ringer, self._stop_listener = create_doorbell(context)
        self.stop_reason: str | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="consolidation", daemon=True)

    def start(self) -> None:
        """Begin to move experience."""
        self._thread.start()

    def replace_ring(self, collector: int, reader: RingReader) -> None:
        """A collector was started again: read its new ring. For another thread."""
        self._new_rings.put((collector, reader))
        self.stop_ringer.ring()

    def end(self) -> None:
        """Commit what is left and stop the thread."""
        if self._thread.is_alive():
            self._ending = True
            self.stop_ringer.ring()
            self._thread.join()

    def close(self) -> None:
        """Let go of the stop doorbell."""
        self.stop_ringer.close()
        self._stop_listener.close()

    def _run(self) -> None:
        try:
            self._move_until_stopped()
        except Exception:
            logger.exception("The consolidation thread failed")
            self._ledger.fail("The consolidation thread failed; its traceback is above.")

    def _move_until_stopped(self) -> None:
        alive = dict(enumerate(self._readers))
        deadline: float | None = None
        next_figures = time.monotonic() + self._rules.processor_log_seconds
        while not self._ending:
            wake_at = next_figures if deadline is None else min(deadline, next_figures)
            timeout = max(0.0, wake_at - time.monotonic())
            wait([self._stop_listener.fileno(), *(reader.filled.fileno() for reader in alive.values())], timeout)
            self._stop_listener.answer()
            if self.stop_reason is not None:
                self._ledger.request_stop(self.stop_reason)
            while not self._new_rings.empty():
                collector, reader = self._new_rings.get()
                self._consolidation.replace_ring(collector, reader)
                alive[collector] = reader
            self._answer(alive)
            waiting = self._consolidation.num_waiting
            if waiting and deadline is None:
                deadline = time.monotonic() + MAX_DELAY_SECONDS
            if waiting >= self._rules.experience_batch_size or (deadline is not None and time.monotonic() >= deadline):
                self._consolidation.commit()
                deadline = None
            if time.monotonic() >= next_figures:
                self._on_line(processor_line(*self._consolidation.figures))
                next_figures = time.monotonic() + self._rules.processor_log_seconds
        self._answer(alive)
        self._consolidation.commit()

    def _answer(self, alive: dict[int, RingReader]) -> None:
        """Hear what collectors have written, and which of them are gone."""
        for collector, reader in list(alive.items()):
            try:
                reader.answer()
            except PeerGoneError:
                del alive[collector]
                self._consolidation.commit()  # what it had handed over is whole; what it was writing is lost
                self._on_collector_gone(collector)


def _wake(reader: RingReader) -> None:
    try:
        reader.wake_writer()
    except PeerGoneError:
        pass  # its filled doorbell tells the same, where it is handled
