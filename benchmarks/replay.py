"""Replay: uniform and prioritized draws, how they grow, and Stable-Baselines3's and TorchRL's beside them."""

import contextlib
import importlib.util
import io
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.measure import Sample, StudyResult, as_is, at_least, at_most, interleave, quotient, rate
from benchmarks.product import product_settings
from benchmarks.synthetic import EPISODE_LENGTH, synthetic_rows
from mario_rl.experience import STACK_SIZE
from mario_rl.hardware import keep_freed_memory
from mario_rl.learning.learner import Execution, Learner
from mario_rl.learning.sampling import SampleInline
from mario_rl.pipeline import learning_rules, network_shape
from mario_rl.replay.prioritized import PrioritizedSampler
from mario_rl.replay.sampler import SampleBuffer, Sampler
from mario_rl.replay.streams import BYTES_PER_STORED_ROW, ReplayStreams
from mario_rl.replay.sum_tree import SumTree
from mario_rl.replay.uniform import UniformSampler

QUESTION = "What does a batch from replay cost, uniform and prioritized, small and large, ours and others'?"
SECONDS = {"quick": 15, "full": 140}
NUM_ENVS = 8
BATCH_SIZE = 512
STACK_SHAPE = (STACK_SIZE, 84, 84)
BYTES_PER_PEER_EXPERIENCE = 2 * STACK_SIZE * 84 * 84


def run(quick: bool) -> StudyResult:
    """Draws from all buffers in turns; then a train step with each of our samplers; then the sum trees."""
    keep_freed_memory()  # as the product does; by default every large allocation of a peer would fault in anew
    seconds, repeats = (0.15, 2) if quick else (0.5, 9)
    sizes = [10_000, 100_000] if quick else [10_000, 100_000, 1_000_000]
    peer_sizes = [10_000] if quick else [10_000, 50_000]
    logging.getLogger("torchrl").setLevel(logging.WARNING)  # it tells of every buffer that it makes
    notes = []
    needed = (sum(sizes) + 2 * 10_000) * BYTES_PER_STORED_ROW + 2 * sum(peer_sizes) * BYTES_PER_PEER_EXPERIENCE
    if needed > 0.8 * psutil.virtual_memory().available:
        notes.append(f"1,000,000 experiences were left out: {needed / 1e9:.0f} GB are not free here.")
        sizes = sizes[:2]
    buffers: dict[str, _Buffer] = {}
    for size in sizes:
        streams = _full_streams(size)
        buffers[f"uniform, {size:,}"] = _Ours(_uniform(streams))
        buffers[f"prioritized, {size:,}"] = _Ours(_prioritized(streams))
    for name, package, make in (
        ("Stable-Baselines3", "stable_baselines3", _StableBaselines),
        ("TorchRL", "torchrl", _TorchRl),
        ("TorchRL prioritized", "torchrl", _TorchRlPrioritized),
    ):
        if importlib.util.find_spec(package) is None:
            notes.append(f"{name} is not installed (requirements-bench.txt) and was left out.")
            continue
        try:
            for size in peer_sizes:
                buffers[f"{name}, {size:,}"] = make(size)
        except RuntimeError as error:  # TorchRL's compiled part must fit torch's exact version
            notes.append(f"{name} was left out: {str(error).splitlines()[0]}")
    drawn = interleave({name: partial(_seconds_of, buffer.draw, seconds) for name, buffer in buffers.items()}, repeats)
    rows = [
        {
            "replay": name,
            "ms a batch of 512": f"{1e3 * sample.median:.2f}",
            "spread": f"{sample.spread:.0%}",
            "memory": f"{buffers[name].num_bytes / 1e6:,.0f} MB",
            "bytes an experience": f"{buffers[name].num_bytes / buffers[name].size:,.0f}",
        }
        for name, sample in drawn.items()
    ]
    steps = _train_steps(seconds=0.6 if quick else 3.0, repeats=2 if quick else 7)
    trees = _sum_trees(seconds / 2, repeats, notes)
    rows += [
        {
            "replay": f"a sum tree of 100,000: {name}",
            "ms a batch of 512": f"{1e3 * sample.median:.2f}",
            "spread": f"{sample.spread:.0%}",
            "memory": "",
            "bytes an experience": "",
        }
        for name, sample in trees.items()
    ]
    largest = sizes[-1]
    ratios = {
        f"uniform: {largest:,} against 10,000 experiences, time": at_most(
            quotient(drawn[f"uniform, {largest:,}"], drawn["uniform, 10,000"]), 1.5, "x"
        ),
        f"prioritized: {largest:,} against 10,000 experiences, time": as_is(
            quotient(drawn[f"prioritized, {largest:,}"], drawn["prioritized, 10,000"]), "x"
        ),
        "a prioritized draw against a uniform one, time": as_is(
            quotient(drawn["prioritized, 100,000"], drawn["uniform, 100,000"]), "x"
        ),
        "a train step with prioritized replay against uniform, time": at_most(
            quotient(steps["prioritized"], steps["uniform"]), 1.5, "x"
        ),
    }
    for peer in ("Stable-Baselines3", "TorchRL"):
        if (name := f"{peer}, 10,000") in drawn:
            ratios[f"times as fast as {peer}"] = at_least(quotient(drawn[name], drawn["uniform, 10,000"]), 1.0, "x")
            share = buffers["uniform, 10,000"].num_bytes / buffers[name].num_bytes
            ratios[f"of {peer}'s memory"] = at_most(Sample([share]), 1 / 6, "x")
    return StudyResult(
        rows,
        ratios,
        [
            "A batch is 512 stacks of states and 512 of next states, uint8. Ours builds stacks and 5-step returns as "
            "it draws; the others store both stacks of every experience and draw 1-step. With priorities, 512 errors "
            "also go back.",
            "The note gives prioritized replay 4 times the cost of uniform.",
            *notes,
        ],
    )


