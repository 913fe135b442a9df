"""Where experience comes from: collector processes, or one collector in this very process. Learner process only.

Both hold the same parts: rings, collectors, consolidation. `ParallelSource` lets them run and sleeps until there is
work; `SerialSource` plays a chunk itself whenever the main loop asks for work, so that all happens in one fixed order.
"""

import contextlib
import time
from collections.abc import Callable
from multiprocessing.context import SpawnContext
from typing import Any, NamedTuple

import torch

from mario_rl.accounts.flow import share_out
from mario_rl.accounts.ledger import Ledger
from mario_rl.channels.control import UNLIMITED, Control
from mario_rl.channels.doorbell import PeerGoneError
from mario_rl.channels.experience_ring import CollectorStat, RingReader, RingShape, create_ring
from mario_rl.channels.weight_slots import WeightSlots
from mario_rl.collecting.collector import Collector, CollectorSetup
from mario_rl.collecting.consolidation import Consolidation, ConsolidationThread, ProcessorFigures
from mario_rl.collecting.supervisor import RestartRules, Supervisor
from mario_rl.replay.streams import ReplayStreams

TEND_SECONDS = 1.0  # how often the main loop looks after its collectors when it has nothing else to do


class CollectorFigures(NamedTuple):
    """How one collector does, since the last time this was asked."""

    decisions_per_second: float
    ring_depth: int  # rows that wait in its ring
    ring_wait_share: float  # of its time, waiting for a slot
    throttle_share: float  # of its time, waiting for the replay ratio
    drops: int  # decisions, since its start
    weights_age: int  # versions behind the newest


