"""The design that the notes began with against the product: both whole, with learning on."""

from collections.abc import Callable
from typing import Any

from benchmarks.measure import Sample, StudyResult, as_is, at_least, at_most, interleave_many, quotient
from benchmarks.original import OriginalFigures, OriginalSetup, run_original
from benchmarks.product import SHORT_WARMUP, ProductFigures, nes_py_changes, product_settings, run_product
from mario_rl.emulation.emulator import EmulatorName
from mario_rl.hardware import has_gpu
from mario_rl.pipeline import network_shape

QUESTION = "How much faster is the product than the design it grew out of, and who waits for whom in it?"
SECONDS = {"quick": 24, "full": 480}

ORIGINAL_FREE = "original, nobody waits"
PRODUCT_FREE = "product, nobody waits"
ORIGINAL = "original, same replay ratio"
PRODUCT = "product as shipped"
PRODUCT_TESTED = "product, tested all the time"
PRODUCT_NES_PY = "product with nes-py"

# The note's own table, on its author's GPU, for the same five figures.
NOTE = (
    "In the note (on a GPU): 1,000 -> 1,800 experiences/s, 4 -> 10 batches/s, GPU 60 -> 85 % busy, lock wait 50 -> 5 "
    "ms, epoch 30 -> 12 s."
)


def run(quick: bool) -> StudyResult:
    """Run each design for a while, in turns."""
    seconds = 3.0 if quick else 20.0
    shipped = product_settings()
    shape, ratio = network_shape(shipped), shipped.replay_ratio

    def original(replay_ratio: float, emulator: EmulatorName) -> Callable[[], OriginalFigures]:
        setup = OriginalSetup(shape, emulator, replay_ratio, warmup=SHORT_WARMUP)
        return lambda: run_original(setup, seconds)

    def product(**changes: Any) -> Callable[[], ProductFigures]:
        settings = product_settings({"WARMUP_EXPERIENCES": SHORT_WARMUP, "EVALUATION_DECISIONS": 0} | changes)
        return lambda: run_product(settings, seconds)

    variants: dict[str, Callable[[], OriginalFigures] | Callable[[], ProductFigures]] = {
        ORIGINAL: original(ratio, "nes_py"),
        PRODUCT: product(),
    }
    if not quick:
        variants[ORIGINAL_FREE] = original(0.0, "nes_py")
        variants[PRODUCT_FREE] = product(REPLAY_RATIO=0.0)
        variants[PRODUCT_NES_PY] = product(**nes_py_changes())
        variants[PRODUCT_TESTED] = product(EVALUATION_DECISIONS=1_000)
    measured = interleave_many(
        variants,
        repeats=1 if quick else 3,
        warm_up=False,  # each run has a warm-up of its own
    )

    def figure(variant: str, name: str) -> Sample:
        return Sample([getattr(figures, name) for figures in measured[variant]])

    def times(variant: str, other: str) -> Sample:
        return quotient(figure(variant, "decisions_per_second"), figure(other, "decisions_per_second"))

    rows = [
        {
            "design": variant,
            "experiences/s": f"{figure(variant, 'decisions_per_second').median:,.0f}",
            "updates/s": f"{figure(variant, 'updates_per_second').median:,.1f}",
            "samples/s": f"{figure(variant, 'samples_per_second').median:,.0f}",
            "lock wait": f"{figure(variant, 'lock_wait_milliseconds').median:.3f} ms",
            "share of time": f"{figure(variant, 'lock_wait_share').median:.3%}",
            "epoch": f"{figure(variant, 'epoch_seconds').median:.1f} s",
            "CPU": f"{figure(variant, 'cpu_percent').median:.0f} %",
            **({"GPU": f"{figure(variant, 'gpu_percent').median:.0f} %"} if has_gpu() else {}),
        }
        for variant in measured
    ]
    waits = quotient(figure(PRODUCT, "lock_wait_share"), figure(ORIGINAL, "lock_wait_share"))
    ratios = {
        "times the original's experience rate, at equal network and replay ratio": at_least(
            times(PRODUCT, ORIGINAL), 2.5, "x"
        ),
        "time lost at locks, of the original's": at_most(waits, 0.1, "x"),
        "share of the learner's time without experience": as_is(figure(PRODUCT, "learner_wait_share"), "share"),
        "share of a collector's time waiting for a ring": at_most(figure(PRODUCT, "ring_wait_share"), 0.01, "share"),
        "share of a collector's time waiting for the replay ratio": as_is(figure(PRODUCT, "throttle_share"), "share"),
        "share of the CPU that collectors use": at_most(figure(PRODUCT, "collector_cpu_share"), 0.15, "share"),
        "dropped experiences": at_most(figure(PRODUCT, "drops"), 0.0, "count"),
    }
    if not quick:
        ratios["the same, nobody waits"] = at_least(times(PRODUCT_FREE, ORIGINAL_FREE), 5.0, "x")
        ratios["the same with nes-py in both"] = at_least(times(PRODUCT_NES_PY, ORIGINAL), 1.3, "x")
        slowed = quotient(figure(PRODUCT_TESTED, "updates_per_second"), figure(PRODUCT, "updates_per_second"))
        ratios["updates/s while tests run all the time"] = at_least(slowed, 0.95, "x")
    return StudyResult(
        rows,
        ratios,
        [
            "Game, network and loss are the same in both; the original trains batches of 256, the product its own.",
            "'Nobody waits': there is no replay ratio, and the product's collectors outrun its learner by far.",
            NOTE,
        ],
    )
