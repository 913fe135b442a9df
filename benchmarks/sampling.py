"""Drawing a batch: our streams of single frames against Stable-Baselines3's ReplayBuffer with its default settings."""

import contextlib
import io
import time
from typing import Any

import numpy as np

from benchmarks.measure import MissingPackageError, Sample, StudyResult, at_least, at_most, interleave, quotient
from benchmarks.synthetic import EPISODE_LENGTH, synthetic_rows
from mario_rl.experience import STACK_SIZE
from mario_rl.replay.streams import ReplayStreams
from mario_rl.replay.uniform import SampleBuffer, UniformSampler

QUESTION = "How long does one sample call of 4 x 512 stacks take, and how much memory does replay need?"
CAPACITY = 50_000
NUM_ENVS = 8
SAMPLE_SIZE = 4 * 512
STACK_SHAPE = (STACK_SIZE, 84, 84)


def run(quick: bool) -> StudyResult:
    """Interleave sample calls of both on full buffers."""
    ours = _our_sampler()
    theirs = _their_buffer()
    buffer = SampleBuffer(SAMPLE_SIZE)
    calls = 3 if quick else 10
    measured = interleave(
        {
            "Mario RL": lambda: _seconds(lambda: ours.sample(buffer), calls),
            "Stable-Baselines3": lambda: _seconds(lambda: theirs.sample(SAMPLE_SIZE), calls),
        },
        repeats=5 if quick else 15,
    )
    our_bytes = _bytes_of_ours(ours)
    their_bytes = sum(array.nbytes for array in vars(theirs).values() if isinstance(array, np.ndarray))
    rows = [
        {
            "replay": name,
            "ms a sample call": round(1e3 * sample.median, 1),
            "spread": f"{sample.spread:.0%}",
            "memory": f"{num_bytes / 1e6:,.0f} MB",
        }
        for (name, sample), num_bytes in zip(measured.items(), (our_bytes, their_bytes), strict=True)
    ]
    speed_up = quotient(measured["Stable-Baselines3"], measured["Mario RL"])
    return StudyResult(
        rows,
        {
            "times as fast as Stable-Baselines3": at_least(speed_up, 5.0, "x"),
            "of Stable-Baselines3's memory": at_most(Sample([our_bytes / their_bytes]), 1 / 6, "x"),
        },
        [
            "Both give 2,048 stacks of states and 2,048 of next states, uint8. Ours builds stacks and 5-step returns",
            "as it draws; theirs (optimize_memory_usage=False) stores both stacks of each experience, draws 1-step.",
        ],
    )


def _our_sampler() -> UniformSampler:
    replay = ReplayStreams(NUM_ENVS, CAPACITY)
    rows = synthetic_rows(NUM_ENVS, EPISODE_LENGTH)
    for _ in range(2 * replay.length // EPISODE_LENGTH):  # two laps: full, and wrapped around
        replay.append(0, rows)
    return UniformSampler(replay, n_step=5, gamma=0.95, rng=np.random.default_rng(0))


def _bytes_of_ours(sampler: UniformSampler) -> int:
    replay = sampler._streams
    return replay.frames.numel() + sum(array.nbytes for array in vars(replay).values() if isinstance(array, np.ndarray))


def _their_buffer() -> Any:
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # it imports gym, whose notice tells a user nothing
            from gymnasium import spaces
            from stable_baselines3.common.buffers import ReplayBuffer
    except ImportError:
        raise MissingPackageError("stable-baselines3 is not installed: pip install -r requirements-bench.txt") from None
    buffer = ReplayBuffer(
        CAPACITY, spaces.Box(0, 255, STACK_SHAPE, np.uint8), spaces.Discrete(7), device="cpu", n_envs=NUM_ENVS
    )
    rng = np.random.default_rng(0)
    stacks = rng.integers(0, 256, (NUM_ENVS, *STACK_SHAPE), dtype=np.uint8)
    nothing: list[dict[str, Any]] = [{} for _ in range(NUM_ENVS)]
    zeros = np.zeros(NUM_ENVS)
    for _ in range(CAPACITY // NUM_ENVS):
        buffer.add(stacks, stacks, zeros, zeros, zeros, nothing)
    return buffer


def _seconds(call: Any, times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begun) / times
