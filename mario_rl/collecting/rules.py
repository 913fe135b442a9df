"""How experience is collected: processes, emulators, chunks, rings, commits and restarts."""

from dataclasses import dataclass
from typing import Annotated

from mario_rl.channels.experience_ring import RingShape, WhenFull
from mario_rl.ranges import Between, Positive

MAX_RING_SLOTS = 4096  # a doorbell's pipe holds at least this many bytes


@dataclass(frozen=True)
class CollectingRules:
    """The same for every collector."""

    num_processes: Annotated[int, Between(1, 256)]
    envs_per_process: Annotated[int, Between(1, 256)]
    chunk_decisions: Annotated[int, Between(1, 1024)]
    rep_q_size: Annotated[int, Positive]
    when_ring_full: WhenFull
    experience_batch_size: Annotated[int, Positive]  # experiences that make a commit
    max_restarts_per_hour: Annotated[int, Between(0, 10**6)]  # of all collectors together
    hang_seconds: Annotated[float, Between(1.0, 1e6)]  # without a heartbeat, after which a collector is killed
    processor_log_seconds: Annotated[float, Between(0.1, 1e6)]  # between two [PROCESSOR] lines

    @property
    def num_streams(self) -> int:
        """Emulators of all collectors."""
        return self.num_processes * self.envs_per_process

    @property
    def chunk_experiences(self) -> int:
        """Experiences that one collector hands over at once."""
        return self.envs_per_process * self.chunk_decisions

    @property
    def ring_slots(self) -> int:
        """Chunks a ring holds, so that 2 x REP_Q_SIZE experiences wait in all rings together."""
        return 2 * self.rep_q_size // (self.num_processes * self.chunk_experiences)

    @property
    def ring_shape(self) -> RingShape:
        """Every collector's ring."""
        return RingShape(self.ring_slots, self.envs_per_process, self.chunk_decisions)

    def conflicts(self) -> list[str]:
        """Rings that are too short to be useful, or too long for their doorbell."""
        if self.ring_slots < 2:
            return [
                f"REP_Q_SIZE = {self.rep_q_size:,} leaves each ring {self.ring_slots} chunks of "
                f"{self.chunk_experiences:,}: raise REP_Q_SIZE to at least "
                f"{self.num_processes * self.chunk_experiences:,} or lower CHUNK_DECISIONS."
            ]
        if self.ring_slots > MAX_RING_SLOTS:
            return [
                f"REP_Q_SIZE = {self.rep_q_size:,} gives each ring {self.ring_slots:,} chunks, more than "
                f"{MAX_RING_SLOTS:,}: raise CHUNK_DECISIONS."
            ]
        return []
