"""What makes an update fast: memory layout, precision, compilation, batch size, accumulation, goals ahead."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.measure import StudyResult, as_is, interleave, quotient
from benchmarks.product import product_settings
from benchmarks.synthetic import EPISODE_LENGTH, synthetic_rows
from mario_rl.config import Settings
from mario_rl.hardware import HardwarePlan, flush_denormals, has_compiler, make_plan, num_cores, prepare
from mario_rl.learning.learner import Execution, Learner
from mario_rl.learning.losses import MicroBatch
from mario_rl.learning.sampling import SampleAhead, SampleInline
from mario_rl.learning.workers import LoneWorker
from mario_rl.pipeline import learning_rules, network_shape
from mario_rl.replay.streams import ReplayStreams
from mario_rl.replay.uniform import UniformSampler

QUESTION = "How many samples a second does an update reach with each layout, precision, compilation, batch and scheme?"
SECONDS = {"quick": 16, "full": 200}
CAPACITY = 10_000


class _Variant(NamedTuple):
    """One way to run an update."""

    batch_size: int
    accumulation: int = 1
    layout: str = "channels_last"
    precision: str = "float32"
    compiled: bool = False
    goals_ahead: bool = False
    flush_denormals: bool = True

    @property
    def name(self) -> str:
        parts = [f"batch {self.batch_size}", self.layout, self.precision]
        parts += [f"x {self.accumulation} accumulated"] if self.accumulation > 1 else []
        parts += ["compiled"] if self.compiled else []
        parts += ["goals ahead"] if self.goals_ahead else []
        parts += [] if self.flush_denormals else ["denormals kept"]
        return ", ".join(parts)


def run(quick: bool) -> StudyResult:
    """One change at a time from the plain update, on the device that the product would train on."""
    settings = product_settings()
    plan = make_plan(settings, serial=False)
    prepare(plan)
    on_cpu = plan.device.type == "cpu"
    half = "bfloat16" if on_cpu else "float16"
    replay = synthetic_replay()
    plain = _Variant(settings.batch_size)
    large = plain._replace(batch_size=4 * plain.batch_size)
    goals_ahead, contiguous = plain._replace(goals_ahead=True), plain._replace(layout="contiguous")
    accumulated, in_half = plain._replace(accumulation=4), plain._replace(precision=half)
    kept, compiled = plain._replace(flush_denormals=False), plain._replace(compiled=True)
    variants = [plain, contiguous, large, accumulated]
    variants += [goals_ahead] if on_cpu else []  # a GPU computes them with the loss
    notes = []
    if not quick:
        variants += [in_half, contiguous._replace(batch_size=large.batch_size)]
        variants += [plain._replace(batch_size=plain.batch_size * factor // 2) for factor in (1, 4, 16)]
        variants += [large._replace(goals_ahead=True), kept] if on_cpu else []
        if has_compiler():
            variants += [compiled, contiguous._replace(compiled=True)]
        else:
            notes.append("torch.compile was left out: no C++ compiler was found.")
    else:
        notes.append(f"{half}, torch.compile, more batch sizes and denormals are left out of a quick run.")
    runners = {variant.name: Runner(settings, replay, variant, plan.device) for variant in variants}
    seconds = 0.5 if quick else 2.0
    measured = interleave(
        {name: partial(runner.samples_per_second, seconds) for name, runner in runners.items()},
        repeats=2 if quick else 5,
    )
    for runner in runners.values():
        runner.close()
    compared = {
        "goals ahead": (goals_ahead, plain),
        "channels_last against contiguous": (plain, contiguous),
        f"batch {large.batch_size} against {plain.batch_size}": (large, plain),
        "4 accumulated micro-batches against none": (accumulated, plain),
        f"{half} against float32": (in_half, plain),
        "denormals flushed against kept": (plain, kept),
        "compiled against not": (compiled, plain),
    }
    return StudyResult(
        [
            {
                "update": name,
                "samples/s": f"{sample.median:,.0f}",
                "spread": f"{sample.spread:.0%}",
                "of the plain update": f"{quotient(sample, measured[plain.name]).median:.2f}",
            }
            for name, sample in measured.items()
        ],
        {
            label: as_is(quotient(measured[one.name], measured[other.name]), "x")
            for label, (one, other) in compared.items()
            if one.name in measured and other.name in measured
        },
        [
            f"The product's network and loss on synthetic pictures, on {plan.device.type} ({plan.device_name}), "
            f"{num_cores()} threads.",
            _choice(settings, plan),
            "Denormals come with training: after some minutes at most there may be few yet.",
            *notes,
        ],
    )


def _choice(settings: Settings, plan: HardwarePlan) -> str:
    """What the product would do on this machine, in every respect that is measured here."""
    goals = "one sample call ahead, by a thread of its own" if plan.goals_ahead else "with the loss"
    accumulation = settings.gradient_accumulation_steps
    return (
        f"The product would choose here: batches of {settings.batch_size}, "
        f"{'not accumulated' if accumulation == 1 else f'{accumulation} accumulated'}; layout channels_last; "
        f"precision {plan.precision.value} ({plan.precision.reason}); compilation {plan.compilation.value} "
        f"({plan.compilation.reason}); goals {goals}; denormals flushed."
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

    def __init__(self, settings: Settings, replay: ReplayStreams, variant: _Variant, device: torch.device) -> None:
        torch.manual_seed(0)
        self._variant = variant
        rules = learning_rules(settings)._replace(
            batch_size=variant.batch_size,
            accumulation_steps=variant.accumulation,
            steps_per_sample=4,
            prioritized=False,
        )
        dtype = None if variant.precision == "float32" else getattr(torch, variant.precision)
        mode = ("default" if device.type == "cpu" else "reduce-overhead") if variant.compiled else None
        learner = Learner(network_shape(settings), rules, Execution(device, dtype, mode))
        if variant.layout == "contiguous":
            _make_contiguous(learner)
        sampler = UniformSampler(replay, 5, 0.9, 2, np.random.default_rng(0))
        size = 4 * variant.batch_size
        if variant.goals_ahead:
            samples: SampleAhead | SampleInline = SampleAhead(sampler, size, False, learner.goals_ahead())
        else:
            samples = SampleInline(sampler, size)
        self._worker = LoneWorker(learner, samples)

    def samples_per_second(self, seconds: float) -> float:
        """Train for about so long."""
        with _threads_and_denormals(self._variant):
            self._worker.train()
            trained, begun = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - begun) < seconds:
                trained += self._worker.train()
        return trained / elapsed

    def close(self) -> None:
        """Stop its threads."""
        self._worker.close()


@contextmanager
def _threads_and_denormals(variant: _Variant) -> Iterator[None]:
    previous = torch.get_num_threads()
    torch.set_num_threads(max(1, num_cores() // 2) if variant.goals_ahead else num_cores())
    flush_denormals(variant.flush_denormals)
    yield
    flush_denormals(True)
    torch.set_num_threads(previous)


def _make_contiguous(learner: Learner) -> None:
    """Undo channels_last: in the networks, and in the pictures that they are given."""
    for network in (learner.online, learner.target):
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
