"""Experience from collector processes: they play, a thread consolidates, the main loop sleeps until there is work."""

import contextlib
import time
from collections.abc import Callable
from multiprocessing.context import SpawnContext
from typing import Any

from torch import Tensor

from mario_rl.accounts.flow import share_out
from mario_rl.accounts.ledger import Ledger
from mario_rl.channels.control import UNLIMITED, Control
from mario_rl.channels.doorbell import PeerGoneError
from mario_rl.channels.experience_ring import CollectorStat, RingReader
from mario_rl.channels.weight_slots import WeightSlots
from mario_rl.collecting.collector import CollectorSetup
from mario_rl.collecting.consolidation import Consolidation, ConsolidationThread
from mario_rl.collecting.rules import CollectingRules
from mario_rl.collecting.source import start_new_episodes
from mario_rl.collecting.supervisor import Supervisor
from mario_rl.collecting.watch import CollectingWatch
from mario_rl.mapping.keeper import MapKeeper
from mario_rl.replay.streams import ReplayStreams
from mario_rl.telemetry.metrics import Metrics

TEND_SECONDS = 1.0  # between two looks after the collectors when the main loop has nothing else to do


class ParallelSource:
    """Collector processes and the consolidation thread."""

    def __init__(
        self,
        context: SpawnContext,
        rules: CollectingRules,
        setups: list[CollectorSetup],
        slots: WeightSlots,
        replay: ReplayStreams,
        ledger: Ledger,
        on_line: Callable[[str], None],
        keeper: MapKeeper | None = None,
    ) -> None:
        self._setups = setups
        self._replay = replay
        self._slots = slots
        self._ledger = ledger
        self.control = Control(context, len(setups))
        self._supervisor = Supervisor(context, rules, self.control, on_line, ledger.fail, self._restarted)
        readers = self._supervisor.readers
        self.consolidation = Consolidation(readers, replay, ledger, keeper)
        self._thread = ConsolidationThread(
            context, rules, self.consolidation, readers, ledger, self._collector_gone, on_line
        )
        self._watch = CollectingWatch(readers, self.consolidation, slots)
        self._collected_at_start = 0  # of this session
        self._collected_before = 0  # by earlier sessions of a resumed run, and by collectors that are gone
        self._limit: int | None = 0
        self._written_before = 0  # by collectors that are gone
        self.num_lost = 0  # decisions that went with the rings of collectors that died

    def start(self) -> None:
        """Start all collectors; they wait for `limit_collection`. The ledger must be up to date by now."""
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

    def metrics(self) -> Metrics:
        """How each collector does, and where all decisions went. While collectors play, a commit may be between."""
        return self._watch.metrics() | {
            "collectors/restarts": self.num_restarts,
            "collectors/written_decisions": self.num_written,
            "collectors/lost_decisions": self.num_lost,
        }

    def total_stats(self) -> list[dict[CollectorStat, float]]:
        """Each collector's own figures since its start."""
        return [reader.stats for reader in self._supervisor.readers]

    def stop(self) -> None:
        """End all collectors; what the rings hold is committed last."""
        self._supervisor.stop()
        self._thread.end()
        # A collector that died was settled when it was started again, but the last ones were not.
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

    def tensors(self) -> dict[str, Tensor]:
        """Nothing to keep."""
        return {}

    def check(self, state: Any, tensors: dict[str, Tensor]) -> None:
        """What a serial run has saved is not taken up, and may be anything."""

    def load(self, state: Any, tensors: dict[str, Tensor]) -> list[str]:
        """Nothing was kept, so what comes does not continue what replay holds."""
        return start_new_episodes(self._replay)
