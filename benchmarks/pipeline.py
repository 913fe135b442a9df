"""The design that the project grew out of against the product: both whole, with learning on."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from benchmarks.cost_split import Costs
from benchmarks.measure import Ratio, Sample, StudyResult, as_is, at_least, at_most, interleave_many, quotient
from benchmarks.original import BATCH_SIZE, OriginalFigures, OriginalSetup, run_original
from benchmarks.product import PROJECT, SHORT_WARMUP, ProductFigures, nes_py_changes, product_settings, run_product
from mario_rl.emulation.emulator import EmulatorName
from mario_rl.machine.facts import has_gpu, num_cores
from mario_rl.settings.hardware import make_plan
from mario_rl.settings.settings import Settings
from mario_rl.storage.policies import PolicyError, load_policy

QUESTION = "How much faster is the product than the design it grew out of, and who waits for whom in it?"
TEACHES = (
    "On two cores without a GPU the emulator is most of the price: with nes-py in both designs the gain is small, and "
    "the fast emulator multiplies it. Locks cost little in either design, and moving experience (queue, "
    "consolidation, sampling, publishing) is nearly free beside learning and its targets. Collectors that are not "
    "paced by a replay ratio outrun the learner by far: learning is the bound."
)
SECONDS = {"quick": 24, "full": 800}

ORIGINAL_FREE = "original, without a replay ratio"
PRODUCT_FREE = "product, without a replay ratio"
ORIGINAL = "original, same replay ratio"
PRODUCT = "product as shipped"
PRODUCT_TRAINED = "product, a trained policy"
PRODUCT_EVALUATED = "product, a trained policy, always evaluated"
PRODUCT_NES_PY = "product with nes-py"

MODEL = PROJECT / "models" / "mario-1-1.safetensors"
# A learner whose steps are too small to spoil the policy, so that evaluations are as long as they get.
TRAINED_CHANGES = {"LEARNING_RATE": 1e-9, "FINAL_LEARNING_RATE": 1e-9}
EVALUATED_CHANGES = TRAINED_CHANGES | {"EVALUATION_DECISIONS": 1}  # one follows the other
EVALUATED_SECONDS, EVALUATED_REPEATS = 30.0, 5
SETTLE_SECONDS = 8.0  # until the evaluator has imported everything, which it does once a run

EPISODES = 8  # an epoch of the original

Figures = OriginalFigures | ProductFigures


def run(quick: bool) -> StudyResult:
    """Run each design for a while, in turns."""
    shipped = product_settings()
    weights = None if quick else _trained_weights(shipped)
    measured = interleave_many(
        _variants(shipped, quick),
        repeats=1 if quick else 3,
        warm_up=False,  # each run has a warm-up of its own
    )
    if not quick:
        measured |= interleave_many(_evaluated_variants(weights), repeats=EVALUATED_REPEATS, warm_up=False)
    results = _Results(measured)
    plan = make_plan(shipped, serial=False)
    notes = [
        f"All of them train on {plan.device.type} ({plan.device_name}); collectors act on the CPU.",
        f"Game, network and loss are the same in both; the original trains batches of {BATCH_SIZE}, the product of "
        f"{shipped.learning.batch_size}.",
        f"An episode had {results.decisions_an_episode(ORIGINAL)} decisions in the original and "
        f"{results.decisions_an_episode(PRODUCT)} in the product, where {shipped.task.practice_share:.0%} of them "
        "begin shortly before a death: experiences/s compare the designs, episodes do not quite.",
        "Lock wait is what threads waited for the replay's lock in the original and for the ledger's in the product; "
        "sample wait is what the product's main loop waited for the thread that draws samples and computes targets.",
        "Costs are those of the product as shipped. What a thread of torch's own does is not split further.",
    ]
    if not quick:
        notes += [
            "Without a replay ratio neither side waits, and the product's collectors outrun its learner by far.",
            _evaluations_note(results.product(PRODUCT_EVALUATED), trained=weights is not None),
        ]
    rows = [*results.design_rows(), *results.cost_rows()]
    return StudyResult(rows, _ratios(results, quick), notes)


def _settings(changes: Mapping[str, Any]) -> Settings:
    return product_settings({"WARMUP_EXPERIENCES": SHORT_WARMUP, "EVALUATION_DECISIONS": 0} | dict(changes))


def _variants(shipped: Settings, quick: bool) -> dict[str, Callable[[], Figures]]:
    seconds = 3.0 if quick else 20.0
    device = make_plan(shipped, serial=False).device

    def original(replay_ratio: float, emulator: EmulatorName) -> Callable[[], Figures]:
        play = replace(shipped.play, emulator=emulator)
        setup = OriginalSetup(shipped.network_shape, play, shipped.task, replay_ratio, device, warmup=SHORT_WARMUP)
        return lambda: run_original(setup, seconds)

    def product(changes: Mapping[str, Any]) -> Callable[[], Figures]:
        changed = _settings(changes)
        return lambda: run_product(changed, seconds)

    variants = {ORIGINAL: original(shipped.flow.replay_ratio, "nes_py"), PRODUCT: product({})}
    if not quick:
        variants[ORIGINAL_FREE] = original(0.0, "nes_py")
        variants[PRODUCT_FREE] = product({"REPLAY_RATIO": 0.0})
        variants[PRODUCT_NES_PY] = product(nes_py_changes())
    return variants


def _evaluated_variants(weights: Mapping[str, torch.Tensor] | None) -> dict[str, Callable[[], Figures]]:
    """The same training without evaluations and with one after the other."""
    changed = {PRODUCT_TRAINED: _settings(TRAINED_CHANGES), PRODUCT_EVALUATED: _settings(EVALUATED_CHANGES)}
    return {
        name: functools.partial(run_product, settings, EVALUATED_SECONDS, weights, SETTLE_SECONDS)
        for name, settings in changed.items()
    }


def _ratios(results: "_Results", quick: bool) -> dict[str, Ratio]:
    figure = results.figure

    def times(variant: str, other: str) -> Sample:
        return quotient(figure(variant, "decisions_per_second"), figure(other, "decisions_per_second"))

    waits = quotient(figure(PRODUCT, "lock_wait_share"), figure(ORIGINAL, "lock_wait_share"))
    equal = "times the original's experience rate, at equal network and replay ratio"
    ratios = {equal: at_least(times(PRODUCT, ORIGINAL), 2.5, "x")}
    if not quick:
        ratios["the same, without a replay ratio"] = at_least(times(PRODUCT_FREE, ORIGINAL_FREE), 5.0, "x")
        ratios["the same with nes-py in both"] = at_least(times(PRODUCT_NES_PY, ORIGINAL), 1.3, "x")
        slowed = quotient(
            figure(PRODUCT_EVALUATED, "updates_per_second"), figure(PRODUCT_TRAINED, "updates_per_second")
        )
        ratios["updates/s while a trained policy is evaluated, of those without"] = at_least(slowed, 0.95, "x")
    return ratios | {
        "time lost at locks, of the original's": at_most(waits, 0.1, "x"),
        "share of the learner's time waiting for a sample": as_is(figure(PRODUCT, "sample_wait_share"), "share"),
        "share of the learner's time without experience": as_is(figure(PRODUCT, "learner_wait_share"), "share"),
        "share of a collector's time waiting for a ring": at_most(figure(PRODUCT, "ring_wait_share"), 0.01, "share"),
        "share of a collector's time waiting for the replay ratio": as_is(figure(PRODUCT, "throttle_share"), "share"),
        "share of the CPU that collectors use": at_most(figure(PRODUCT, "collector_cpu_share"), 0.15, "share"),
        "dropped experiences": at_most(figure(PRODUCT, "drops"), 0.0, "count"),
    }


class _Results:
    """What was measured, and the two tables that are made of it."""

    def __init__(self, measured: Mapping[str, list[Figures]]) -> None:
        self._measured = measured

    def figure(self, variant: str, name: str) -> Sample:
        """One figure of all repeats."""
        return Sample([getattr(figures, name) for figures in self._measured[variant]])

    def product(self, variant: str) -> list[ProductFigures]:
        """The repeats of one of the product's variants."""
        return [figures for figures in self._measured[variant] if isinstance(figures, ProductFigures)]

    def decisions_an_episode(self, variant: str) -> str:
        """How long episodes were, in words."""
        per_second = self._median(variant, "episodes_per_second")
        return f"{self._median(variant, 'decisions_per_second') / per_second:.0f}" if per_second else "many"

    def design_rows(self) -> list[dict[str, str]]:
        """One row a design."""
        return [
            {
                "design": variant,
                "experiences/s": f"{self._median(variant, 'decisions_per_second'):,.0f}",
                "updates/s": f"{self._median(variant, 'updates_per_second'):,.1f}",
                "samples/s": f"{self._median(variant, 'samples_per_second'):,.0f}",
                "lock wait": f"{self._median(variant, 'lock_wait_milliseconds'):.3f} ms",
                "share of time": f"{self._median(variant, 'lock_wait_share'):.3%}",
                "sample wait": _share(self._median(variant, "sample_wait_share")),
                f"{EPISODES} episodes": self._episodes_time(variant),
                "CPU": f"{self._median(variant, 'cpu_percent'):.0f} %",
                **({"GPU": self._gpu(variant)} if has_gpu() else {}),
            }
            for variant in self._measured
        ]

    def cost_rows(self) -> list[dict[str, str]]:
        """What each part of the product as shipped costs, and what it waits for."""
        waits = {
            "collect": f"{_share(self._median(PRODUCT, 'throttle_share'))} for the replay ratio",
            "queue": f"{_share(self._median(PRODUCT, 'ring_wait_share'))} of a collector's time for a free slot",
            "learn": f"{_share(self._median(PRODUCT, 'learner_wait_share'))} for experience, "
            f"{_share(self._median(PRODUCT, 'sample_wait_share'))} for a sample",
        }
        runs = self.product(PRODUCT)
        return [
            {
                "part": "torch's own threads" if part == "helpers" else part,
                "CPU ms a 1,000 decisions": f"{1e6 * per_decision:,.1f}",
                "share of a core": f"{core_share:.1%}",
                "waits": waits.get(part, ""),
            }
            for part in Costs._fields
            if part != "evaluate"  # there are no evaluations in this row
            for per_decision in [Sample([getattr(figures.costs_per_decision, part) for figures in runs]).median]
            for core_share in [Sample([getattr(figures.core_shares, part) for figures in runs]).median]
        ]

    def _median(self, variant: str, name: str) -> float:
        return self.figure(variant, name).median

    def _episodes_time(self, variant: str) -> str:
        """From the rate at which episodes ended in the window, which holds for windows of any length."""
        per_second = self._median(variant, "episodes_per_second")
        return f"{EPISODES / per_second:.1f} s" if per_second else "none ended"

    def _gpu(self, variant: str) -> str:
        percent = self._median(variant, "gpu_percent")
        return "none" if math.isnan(percent) else f"{percent:.0f} %"


def _share(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.2%}"


def _trained_weights(settings: Settings) -> Mapping[str, torch.Tensor] | None:
    """The model that ships, where it fits this machine's network."""
    try:
        return load_policy(MODEL, settings.network_shape, settings.play.actions)
    except PolicyError:
        return None


def _evaluations_note(runs: list[ProductFigures], *, trained: bool) -> str:
    policy = f"with the weights of {MODEL.name}" if trained else f"untrained, since {MODEL.name} is another network"
    share = Sample([figures.core_shares.evaluate for figures in runs]).median / num_cores()
    return (
        f"The evaluated policy began {policy}, and one evaluation followed the other; the evaluator took {share:.1%} "
        f"of the CPU in the windows of {EVALUATED_SECONDS:.0f} s, which begin {SETTLE_SECONDS:.0f} s after the first "
        "update."
    )
