"""Drawing a batch: our streams of single frames against Stable-Baselines3's ReplayBuffer with its default settings."""

import contextlib
import io
import time
from typing import Any

import numpy as np

from benchmarks.measure import MissingPackageError, Ratio, Sample, StudyResult, at_least, at_most, interleave, quotient
from benchmarks.synthetic import EPISODE_LENGTH, synthetic_rows
from mario_rl.experience import STACK_SIZE
from mario_rl.hardware import keep_freed_memory
from mario_rl.replay.streams import ReplayStreams
from mario_rl.replay.uniform import SampleBuffer, UniformSampler

QUESTION = "How long does one sample call of 4 x 512 stacks take, and how much memory does replay need?"
CAPACITY = 50_000
NUM_ENVS = 8
SAMPLE_SIZE = 4 * 512
STACK_SHAPE = (STACK_SIZE, 84, 84)


def run(quick: bool) -> StudyResult:
    """Interleave sample calls of both on full buffers: as they come, then with glibc keeping freed memory."""
    ours = _our_sampler()
    theirs = _their_buffer()
    buffer = SampleBuffer(SAMPLE_SIZE)
    calls = 3 if quick else 10

    def measure() -> dict[str, Sample]:
        variants = {
            "Mario RL": lambda: _seconds(lambda: ours.sample(buffer), calls),
            "Stable-Baselines3": lambda: _seconds(lambda: theirs.sample(SAMPLE_SIZE), calls),
        }
        return interleave(variants, repeats=5 if quick else 15)

    as_usual = measure()
    keep_freed_memory()  # for the whole process, and for good: so this comes second
    with_kept_memory = measure()
    num_bytes = {"Mario RL": _bytes_of_ours(ours), "Stable-Baselines3": _bytes_of_theirs(theirs)}
    rows = [
        {
            "replay": name,
            "freed memory": memory,
            "ms a sample call": round(1e3 * sample.median, 1),
            "spread": f"{sample.spread:.0%}",
            "memory": f"{num_bytes[name] / 1e6:,.0f} MB",
        }
        for memory, measured in (("returned", as_usual), ("kept", with_kept_memory))
        for name, sample in measured.items()
    ]
    speed_up = quotient(as_usual["Stable-Baselines3"], as_usual["Mario RL"])
    kept = quotient(with_kept_memory["Stable-Baselines3"], with_kept_memory["Mario RL"])
    share = Sample([num_bytes["Mario RL"] / num_bytes["Stable-Baselines3"]])
    return StudyResult(
        rows,
        {
            "times as fast as Stable-Baselines3": at_least(speed_up, 5.0, "x"),
            "the same, with glibc keeping freed memory": Ratio(kept.median, kept.low, kept.high, "x"),
            "of Stable-Baselines3's memory": at_most(share, 1 / 6, "x"),
        },
        [
            "Both give 2,048 stacks of states and 2,048 of next states, uint8. Ours builds stacks and 5-step returns",
            "as it draws; theirs (optimize_memory_usage=False) stores both stacks of each experience, draws 1-step.",
            "Theirs allocates 116 MB a call. By default glibc returns that to the system, and every call faults it in",
            "anew; Mario RL tells glibc to keep it, for the whole process (hardware.keep_freed_memory).",
        ],
    )


def _our_sampler() -> UniformSampler:
    replay = ReplayStreams(NUM_ENVS, CAPACITY)
    rows = synthetic_rows(NUM_ENVS, EPISODE_LENGTH)
    for _ in range(2 * replay.length // EPISODE_LENGTH):  # two laps: full, and wrapped around
        replay.append(0, rows)
    return UniformSampler(replay, n_step=5, gamma=0.95, max_shift=2, rng=np.random.default_rng(0))


def _bytes_of_ours(sampler: UniformSampler) -> int:
    replay = sampler._streams
    return replay.frames.numel() + sum(array.nbytes for array in vars(replay).values() if isinstance(array, np.ndarray))


def _bytes_of_theirs(buffer: Any) -> int:
    return sum(array.nbytes for array in vars(buffer).values() if isinstance(array, np.ndarray))


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