class ParallelSource:
    """Collector processes and the consolidation thread."""

    def __init__(
        self,
        context: SpawnContext,
        setups: list[CollectorSetup],
        ring_shape: RingShape,
        slots: WeightSlots,
        replay: ReplayStreams,
        ledger: Ledger,
        commit_size: int,
        restarts: RestartRules,
        on_notice: Callable[[str], None],
        on_figures: Callable[[ProcessorFigures], None],
        figures_interval_seconds: float,
    ) -> None:
        self._setups = setups
        self._slots = slots
        self._ledger = ledger
        self.control = Control(context, len(setups))
        self._supervisor = Supervisor(
            context, ring_shape, len(setups), self.control, restarts, on_notice, ledger.fail, self._restarted
        )
        readers = self._supervisor.readers
        self.consolidation = Consolidation(readers, replay, ledger)
        self._thread = ConsolidationThread(
            context,
            self.consolidation,
            readers,
            ledger,
            commit_size,
            self._collector_gone,
            on_figures,
            figures_interval_seconds,
        )
        self._watch = _CollectorWatch(readers, slots)
        self._collected_at_start = 0  # of this session
        self._collected_before = 0  # by earlier sessions of a resumed run, and by collectors that are gone
        self._limit: int | None = 0
        self._written_before = 0  # by collectors that are gone
        self.num_lost = 0  # decisions that went with the rings of collectors that died

    def start(self) -> None:
        """Start everybody; they wait for `limit_collection`. The ledger must be up to date by now."""
        self._collected_at_start = self._collected_before = self._ledger.collected
        self.control.decisions = self._ledger.collected
        self._supervisor.start(self._setups, self._slots)
        self._thread.start()

    def wait_for_work(self, condition: Callable[[], bool], timeout_seconds: float | None) -> None:
        """Sleep until the condition holds or the run should stop; look after the collectors meanwhile."""
        deadline = time.monotonic() + (1e9 if timeout_seconds is None else timeout_seconds)
        while True:
            self._supervisor.tend()
            remaining = deadline - time.monotonic()
            patience = min(max(0.0, remaining), TEND_SECONDS, self._supervisor.seconds_until_restart)
            self._ledger.wait_until(lambda: condition() or self._supervisor.has_news, patience)
            if condition() or self._ledger.stop_reason is not None or remaining <= 0:
                break
        self.control.decisions = self._ledger.collected

    def limit_collection(self, limit: int | None) -> None:
        """Let collectors go on until `limit` decisions were made in all; what is left is shared equally."""
        self._limit = limit
        readers = self._supervisor.readers
        written = [int(reader.stats[CollectorStat.DECISIONS_WRITTEN]) for reader in readers]
        for number, granted in enumerate(share_out(limit, written, self._collected_before)):
            self.control.grant_decisions(number, UNLIMITED if granted is None else granted)
            try:
                readers[number].wake_writer()
            except PeerGoneError:
                pass  # the consolidation thread hears of it too, and reports it

    def request_stop(self, reason: str) -> None:
        """From a signal handler: ring, and let the consolidation thread tell the ledger."""
        self._thread.stop_reason = reason
        with contextlib.suppress(OSError):  # the run is ending already, and the doorbell is gone
            self._thread.stop_ringer.ring()

    def is_stopping(self) -> bool:
        """Whether a signal has asked for a stop."""
        return self._thread.stop_reason is not None

    def collector_figures(self) -> list[CollectorFigures]:
        """How each collector does."""
        return self._watch.figures()

    def total_stats(self) -> list[dict[CollectorStat, float]]:
        """Each collector's own figures since its start."""
        return [reader.stats for reader in self._supervisor.readers]

    def stop(self) -> None:
        """End everybody; what the rings hold is committed last."""
        self._supervisor.stop()
        self._thread.end()
        # Whoever died was settled when it was started again; not everybody was.
        self.num_lost = self.num_written - (self._ledger.collected - self._collected_at_start)
        self._supervisor.close()
        self._thread.close()

    def kill(self) -> None:
        """End the collectors at once, for a second Ctrl-C."""
        self._supervisor.kill()

    @property
    def num_restarts(self) -> int:
        """How often collectors were started again."""
        return self._supervisor.num_restarts

    @property
    def num_written(self) -> int:
        """Decisions that collectors have put into their rings, those that died included; since this session's start."""
        return self._written_before + sum(int(stats[CollectorStat.DECISIONS_WRITTEN]) for stats in self.total_stats())

    def _collector_gone(self, number: int) -> None:
        """In the consolidation thread: all that it had handed over is committed; the main loop does the rest."""
        self._supervisor.note_gone(number)
        self._ledger.wake()

    def _restarted(self, number: int, old_reader: RingReader) -> None:
        """In the main loop: settle the old ring's account, and have the new one read."""
        committed = self.consolidation.committed[number]
        self._collected_before += committed
        written = int(old_reader.stats[CollectorStat.DECISIONS_WRITTEN])
        self._written_before += written
        self.num_lost += written - committed
        self._thread.replace_ring(number, self._supervisor.readers[number])
        self.limit_collection(self._limit)

    def state(self) -> dict[str, Any]:
        """Processes restart their episodes on a resume: nothing to keep."""
        return {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Nothing to keep."""
        return {}

    def load(self, state: dict[str, Any], tensors: dict[str, torch.Tensor]) -> bool:
        """Whether the emulators could be put back where they were: never, so streams are interrupted."""
        return False


class SerialSource:
    """One collector, played by the main loop itself, chunk by chunk."""

    def __init__(
        self,
        context: SpawnContext,
        setup: CollectorSetup,
        slots: WeightSlots,
        replay: ReplayStreams,
        ledger: Ledger,
        on_figures: Callable[[ProcessorFigures], None],
        figures_interval_seconds: float,
    ) -> None:
        self._ledger = ledger
        self.control = Control(context, 1)
        self._collector = Collector(setup, self.control, slots)
        self._writer, self._reader = create_ring(context, RingShape(1, setup.num_envs, setup.chunk_decisions))
        self.consolidation = Consolidation([self._reader], replay, ledger)
        self._watch = _CollectorWatch([self._reader], slots)
        self._on_figures = on_figures
        self._figures_interval_seconds = figures_interval_seconds
        self._next_figures = 0.0
        self._begun = 0.0
        self._stop_reason: str | None = None

    def start(self) -> None:
        """Nothing runs by itself here."""
        self._begun = time.perf_counter()
        self._next_figures = time.monotonic() + self._figures_interval_seconds

    def wait_for_work(self, condition: Callable[[], bool], timeout_seconds: float | None) -> None:
        """Play chunks until the condition holds or the run should stop."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while not condition():
            if self._stop_reason is not None:
                self._ledger.request_stop(self._stop_reason)
            if self._ledger.stop_reason is not None or (deadline is not None and time.monotonic() >= deadline):
                return
            self._play_chunk()
        if self._stop_reason is not None:
            self._ledger.request_stop(self._stop_reason)

    def _play_chunk(self) -> None:
        self.control.decisions = self._ledger.collected
        self._collector.take_weights()
        self._writer.answer()
        self._collector.collect_chunk(self._writer.free_slot())
        self._writer.publish()
        self._reader.answer()
        before = self._ledger.collected
        self.consolidation.commit()
        stats = self._writer.memory.stats.array
        stats[CollectorStat.DECISIONS_WRITTEN] += self._ledger.collected - before
        stats[CollectorStat.WEIGHTS_VERSION] = self._collector.weights_version
        stats[CollectorStat.RUNNING_SECONDS] = time.perf_counter() - self._begun
        if time.monotonic() >= self._next_figures:
            self._on_figures(self.consolidation.figures)
            self._next_figures = time.monotonic() + self._figures_interval_seconds

    def limit_collection(self, limit: int | None) -> None:
        """Nobody can run ahead here."""

    def request_stop(self, reason: str) -> None:
        """From a signal handler: the chunk in hand is finished first."""
        self._stop_reason = reason

    def is_stopping(self) -> bool:
        """Whether a signal has asked for a stop."""
        return self._stop_reason is not None

    def collector_figures(self) -> list[CollectorFigures]:
        """How the one collector does."""
        return self._watch.figures()

    def total_stats(self) -> list[dict[CollectorStat, float]]:
        """The collector's own figures since its start."""
        return [self._reader.stats]

    def stop(self) -> None:
        """Free the emulators and pipes."""
        self._collector.close()
        self._reader.close()
        self._writer.close()

    num_restarts = num_lost = 0  # no process that could die

    @property
    def num_written(self) -> int:
        """Decisions that went through the ring; since this session's start."""
        return int(self._reader.stats[CollectorStat.DECISIONS_WRITTEN])

    def kill(self) -> None:
        """No process to end."""

    def state(self) -> dict[str, Any]:
        """Everything that an exact resume needs besides tensors."""
        return self._collector.state()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Acting weights and stacks."""
        return self._collector.tensors()

    def load(self, state: dict[str, Any], tensors: dict[str, torch.Tensor]) -> bool:
        """Whether the emulators could be put back where they were."""
        if not state or not self._collector.fits(state):
            return False  # the checkpoint was written by a parallel run, or with another emulator
        self._collector.load(state, tensors)
        return True


class _CollectorWatch:
    """Turns the collectors' running totals into rates since the last look."""

    def __init__(self, readers: list[RingReader], slots: WeightSlots) -> None:
        self._readers = readers
        self._slots = slots
        self._last_readers = list(readers)  # a collector that was started again has a new one
        self._last = [dict.fromkeys(CollectorStat, 0.0) for _ in readers]
        self._last_time = time.perf_counter()

    def figures(self) -> list[CollectorFigures]:
        now = time.perf_counter()
        seconds = max(1e-9, now - self._last_time)
        figures = []
        for number, reader in enumerate(self._readers):
            stats, last = reader.stats, self._last[number]
            if reader is not self._last_readers[number]:
                last = dict.fromkeys(CollectorStat, 0.0)
                self._last_readers[number] = reader
            rate = {stat: (stats[stat] - last[stat]) / seconds for stat in CollectorStat}
            version = int(stats[CollectorStat.WEIGHTS_VERSION])
            figures.append(
                CollectorFigures(
                    rate[CollectorStat.DECISIONS_WRITTEN] + rate[CollectorStat.DECISIONS_DROPPED],
                    reader.num_waiting_rows,
                    rate[CollectorStat.RING_WAIT_SECONDS],
                    rate[CollectorStat.THROTTLE_SECONDS],
                    int(stats[CollectorStat.DECISIONS_DROPPED]),
                    self._slots.version - version if version else 0,
                )
            )
            self._last[number] = stats
        self._last_time = now
        return figures
