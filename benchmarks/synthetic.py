"""Experience without a game: chunks whose pictures cost nothing to make, for studies of what comes after the game."""

import time
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

import numpy as np

from mario_rl.channels.doorbell import PeerGoneError
from mario_rl.channels.experience_ring import RingReader, RingShape, RingWriter, create_ring
from mario_rl.experience import FIELDS, Mark, Rows

EPISODE_LENGTH = 200


def synthetic_rows(num_envs: int, length: int, seed: int = 0) -> Rows:
    """Rows of episodes of 200 decisions, with noise for pictures."""  # [envs, length, ...]
    rng = np.random.default_rng(seed)
    columns: list[Any] = [np.zeros((num_envs, length, *field.shape), field.dtype) for field in FIELDS]
    rows = Rows(*columns)
    rows.frame[:] = rng.integers(0, 256, rows.frame.shape, dtype=np.uint8)
    rows.reward[:] = rng.random(rows.reward.shape, dtype=np.float32)
    rows.marks[:, ::EPISODE_LENGTH] = Mark.START
    rows.marks[:, EPISODE_LENGTH - 2 :: EPISODE_LENGTH] = Mark.TERMINATED
    rows.marks[:, EPISODE_LENGTH - 1 :: EPISODE_LENGTH] = Mark.FINAL
    return rows


def copy_rows(source: Rows, target: Rows) -> None:
    """All columns."""
    for name in Rows._fields:
        np.copyto(getattr(target, name), getattr(source, name))


def write_chunks(writer: RingWriter, rows_per_second: float | None) -> None:
    """The target of a writer process: chunks as fast as the ring takes them, or at a given pace, while it is read."""
    shape = writer.memory.shape
    rows = synthetic_rows(shape.num_envs, shape.chunk_decisions)
    next_time = time.perf_counter()
    try:
        while True:
            writer.answer()
            while writer.is_full:
                writer.freed.wait()
                writer.answer()
            copy_rows(rows, writer.free_slot())
            writer.publish()
            if rows_per_second is not None:
                next_time += shape.rows_per_chunk / rows_per_second
                time.sleep(max(0.0, next_time - time.perf_counter()))
    except PeerGoneError:
        pass


def start_writer(
    context: SpawnContext, shape: RingShape, rows_per_second: float | None = None
) -> tuple[SpawnProcess, RingReader]:
    """A process that writes chunks, and the ring's other end. Close the reader to end it."""
    writer, reader = create_ring(context, shape)
    process = context.Process(target=write_chunks, args=(writer, rows_per_second), daemon=True)
    process.start()
    writer.close()
    return process, reader
