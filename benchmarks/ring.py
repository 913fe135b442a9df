"""How many experiences a second go from one process through a ring into replay, and what memory would allow."""

import multiprocessing
import time

from benchmarks.measure import Ratio, StudyResult, at_least, interleave, quotient
from benchmarks.synthetic import copy_rows, start_writer, synthetic_rows
from mario_rl.channels.experience_ring import RingShape
from mario_rl.experience import BYTES_PER_ROW
from mario_rl.learning.consolidation import Consolidation, ConsolidationThread
from mario_rl.learning.ledger import Ledger
from mario_rl.replay.streams import ReplayStreams

QUESTION = "How many experiences a second does one ring carry into replay?"
SHAPE = RingShape(num_slots=16, num_envs=8, chunk_decisions=16)
GOAL_PER_SECOND = 200_000


def run(quick: bool) -> StudyResult:
    """Interleave the ring with a plain copy of the same rows."""
    seconds = 0.5 if quick else 3.0
    measured = interleave(
        {"ring": lambda: _ring_rate(seconds), "one copy": lambda: _copy_rate(seconds)}, repeats=3 if quick else 9
    )
    rows = [
        {
            "path": name,
            "experiences/s": round(sample.median),
            "GB/s": round(sample.median * BYTES_PER_ROW / 1e9, 2),
            "spread": f"{sample.spread:.0%}",
        }
        for name, sample in measured.items()
    ]
    share = quotient(measured["ring"], measured["one copy"])
    return StudyResult(
        rows,
        {
            "experiences/s through one ring": at_least(measured["ring"], GOAL_PER_SECOND, "1/s"),
            "of what a single copy in one process reaches": Ratio(share.median, share.low, share.high, "x"),
        },
        ["The ring copies twice (into the slot, into replay) in two processes; 'one copy' copies once in one."],
    )


def _ring_rate(seconds: float) -> float:
    context = multiprocessing.get_context("spawn")
    ledger = Ledger()
    replay = ReplayStreams(SHAPE.num_envs, 20_000)
    process, reader = start_writer(context, SHAPE)
    consolidation = Consolidation([reader], replay, ledger)
    thread = ConsolidationThread(
        context, consolidation, [reader], ledger, 256, lambda _: None, lambda _: None, figures_interval_seconds=1e6
    )
    thread.start()
    ledger.wait_until(lambda: ledger.collected > 0, None)  # the writer has started
    before, begun = ledger.collected, time.perf_counter()
    time.sleep(seconds)
    rate = (ledger.collected - before) / (time.perf_counter() - begun)
    thread.end()
    reader.close()
    process.join()
    thread.close()
    return rate


def _copy_rate(seconds: float) -> float:
    source = synthetic_rows(SHAPE.num_envs, SHAPE.chunk_decisions)
    targets = [synthetic_rows(SHAPE.num_envs, SHAPE.chunk_decisions) for _ in range(SHAPE.num_slots)]
    copied, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        copy_rows(source, targets[copied % SHAPE.num_slots])
        copied += 1
    return copied * SHAPE.rows_per_chunk / (time.perf_counter() - begun)
