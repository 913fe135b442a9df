"""What makes an update fast: memory layout, precision, compilation, batch size, accumulation, goals ahead."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.measure import Sample, StudyResult, as_is, interleave, quotient
from benchmarks.product import product_settings
from benchmarks.synthetic import EPISODE_LENGTH, synthetic_rows
from mario_rl.hardware import flush_denormals, has_compiler, make_plan, num_cores, prepare
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
    """One way to run an update; the first is the product's on a CPU."""

    batch_size: int = 64
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


PLAIN = _Variant()


def run(quick: bool) -> StudyResult:
    """One change at a time from the plain update."""
    settings = product_settings({"DEVICE": "cpu"})
    plan = make_plan(settings, serial=False)
    prepare(plan)
    replay = synthetic_replay()
    variants = [
        PLAIN,
        PLAIN._replace(goals_ahead=True),
        PLAIN._replace(layout="contiguous"),
        PLAIN._replace(batch_size=256),
        PLAIN._replace(accumulation=4),
    ]
    notes = []
    if not quick:
        variants += [PLAIN._replace(precision="bfloat16"), PLAIN._replace(batch_size=256, goals_ahead=True)]
        variants += [PLAIN._replace(batch_size=size) for size in (32, 128, 512)]
        variants += [PLAIN._replace(layout="contiguous", batch_size=256), PLAIN._replace(flush_denormals=False)]
        if has_compiler():
            variants += [PLAIN._replace(compiled=True), PLAIN._replace(compiled=True, layout="contiguous")]
        else:
            notes.append("torch.compile was left out: no C++ compiler was found.")
    else:
        notes.append("bfloat16, torch.compile, more batch sizes and denormals are left out of a quick run.")
    runners = {variant.name: Runner(settings, replay, variant) for variant in variants}
    seconds = 0.5 if quick else 2.0
    measured = interleave(
        {name: partial(runner.samples_per_second, seconds) for name, runner in runners.items()},
        repeats=2 if quick else 5,
    )
    for runner in runners.values():
        runner.close()
    plain = measured[PLAIN.name]
    goals = "ahead" if plan.goals_ahead else "inline"
    chosen = f"{plan.precision.value}, compilation {plan.compilation.value}, goals {goals}"

    def against_plain(variant: _Variant) -> Sample:
        return quotient(measured[variant.name], plain)

    ratios = {
        "goals ahead": as_is(against_plain(PLAIN._replace(goals_ahead=True)), "x"),
        "channels_last against contiguous": as_is(
            quotient(plain, measured[PLAIN._replace(layout="contiguous").name]), "x"
        ),
        "batch 256 against 64": as_is(against_plain(PLAIN._replace(batch_size=256)), "x"),
        "4 accumulated micro-batches against none": as_is(against_plain(PLAIN._replace(accumulation=4)), "x"),
    }
    if not quick:
        ratios["bfloat16 against float32"] = as_is(against_plain(PLAIN._replace(precision="bfloat16")), "x")
        kept = measured[PLAIN._replace(flush_denormals=False).name]
        ratios["denormals flushed against kept"] = as_is(quotient(plain, kept), "x")
        if has_compiler():
            ratios["compiled against not"] = as_is(against_plain(PLAIN._replace(compiled=True)), "x")
    return StudyResult(
        [
            {
                "update": name,
                "samples/s": f"{sample.median:,.0f}",
                "spread": f"{sample.spread:.0%}",
                "of the plain update": f"{quotient(sample, plain).median:.2f}",
            }
            for name, sample in measured.items()
        ],
        ratios,
        [
            f"The product's network and loss on synthetic pictures, {num_cores()} threads. It would choose: {chosen}.",
            "Denormals come with training: after some minutes at most there may be few yet.",
            *notes,
        ],
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

    def __init__(self, settings: Any, replay: ReplayStreams, variant: _Variant) -> None:
        torch.manual_seed(0)
        self._variant = variant
        rules = learning_rules(settings)._replace(
            batch_size=variant.batch_size,
            accumulation_steps=variant.accumulation,
            steps_per_sample=4,
            prioritized=False,
        )
        dtype = torch.bfloat16 if variant.precision == "bfloat16" else None
        mode = "default" if variant.compiled else None
        learner = Learner(network_shape(settings), rules, Execution(torch.device("cpu"), dtype, mode))
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