class _Buffer:
    size: int
    num_bytes: int

    def draw(self) -> None:
        raise NotImplementedError


class _Ours(_Buffer):
    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        prioritized = isinstance(sampler, PrioritizedSampler)
        self._sample = SampleBuffer(BATCH_SIZE, prioritized=prioritized)
        self._errors = torch.rand(BATCH_SIZE)
        streams = sampler._streams
        self.size = streams.num_streams * streams.length
        columns = [array for array in vars(streams).values() if isinstance(array, np.ndarray)]
        self.num_bytes = streams.frames.numel() + sum(array.nbytes for array in columns)
        if isinstance(sampler, PrioritizedSampler):
            self.num_bytes += sampler._tree._sums.nbytes

    def draw(self) -> None:
        self._sampler.sample(self._sample)
        if self._sample.td_errors is not None:
            self._sample.td_errors.copy_(self._errors)  # the next draw begins by taking them back


class _StableBaselines(_Buffer):
    def __init__(self, size: int) -> None:
        with contextlib.redirect_stderr(io.StringIO()):  # it imports gym, whose notice tells a user nothing
            from gymnasium import spaces
            from stable_baselines3.common.buffers import ReplayBuffer
        picture = spaces.Box(0, 255, STACK_SHAPE, np.uint8)
        self._buffer = ReplayBuffer(size, picture, spaces.Discrete(7), device="cpu", n_envs=NUM_ENVS)
        stacks = np.random.default_rng(0).integers(0, 256, (NUM_ENVS, *STACK_SHAPE), dtype=np.uint8)
        nothing: list[dict[str, Any]] = [{} for _ in range(NUM_ENVS)]
        zeros = np.zeros(NUM_ENVS)
        for _ in range(size // NUM_ENVS):
            self._buffer.add(stacks, stacks, zeros, zeros, zeros, nothing)
        self.size = size
        self.num_bytes = sum(array.nbytes for array in vars(self._buffer).values() if isinstance(array, np.ndarray))

    def draw(self) -> None:
        self._buffer.sample(BATCH_SIZE)


class _TorchRl(_Buffer):
    def __init__(self, size: int) -> None:
        from tensordict import TensorDict

        self._buffer = self._make(size)
        block = 1_000
        stacks = torch.randint(0, 256, (block, *STACK_SHAPE), dtype=torch.uint8)
        experience = TensorDict(
            {
                "state": stacks,
                "next_state": stacks,
                "action": torch.zeros(block, dtype=torch.int64),
                "reward": torch.zeros(block),
                "done": torch.zeros(block, dtype=torch.bool),
            },
            batch_size=[block],
        )
        for _ in range(size // block):
            self._buffer.extend(experience)
        self.size = size
        self.num_bytes = size * sum(value[0].nbytes for value in experience.values())
        self._errors = torch.rand(BATCH_SIZE)

    def _make(self, size: int) -> Any:
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

        return TensorDictReplayBuffer(storage=LazyTensorStorage(size), batch_size=BATCH_SIZE)

    def draw(self) -> None:
        self._buffer.sample()


class _TorchRlPrioritized(_TorchRl):
    def _make(self, size: int) -> Any:
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

        return TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=LazyTensorStorage(size), batch_size=BATCH_SIZE
        )

    def draw(self) -> None:
        sample = self._buffer.sample()
        self._buffer.update_priority(sample["index"], self._errors)


def _full_streams(size: int) -> ReplayStreams:
    streams = ReplayStreams(NUM_ENVS, size)
    rows = synthetic_rows(NUM_ENVS, EPISODE_LENGTH)
    for _ in range(streams.length // EPISODE_LENGTH + 1):  # full, and wrapped around
        streams.append(0, rows)
    return streams


def _uniform(streams: ReplayStreams) -> UniformSampler:
    return UniformSampler(streams, n_step=5, gamma=0.9, max_shift=2, rng=np.random.default_rng(0))


def _prioritized(streams: ReplayStreams) -> PrioritizedSampler:
    return PrioritizedSampler(
        streams, 5, 0.9, 2, np.random.default_rng(0), exponent=0.6, correction=0.4, correction_decisions=400_000
    )


def _train_steps(seconds: float, repeats: int) -> dict[str, Sample]:
    """Seconds that an update takes with either sampler, drawn inline: nothing is hidden in another thread."""
    settings = product_settings()
    streams = _full_streams(10_000)

    def step(sampler: Sampler, prioritized: bool) -> Callable[[], float]:
        rules = learning_rules(settings)._replace(prioritized=prioritized)
        torch.manual_seed(0)
        learner = Learner(network_shape(settings), rules, Execution(torch.device("cpu")))
        samples = SampleInline(sampler, rules.batch_size * rules.steps_per_sample, prioritized)
        return lambda: 1.0 / rate(lambda: learner.train(samples.next), seconds)

    return interleave(
        {"uniform": step(_uniform(streams), False), "prioritized": step(_prioritized(streams), True)}, repeats
    )


def _sum_trees(seconds: float, repeats: int, notes: list[str]) -> dict[str, Sample]:
    """Drawing 512 and updating 512 of 100,000 leaves: ours (NumPy) and TorchRL's (C++)."""
    size, rng = 100_000, np.random.default_rng(0)
    tree = SumTree(size)
    tree.set(np.arange(size), rng.random(size))
    values = rng.random(BATCH_SIZE)

    def ours() -> None:
        tree.set(tree.find(rng.random(BATCH_SIZE) * tree.total), values)

    calls: dict[str, Callable[[], None]] = {"ours, NumPy": ours}
    try:
        from torchrl._torchrl import SumSegmentTreeFp32
    except ImportError:
        notes.append("TorchRL's sum tree was left out: it could not be imported.")
    else:
        theirs = SumSegmentTreeFp32(size)
        theirs[torch.arange(size)] = torch.rand(size)
        new_values = torch.rand(BATCH_SIZE)

        def torchrl() -> None:
            amounts = torch.rand(BATCH_SIZE) * theirs.query(0, size)
            theirs[theirs.scan_lower_bound(amounts).clamp_(max=size - 1)] = new_values

        calls["TorchRL's, C++"] = torchrl
    return interleave({name: partial(_seconds_of, call, seconds) for name, call in calls.items()}, repeats)


def _seconds_of(call: Callable[[], None], seconds: float) -> float:
    """How long one call takes, measured over about so many seconds."""
    return 1.0 / rate(call, seconds)
