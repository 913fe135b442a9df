"""One collector's way to the learner: a ring of chunks in shared memory, one writer, one reader, no lock.

A slot holds one chunk: T rows of each of the collector's E emulators, stream after stream, so that a commit copies
each stream's rows with one memcpy. The collector fills a slot in place and then counts it in `head`; the learner copies
it out and then counts it in `tail`. Each counter has one writer, and a doorbell after every change orders data before
counter (see `doorbell.py`). A chunk carries a sequence number; a gap tells the reader that something was dropped.
"""

import zlib
from enum import IntEnum
from multiprocessing.context import SpawnContext
from typing import Literal, NamedTuple

import numpy as np

from mario_rl.channels.doorbell import Listener, Ringer, create_doorbell
from mario_rl.channels.shared_array import shared_arrays
from mario_rl.experience import BYTES_PER_ROW, FIELDS, Rows

WhenFull = Literal["wait", "drop"]
HEAD, TAIL = 0, 8  # indices of two int64 that lie on different cache lines


class RingShape(NamedTuple):
    """How large a ring is."""

    num_slots: int
    num_envs: int
    chunk_decisions: int
    checked: bool = False  # every chunk carries a checksum, for tests that kill writers: 3 ms a chunk

    @property
    def rows_per_chunk(self) -> int:
        """Rows that cross the ring at once."""
        return self.num_envs * self.chunk_decisions

    @property
    def num_bytes(self) -> int:
        """Shared memory the ring will take."""
        return self.num_slots * self.rows_per_chunk * BYTES_PER_ROW


class TornChunkError(Exception):
    """A chunk is not as its writer published it; found only where rings are `checked`."""


class CollectorStat(IntEnum):
    """What a collector tells about itself: one float64 each, written by the collector alone, read at any time."""

    DECISIONS_WRITTEN = 0
    DECISIONS_DROPPED = 1
    RING_WAIT_SECONDS = 2  # the ring was full
    THROTTLE_SECONDS = 3  # the replay ratio said to wait
    WEIGHTS_VERSION = 4
    RUNNING_SECONDS = 5  # since its emulators were ready, as of the last chunk
    CPU_SECONDS = 6  # that it has used of them
    HEARTBEAT = 7  # when it last gave a sign of life, by the clock that all processes share; 0 before the first


class Chunk(NamedTuple):
    """A chunk as the reader sees it. `rows` is the ring's own memory: valid until `release`."""

    rows: Rows  # [envs, decisions, ...]
    continues: bool  # False where rows before this chunk are missing


class _RingMemory:
    """The shared part of both ends."""

    def __init__(self, context: SpawnContext, shape: RingShape) -> None:
        self.shape = shape
        leading = (shape.num_slots, shape.num_envs, shape.chunk_decisions)
        *self.columns, self.sequence, self.checksum, self.counters, self.stats = shared_arrays(
            context,
            [
                *((field.dtype, leading + field.shape) for field in FIELDS),
                (np.int64, (shape.num_slots,)),
                (np.int64, (shape.num_slots,)),
                (np.int64, (16,)),
                (np.float64, (len(CollectorStat),)),
            ],
        )

    def slot(self, number: int) -> Rows:
        index = number % self.shape.num_slots
        return Rows(*(column.array[index] for column in self.columns))

    def checksum_of(self, number: int) -> int:
        checksum = 0
        for column in self.slot(number):
            checksum = zlib.crc32(column.data, checksum)
        return checksum


class RingWriter:
    """The collector's end."""

    def __init__(self, memory: _RingMemory, filled: Ringer, freed: Listener) -> None:
        self.memory = memory
        self.freed = freed  # also rung for grants and stop, so a waiting collector sees those too
        self._filled = filled
        self._head = 0
        self._known_tail = 0
        self._sequence = 0

    @property
    def is_full(self) -> bool:
        """Whether the next chunk has no slot yet, as far as the last rings told."""
        return self._head - self._known_tail >= self.memory.shape.num_slots

    def answer(self) -> None:
        """Take what the learner's rings say: read how far it has come."""
        if self.freed.answer():
            self._known_tail = int(self.memory.counters.array[TAIL])

    def free_slot(self) -> Rows:
        """The memory of the next chunk. Only when the ring is not full."""
        assert not self.is_full
        return self.memory.slot(self._head)

    def publish(self) -> None:
        """Hand the filled slot to the reader."""
        index = self._head % self.memory.shape.num_slots
        self.memory.sequence.array[index] = self._sequence
        if self.memory.shape.checked:
            self.memory.checksum.array[index] = self.memory.checksum_of(self._head)
        self._sequence += 1
        self._head += 1
        self.memory.counters.array[HEAD] = self._head
        self._filled.ring()

    def skip(self) -> None:
        """Leave a gap instead of a chunk: the chunk was dropped."""
        self._sequence += 1

    def close(self) -> None:
        """Let go of the pipes; the reader sees end-of-file."""
        self._filled.close()
        self.freed.close()


class RingReader:
    """The learner's end."""

    def __init__(self, memory: _RingMemory, filled: Listener, freed: Ringer) -> None:
        self.memory = memory
        self.filled = filled
        self._freed = freed
        self._known_head = 0
        self._tail = 0
        self._next_sequence = 0

    @property
    def stats(self) -> dict[CollectorStat, float]:
        """A copy of the collector's own figures."""
        return {stat: float(self.memory.stats.array[stat]) for stat in CollectorStat}

    @property
    def num_waiting_rows(self) -> int:
        """Rows that lie ready."""
        return (self._known_head - self._tail) * self.memory.shape.rows_per_chunk

    def answer(self) -> None:
        """Take the collector's rings: read how far it has come. PeerGoneError once it has ended and all is read."""
        if self.filled.answer():
            self._known_head = int(self.memory.counters.array[HEAD])

    def next_chunk(self) -> Chunk | None:
        """The oldest chunk that was not released, or None."""
        if self._tail == self._known_head:
            return None
        index = self._tail % self.memory.shape.num_slots
        if self.memory.shape.checked and self.memory.checksum_of(self._tail) != self.memory.checksum.array[index]:
            raise TornChunkError(f"chunk {self._tail} of a ring does not have the checksum it was published with")
        sequence = int(self.memory.sequence.array[index])
        return Chunk(self.memory.slot(self._tail), continues=sequence == self._next_sequence)

    def release(self) -> None:
        """Give the oldest chunk's slot back; its rows may change from now on."""
        self._next_sequence = int(self.memory.sequence.array[self._tail % self.memory.shape.num_slots]) + 1
        self._tail += 1
        self.memory.counters.array[TAIL] = self._tail

    def wake_writer(self) -> None:
        """Tell the collector to look again: slots were freed, the grant has grown, or it is time to stop."""
        self._freed.ring()

    def close(self) -> None:
        """Let go of the pipes; the collector sees end-of-file and ends."""
        self.filled.close()
        self._freed.close()


def create_ring(context: SpawnContext, shape: RingShape) -> tuple[RingWriter, RingReader]:
    """Both ends of a new ring. The writer's end is meant to be passed to a child as it is started."""
    memory = _RingMemory(context, shape)
    filled_ringer, filled_listener = create_doorbell(context)
    freed_ringer, freed_listener = create_doorbell(context)
    return RingWriter(memory, filled_ringer, freed_listener), RingReader(memory, filled_listener, freed_ringer)
