"""How the collectors do, as the main loop reports it."""

import time
from typing import NamedTuple

from mario_rl.channels.experience_ring import CollectorStat, RingReader
from mario_rl.channels.weight_slots import WeightSlots
from mario_rl.collecting.consolidation import Consolidation
from mario_rl.telemetry.metrics import Metrics, Rates


class CollectorFigures(NamedTuple):
    """How one collector does, since the last look."""

    decisions_per_second: float
    ring_depth: int  # rows that wait in its ring
    ring_wait_share: float  # of its time, waiting for a slot
    throttle_share: float  # of its time, waiting for the replay ratio
    drops: int  # decisions, since its start
    weights_age: int  # versions behind the newest


class CollectingWatch:
    """Turns running totals of rings and consolidation into metrics."""

    def __init__(self, readers: list[RingReader], consolidation: Consolidation, slots: WeightSlots) -> None:
        self._readers = readers
        self._consolidation = consolidation
        self._slots = slots
        self._rates = Rates()
        self._last_readers = list(readers)  # a collector that was started again has a new one
        self._last = [dict.fromkeys(CollectorStat, 0.0) for _ in readers]
        self._last_time = time.perf_counter()

    def metrics(self) -> Metrics:
        """Of consolidation and of every collector; rates since the last call."""
        processor = self._consolidation.figures
        busy = self._rates.since({"processor/busy_share": self._consolidation.busy_seconds})
        collectors = {
            f"collector_{number}/{name}": float(value)
            for number, figures in enumerate(self._collectors())
            for name, value in figures._asdict().items()
        }
        return (
            busy
            | collectors
            | {
                "processor/processed": processor.processed,
                "processor/batches": processor.batches,
                "processor/drops": processor.drops,
                "processor/consolidated_queue": processor.consolidated_queue,
            }
        )

    def _collectors(self) -> list[CollectorFigures]:
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
