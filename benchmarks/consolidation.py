"""What consolidation costs: the share of a core that a process with nothing but its consolidation thread takes."""

import multiprocessing
import time
from multiprocessing.connection import Connection

from benchmarks.measure import Sample, StudyResult, at_most
from benchmarks.synthetic import start_writer
from mario_rl.channels.experience_ring import RingShape
from mario_rl.learning.consolidation import Consolidation, ConsolidationThread
from mario_rl.learning.ledger import Ledger
from mario_rl.replay.streams import ReplayStreams

QUESTION = "What share of a core does consolidation take at 2,000 experiences/s?"
SHAPE = RingShape(num_slots=32, num_envs=8, chunk_decisions=16)
ROWS_PER_SECOND = 2_000.0
GOAL_SHARE = 0.03


def run(quick: bool) -> StudyResult:
    """Let a writer keep its pace and count the reader's CPU seconds."""
    context = multiprocessing.get_context("spawn")
    shares, rates = [], []
    for _ in range(2 if quick else 5):
        received, sent = context.Pipe(duplex=False)
        process = context.Process(target=_consolidate, args=(4.0 if quick else 10.0, sent))
        process.start()
        sent.close()  # or a child that fails would leave us waiting
        share, rate = received.recv()
        process.join()
        shares.append(share)
        rates.append(rate)
    share_sample, rate_sample = Sample(shares), Sample(rates)
    return StudyResult(
        [
            {
                "experiences/s": round(rate_sample.median),
                "share of a core": f"{share_sample.median:.2%}",
                "spread": f"{share_sample.spread:.0%}",
            }
        ],
        {"share of a core at 2,000 experiences/s": at_most(share_sample, GOAL_SHARE, "share")},
        ["CPU seconds of a process that does nothing else, wake-ups and copies included."],
    )


def _consolidate(seconds: float, result: "Connection[tuple[float, float], None]") -> None:
    context = multiprocessing.get_context("spawn")
    ledger = Ledger()
    replay = ReplayStreams(SHAPE.num_envs, 20_000)
    _, reader = start_writer(context, SHAPE, ROWS_PER_SECOND)
    consolidation = Consolidation([reader], replay, ledger)
    thread = ConsolidationThread(
        context, consolidation, [reader], ledger, 256, lambda _: None, lambda _: None, figures_interval_seconds=1e6
    )
    thread.start()
    ledger.wait_until(lambda: ledger.collected > 1_000, None)  # warmed up
    before, begun, cpu = ledger.collected, time.perf_counter(), time.process_time()
    time.sleep(seconds)
    elapsed = time.perf_counter() - begun
    result.send(((time.process_time() - cpu) / elapsed, (ledger.collected - before) / elapsed))
    thread.end()
    reader.close()
    thread.close()
