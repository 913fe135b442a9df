"""Experience from one collector that the main loop plays itself, chunk by chunk: all happens in one fixed order."""

import time
from collections.abc import Callable
from multiprocessing.context import SpawnContext
from typing import Any

from torch import Tensor

from mario_rl.accounts.ledger import Ledger
from mario_rl.channels.control import Control
from mario_rl.channels.experience_ring import CollectorStat, RingShape, create_ring
from mario_rl.channels.weight_slots import WeightSlots
from mario_rl.collecting.collector import Collector, CollectorSetup
from mario_rl.collecting.consolidation import Consolidation
from mario_rl.collecting.source import start_new_episodes
from mario_rl.collecting.watch import CollectingWatch
from mario_rl.mapping.keeper import MapKeeper
from mario_rl.replay.streams import ReplayStreams
from mario_rl.telemetry.console import processor_line
from mario_rl.telemetry.metrics import Metrics


class SerialSource:
    """One collector, played by the main loop itself, chunk by chunk."""

    def __init__(
        self,
        context: SpawnContext,
        setup: CollectorSetup,
        slots: WeightSlots,
        replay: ReplayStreams,
        ledger: Ledger,
        on_line: Callable[[str], None],
        keeper: MapKeeper | None = None,
    ) -> None:
        self._rules = rules = setup.collecting
        self._slots = slots
        self._replay = replay
        self._ledger = ledger
        self.control = Control(context, 1)
        self._collector = Collector(setup, self.control, slots)
        self._writer, self._reader = create_ring(context, RingShape(1, rules.envs_per_process, rules.chunk_decisions))
        self.consolidation = Consolidation([self._reader], replay, ledger, keeper)
        self._watch = CollectingWatch([self._reader], self.consolidation, slots)
        self._on_line = on_line
        self._next_figures = 0.0
        self._begun = 0.0
        self._stop_reason: str | None = None

    def start(self) -> None:
        """Nothing runs by itself here."""
        self._begun = time.perf_counter()
        self._next_figures = time.monotonic() + self._rules.processor_log_seconds

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
        self._collector.take_news()
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
            self._on_line(processor_line(*self.consolidation.figures))
            self._next_figures = time.monotonic() + self._rules.processor_log_seconds

    def limit_collection(self, limit: int | None) -> None:
        """Neither side can run ahead here."""

    def request_stop(self, reason: str) -> None:
        """From a signal handler: the chunk in hand is finished first."""
        self._stop_reason = reason

    def is_stopping(self) -> bool:
        """Whether a signal has asked for a stop."""
        return self._stop_reason is not None

    def metrics(self) -> Metrics:
        """How the one collector does, and where all decisions went."""
        return self._watch.metrics() | {
            "collectors/restarts": 0,
            "collectors/written_decisions": self.num_written,
            "collectors/lost_decisions": 0,
        }

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

    def tensors(self) -> dict[str, Tensor]:
        """Acting weights and stacks."""
        return self._collector.tensors()

    def check(self, state: Any, tensors: dict[str, Tensor]) -> None:
        """A state that `load` would take up. Of another emulator, level or mode it is not, and may be anything."""
        if self._collector.fits(state):
            self._collector.check(state)

    def load(self, state: Any, tensors: dict[str, Tensor]) -> list[str]:
        """Put the emulators back where they were, and let them act with the weights that they had."""
        if not self._collector.fits(state):
            return start_new_episodes(self._replay)
        self._slots.publish(self._collector.acting_weights(tensors))
        self._collector.load(state, tensors)
        return []
