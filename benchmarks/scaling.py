"""Collecting alone: how decisions a second grow with collectors and with emulators a collector."""

import time
from functools import partial

from benchmarks.measure import Sample, StudyResult, as_is, interleave, quotient
from benchmarks.product import connect_silently, parallel_source, product_settings
from mario_rl.channels.experience_ring import CollectorStat
from mario_rl.machine.facts import num_cores

QUESTION = "How does collecting grow with the number of collectors, and of emulators in each?"
TEACHES = (
    "A policy call for eight games costs much less than eight calls, so emulators in a collector pay up to about "
    "eight, and little beyond. A second collector adds less than the first one plays, since the thread that commits "
    "to replay needs the same cores. One collector plays more than two cores learn from at the default replay ratio, "
    "which is why the default is one."
)
SECONDS = {"quick": 14, "full": 165}
WARM_DECISIONS = 500  # of each collector, before its rate counts
START_SECONDS = 120.0  # in which even a machine that is busy otherwise starts them


def run(quick: bool) -> StudyResult:
    """Let the product's collectors play without a learner, in turns."""
    seconds = 1.0 if quick else 4.0
    cores = num_cores()
    counts = sorted({1, 2, cores} | ({cores // 2} if cores > 2 else set()))
    emulators = (1, 8) if quick else (1, 2, 4, 8, 16, 32)
    variants = {(count, 8): f"{count} x 8" for count in counts} | {(1, number): f"1 x {number}" for number in emulators}
    measured = interleave_rates(variants, seconds, repeats=1 if quick else 3)
    one, one_emulator = measured["1 x 8"], measured["1 x 1"]
    ratios = {
        f"{count} collectors against 1": as_is(quotient(measured[f"{count} x 8"], one), "x") for count in counts[1:]
    }
    if not quick:
        ratios["32 emulators in a collector against 1"] = as_is(quotient(measured["1 x 32"], one_emulator), "x")
    ratios["8 emulators in a collector against 1"] = as_is(quotient(one, one_emulator), "x")
    return StudyResult(
        [
            {
                "collectors x emulators": name,
                "decisions/s": f"{sample.median:,.0f}",
                "of 1 x 8": f"{quotient(sample, one).median:.2f}",
            }
            for name, sample in measured.items()
        ],
        ratios,
        ["Whole collectors: emulation, the policy's forward pass on one thread, the ring, and the commit into replay."],
    )


def interleave_rates(variants: dict[tuple[int, int], str], seconds: float, repeats: int) -> dict[str, Sample]:
    """Decisions a second of each (collectors, emulators)."""
    return interleave(
        {name: partial(_rate, collectors, emulators, seconds) for (collectors, emulators), name in variants.items()},
        repeats,
        warm_up=False,  # each run has a warm-up of its own
    )


def _rate(collectors: int, emulators: int, seconds: float) -> float:
    streams = collectors * emulators
    settings = product_settings(
        {
            "NUM_PROCESSES": collectors,
            "ENVS_PER_PROCESS": emulators,
            "REP_Q_SIZE": streams * 16 * 8,
            "REPLAY_RATIO": 0.0,
            "EVALUATION_DECISIONS": 0,
            "BUFFER_SIZE": max(20_000, 400 * streams),
            "WARMUP_EXPERIENCES": max(300, 10 * streams),
        }
    )
    pipeline = connect_silently(settings)
    ledger, source = pipeline.ledger, parallel_source(pipeline)

    def all_play() -> bool:
        return all(stats[CollectorStat.DECISIONS_WRITTEN] >= WARM_DECISIONS for stats in source.total_stats())

    try:
        pipeline.publisher.publish(0)
        pipeline.start()
        source.limit_collection(None)
        source.wait_for_work(all_play, START_SECONDS)
        if not all_play():
            raise RuntimeError(f"{collectors} collectors did not all start within {START_SECONDS:.0f} s")
        before, begun = ledger.collected, time.perf_counter()
        time.sleep(seconds)
        return (ledger.collected - before) / (time.perf_counter() - begun)
    finally:
        pipeline.stop()
