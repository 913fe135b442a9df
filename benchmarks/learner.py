"""What makes an update fast: memory layout, precision, compilation, batch size, accumulation, targets ahead."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.measure import Ratio, Sample, StudyResult, as_is, interleave, quotient
from benchmarks.product import product_settings
from benchmarks.synthetic import EPISODE_LENGTH, synthetic_rows
from mario_rl.learning.learner import Learner
from mario_rl.learning.losses import MicroBatch
from mario_rl.learning.rules import Execution
from mario_rl.learning.sampling import SampleAhead, SampleInline, Samples
from mario_rl.learning.trainers import LoneTrainer
from mario_rl.machine.facts import has_compiler, num_cores
from mario_rl.machine.process_tuning import flush_denormals
from mario_rl.replay.streams import ReplayStreams
from mario_rl.replay.uniform import UniformSampler
from mario_rl.settings.hardware import HardwarePlan, make_plan, prepare
from mario_rl.settings.settings import Settings

QUESTION = "How many samples a second does an update reach with each layout, precision, compilation, batch and scheme?"
TEACHES = (
    "bfloat16 gains where the CPU has arithmetic for it and loses much where it is emulated, so the product measures "
    "it at every start and never assumes it. Larger batches train on more samples a second; the default stays small "
    "because more, smaller updates learn more ([experiments.md](experiments.md)). Compiling gains little on a CPU for "
    "the time that it takes at every start, and targets ahead are made for a learner that shares its cores with a "
    "collector ([architecture.md](architecture.md))."
)
SECONDS = {"quick": 16, "full": 390}
CAPACITY = 10_000


class Update(NamedTuple):
    """One way to run an update."""

    batch: int
    accumulated: int = 1  # micro-batches an update
    layout: str = "channels_last"
    precision: str = "float32"
    compiled: bool = False
    targets_ahead: bool = False
    flush_denormals: bool = True

    @property
    def row(self) -> dict[str, str]:
        """In words."""
        return {
            "batch": f"{self.batch} x {self.accumulated}" if self.accumulated > 1 else str(self.batch),
            "layout": self.layout,
            "precision": self.precision,
            "compiled": "yes" if self.compiled else "",
            "besides": ", ".join(
                ["targets ahead"] * self.targets_ahead + ["denormals kept"] * (not self.flush_denormals)
            ),
        }


class Comparison(NamedTuple):
    """Two values of one of an update's fields."""

    label: str
    field: str
    value: Any
    other: Any


