"""From a collector's process into replay: a queue that pickles experiences, a queue of chunks, and our ring."""

import multiprocessing
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from typing import Any

import numpy as np

from benchmarks.measure import Sample, StudyResult, as_is, at_least, at_most, interleave, quotient
from benchmarks.synthetic import copy_rows, start_writer, synthetic_rows
from mario_rl.accounts.ledger import Ledger
from mario_rl.collecting.consolidation import Consolidation, ConsolidationThread
from mario_rl.collecting.rules import CollectingRules
from mario_rl.experience import BYTES_PER_ROW, STACK_SIZE, Rows
from mario_rl.replay.streams import ReplayStreams

QUESTION = "How many experiences a second does each kind of channel carry, and what does receiving them cost?"
TEACHES = (
    "The ring spares what queues spend on pickling, on a pipe for the bulk of the data, and on two stacks of four "
    "pictures where one picture is new. It carries far more than the fast emulator plays, so it is never the limit. "
    "Between the ring and a plain copy lie a second copy, Python's work for each chunk, and caches."
)
SECONDS = {"quick": 11, "full": 125}
RULES = CollectingRules(
    num_processes=1,
    envs_per_process=8,
    chunk_decisions=16,
    rep_q_size=1_024,  # 16 chunks
    when_ring_full="wait",
    experience_batch_size=256,
    max_restarts_per_hour=0,
    hang_seconds=60.0,
    processor_log_seconds=1e6,
)
PACED_RULES = replace(RULES, rep_q_size=2 * RULES.rep_q_size)
SHAPE = RULES.ring_shape
ROWS_PER_SECOND = 2_000.0

PICKLED = "a queue, one pickled experience a put"
CHUNKS = "a queue of chunks"
RING = "our ring, into replay"
COPY = "one copy within a process"


def run(quick: bool) -> StudyResult:
    """Interleave the channels; then let the ring keep a pace and count CPU seconds."""
    context = multiprocessing.get_context("spawn")
    seconds = 0.5 if quick else 2.0
    measured = interleave(
        {
            PICKLED: lambda: _queue_rate(context, _put_experiences, 1, seconds),
            CHUNKS: lambda: _queue_rate(context, _put_chunks, SHAPE.rows_per_chunk, seconds),
            RING: lambda: _ring_rate(context, seconds),
            COPY: lambda: _copy_rate(seconds),
        },
        repeats=1 if quick else 5,
        warm_up=not quick,
    )
    cpu_shares = Sample([_consolidation_share(context, 2.0 if quick else 8.0) for _ in range(1 if quick else 4)])
    rows = [
        {
            "channel": name,
            "experiences/s": f"{sample.median:,.0f}",
            "GB/s": f"{sample.median * BYTES_PER_ROW / 1e9:.2f}",
            "spread": f"{sample.spread:.0%}",
        }
        for name, sample in measured.items()
    ]
    return StudyResult(
        rows,
        {
            "experiences/s through one ring": at_least(measured[RING], 200_000, "1/s"),
            "the ring against pickled experiences": as_is(quotient(measured[RING], measured[PICKLED]), "x"),
            "the ring against a queue of chunks": as_is(quotient(measured[RING], measured[CHUNKS]), "x"),
            "of what a single copy in one process reaches": as_is(quotient(measured[RING], measured[COPY]), "x"),
            "share of a core for consolidation at 2,000/s": at_most(cpu_shares, 0.03, "share"),
        },
        [
            "A pickled experience holds two stacks of four pictures, as designs have it that do not rebuild them; GB/s",
            "counts one picture an experience. The ring copies twice (into the slot, into replay), in two processes.",
        ],
    )


def _put_experiences(channel: Any) -> None:
    stack = np.zeros((STACK_SIZE, 84, 84), np.uint8)
    while True:
        channel.put((stack, 1, 0.5, stack, False))


def _put_chunks(channel: Any) -> None:
    rows = synthetic_rows(SHAPE.num_envs, SHAPE.chunk_decisions)
    while True:
        channel.put(tuple(rows))


def _queue_rate(context: SpawnContext, put: Callable[[Any], None], rows_each: int, seconds: float) -> float:
    channel = context.Queue(2_000 // rows_each + 1)
    process = context.Process(target=put, args=(channel,), daemon=True)
    process.start()
    channel.get()  # the writer has started
    received, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        channel.get()
        received += rows_each
    measured = received / (time.perf_counter() - begun)
    process.terminate()
    process.join()
    channel.cancel_join_thread()
    channel.close()
    return measured


class _Receiver:
    """A ring's reading end with its consolidation thread."""

    def __init__(self, context: SpawnContext, rules: CollectingRules, rows_per_second: float | None) -> None:
        self.ledger = Ledger()
        replay = ReplayStreams(rules.num_streams, 20_000)
        self._process, self._reader = start_writer(context, rules.ring_shape, rows_per_second)
        consolidation = Consolidation([self._reader], replay, self.ledger)
        self._thread = ConsolidationThread(
            context, rules, consolidation, [self._reader], self.ledger, lambda _: None, lambda _: None
        )
        self._thread.start()
        self.ledger.wait_until(lambda: self.ledger.collected > 1_000, None)  # it has started and warmed up

    def close(self) -> None:
        self._thread.end()
        self._reader.close()
        self._process.join()
        self._thread.close()


def _ring_rate(context: SpawnContext, seconds: float) -> float:
    receiver = _Receiver(context, RULES, None)
    before, begun = receiver.ledger.collected, time.perf_counter()
    time.sleep(seconds)
    measured = (receiver.ledger.collected - before) / (time.perf_counter() - begun)
    receiver.close()
    return measured


def _copy_rate(seconds: float) -> float:
    source = synthetic_rows(SHAPE.num_envs, SHAPE.chunk_decisions)
    targets: list[Rows] = [synthetic_rows(SHAPE.num_envs, SHAPE.chunk_decisions) for _ in range(SHAPE.num_slots)]
    copied, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        copy_rows(source, targets[copied % SHAPE.num_slots])
        copied += 1
    return copied * SHAPE.rows_per_chunk / (time.perf_counter() - begun)


def _consolidation_share(context: SpawnContext, seconds: float) -> float:
    """CPU seconds a second of a process that does nothing but receive at a given pace."""
    received, sent = context.Pipe(duplex=False)
    process = context.Process(target=_consolidate, args=(seconds, sent))
    process.start()
    sent.close()  # or a child that fails would leave us waiting
    share: float = received.recv()
    process.join()
    return share


def _consolidate(seconds: float, result: "Connection[float, None]") -> None:
    receiver = _Receiver(multiprocessing.get_context("spawn"), PACED_RULES, ROWS_PER_SECOND)
    begun, cpu = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    result.send((time.process_time() - cpu) / (time.perf_counter() - begun))
    receiver.close()