def run(quick: bool) -> StudyResult:
    """Every combination, and what else there is, on the device that the product would train on."""
    settings = product_settings()
    plan = make_plan(settings, serial=False)
    prepare(plan)
    on_cpu = plan.device.type == "cpu"
    half = "bfloat16" if on_cpu else "float16"
    batch = settings.learning.batch_size
    large = 4 * batch
    comparisons = [
        Comparison("channels_last against contiguous", "layout", "channels_last", "contiguous"),
        Comparison(f"batch {large} against {batch}", "batch", large, batch),
        Comparison("4 accumulated micro-batches against none", "accumulated", 4, 1),
        Comparison(f"{half} against float32", "precision", half, "float32"),
        Comparison("compiled against not", "compiled", True, False),
        Comparison("targets ahead", "targets_ahead", True, False),
        Comparison("denormals flushed against kept", "flush_denormals", True, False),
    ]
    notes = [
        f"The product's network and loss on synthetic pictures, on {plan.device.type} ({plan.device_name}), "
        f"{num_cores()} threads. A comparison is the median, with quartiles, of all pairs that differ in nothing else.",
        "Denormals come with training: after some minutes at most there may be few yet.",
        _choice(settings, plan),
    ]
    plain = Update(batch)
    chosen = plain._replace(
        accumulated=settings.learning.gradient_accumulation_steps,
        precision=plan.precision.value,
        compiled=plan.compilation.value != "off",
        targets_ahead=plan.targets_ahead,
    )
    if quick:
        updates = [
            plain,
            plain._replace(layout="contiguous"),
            plain._replace(batch=large),
            plain._replace(accumulated=4),
        ]
        updates += [plain._replace(targets_ahead=True)] if on_cpu else []  # a GPU computes them with the loss
        notes.append(
            f"Combinations, {half}, torch.compile, more batch sizes and denormals are left out of a quick run."
        )
    else:
        if not (can_compile := has_compiler()):
            notes.append("torch.compile was left out: no C++ compiler was found.")
        updates = [
            Update(batch, accumulated, layout, precision, compiled)
            for compiled in ((False, True) if can_compile else (False,))
            for precision in ("float32", half)
            for layout in ("channels_last", "contiguous")
            for batch in (plain.batch, large)
            for accumulated in (1, 4)
        ]
        updates += [plain._replace(batch=plain.batch * factor // 2) for factor in (1, 4, 16)]
        updates += [chosen] if chosen not in updates else []
        if on_cpu:
            ahead = plain._replace(targets_ahead=True)
            updates += [update for update in (ahead, ahead._replace(batch=large)) if update not in updates]
            updates.append(plain._replace(flush_denormals=False))
    measured = _measure(settings, plan, updates, seconds=0.5 if quick else 1.0, repeats=2 if quick else 5)
    return StudyResult(
        [
            {
                **update.row,
                "samples/s": f"{sample.median:,.0f}",
                "spread": f"{sample.spread:.0%}",
                "of the first": f"{quotient(sample, measured[plain]).median:.2f}",
            }
            for update, sample in measured.items()
        ],
        _ratios(measured, comparisons, chosen),
        notes,
    )


def _measure(
    settings: Settings, plan: HardwarePlan, updates: list[Update], seconds: float, repeats: int
) -> dict[Update, Sample]:
    """Samples a second. The first round, in which some are compiled, is left out."""
    replay = synthetic_replay()
    runners = {update: Runner(settings, replay, update, plan.device) for update in updates}
    calls = {update: partial(runner.samples_per_second, seconds) for update, runner in runners.items()}
    with torch._dynamo.config.patch(recompile_limit=len(updates)):  # else it gives up after eight kinds of update
        measured = interleave(calls, repeats)
    for runner in runners.values():
        runner.close()
    return measured


def _ratios(measured: dict[Update, Sample], comparisons: list[Comparison], chosen: Update) -> dict[str, Ratio]:
    ratios = {}
    for label, field, value, other in comparisons:
        pairs = [(update, update._replace(**{field: other})) for update in measured if getattr(update, field) == value]
        quotients = [quotient(measured[one], measured[two]).median for one, two in pairs if two in measured]
        if quotients:
            pairs_label = f"{label}, {len(quotients)} pairs" if len(quotients) > 1 else label
            ratios[pairs_label] = as_is(Sample(quotients), "x")
    if chosen in measured:
        best = max((update for update in measured if update.batch == chosen.batch), key=lambda u: measured[u].median)
        ratios["what the product would choose, of the fastest with its batch"] = as_is(
            quotient(measured[chosen], measured[best]), "x"
        )
    return ratios


def _choice(settings: Settings, plan: HardwarePlan) -> str:
    """What the product would do on this machine, in every respect that is measured here."""
    targets = "one sample call ahead, by a thread of its own" if plan.targets_ahead else "with the loss"
    accumulation = settings.learning.gradient_accumulation_steps
    return (
        f"The product would choose here: batches of {settings.learning.batch_size}, "
        f"{'not accumulated' if accumulation == 1 else f'{accumulation} accumulated'}; layout channels_last; "
        f"precision {plan.precision.value} ({plan.precision.reason}); compilation {plan.compilation.value} "
        f"({plan.compilation.reason}); targets {targets}; denormals flushed."
    )


def synthetic_replay() -> ReplayStreams:
    """A full replay of noise."""
    replay = ReplayStreams(8, CAPACITY)
    rows = synthetic_rows(8, EPISODE_LENGTH)
    for _ in range(CAPACITY // 8 // EPISODE_LENGTH):
        replay.append(0, rows)
    return replay


class Runner:
    """A learner set up as a variant wants it."""

    def __init__(self, settings: Settings, replay: ReplayStreams, update: Update, device: torch.device) -> None:
        torch.manual_seed(0)
        self._update = update
        rules = replace(
            settings.learning,
            batch_size=update.batch,
            gradient_accumulation_steps=update.accumulated,
            training_steps_per_sample=4,
        )
        dtype = None if update.precision == "float32" else getattr(torch, update.precision)
        mode = ("default" if device.type == "cpu" else "reduce-overhead") if update.compiled else None
        learner = Learner(settings.network_shape, rules, Execution(device, dtype, mode))
        if update.layout == "contiguous":
            _make_contiguous(learner)
        sampler = UniformSampler(replay, settings.sampling, np.random.default_rng(0))
        samples: Samples
        if update.targets_ahead:
            samples = SampleAhead(sampler, rules.sample_size, False, learner.targets_ahead())
        else:
            samples = SampleInline(sampler, rules.sample_size)
        self._trainer = LoneTrainer(learner, samples)

    def samples_per_second(self, seconds: float) -> float:
        """Train for about `seconds`."""
        with _threads_and_denormals(self._update):
            self._trainer.train()
            trained, begun = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - begun) < seconds:
                trained += self._trainer.train()
        return trained / elapsed

    def close(self) -> None:
        """Stop its threads."""
        self._trainer.close()


@contextmanager
def _threads_and_denormals(update: Update) -> Iterator[None]:
    previous = torch.get_num_threads()
    torch.set_num_threads(max(1, num_cores() // 2) if update.targets_ahead else num_cores())
    flush_denormals(update.flush_denormals)
    yield
    flush_denormals(True)
    torch.set_num_threads(previous)


def _make_contiguous(learner: Learner) -> None:
    """Undo channels_last: in the networks, and in the pictures that they are given."""
    for network in (learner.networks.online, learner.networks.target):
        for parameter in network.parameters():
            parameter.data = parameter.data.contiguous()
            if parameter.grad is not None:
                parameter.grad = parameter.grad.contiguous()
    original: Callable[[int], MicroBatch] = learner._transfer.micro_batch

    def micro_batch(part: int) -> MicroBatch:
        batch = original(part)
        assert batch.next_states is not None
        return batch._replace(states=batch.states.contiguous(), next_states=batch.next_states.contiguous())

    learner._transfer.micro_batch = micro_batch  # type: ignore[method-assign]
