"""What sampling and the number of training workers do to the thread that takes experience in.

One thread receives single frames from another process, as in the design that the project grew out of: for each it
wakes up and needs the GIL. Others draw batches in one of five ways and train a small network: either one worker that
makes four steps for each sample call, or four that make one.
"""

import multiprocessing
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from benchmarks.measure import Ratio, Sample, StudyResult, as_is, interleave_many, quotient
from benchmarks.synthetic import EPISODE_LENGTH, synthetic_rows
from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.agent.pictures import scale_pictures
from mario_rl.experience import FRAME_SIZE, STACK_SIZE
from mario_rl.replay.sampler import SampleBuffer, SamplingRules
from mario_rl.replay.streams import ReplayStreams
from mario_rl.replay.uniform import UniformSampler

QUESTION = "How do the way of sampling and the number of training workers starve the thread that takes experience in?"
TEACHES = (
    "Training does not starve the thread that takes experience in, because it holds the GIL for little of its time: "
    "torch's kernels and the compiled gather run without it. One worker with four steps a sample call takes in more "
    "and trains more than four workers with one. The number of workers matters more than the way of sampling."
)
SECONDS = {"quick": 10, "full": 100}
CAPACITY = 20_000
BATCH_SIZE = 32
STEPS = 4  # for each sample call, all workers together
NUM_BUCKETS = 5
OFFERED = 12_000.0  # frames a second that are sent
ALONE = "no training"
SHAPE = NetworkShape((8, 16, 16), 64, 7)

Draw = Callable[[int], Tensor]  # B -> states, uint8 [B, 4, 84, 84]


class _Rates(NamedTuple):
    ingested: float  # frames a second
    steps: float  # a second


def run(quick: bool) -> StudyResult:
    """Every way of sampling with both numbers of workers."""
    seconds = 0.3 if quick else 1.5
    store = _Store()
    ways: dict[str, Callable[[], Draw]] = {
        "deque buckets": lambda: store.deque_buckets,
        "uniform NumPy": lambda: store.uniform_numpy,
        "ours": store.our_gather,
    }
    if not quick:
        ways |= {"boolean scan": lambda: store.boolean_scan, "stratified": lambda: store.stratified}
    variants = {
        f"{way}, {workers} x {STEPS // workers}": lambda make=make, workers=workers: _measure(
            store, make, workers, seconds
        )
        for way, make in ways.items()
        for workers in (4, 1)
    }
    alone = {ALONE: lambda: _measure(store, store.our_gather, 0, seconds)}
    previous_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    measured = interleave_many(alone | variants, repeats=1 if quick else 4)
    torch.set_num_threads(previous_threads)
    store.close()
    rows = [
        {
            "sampling, workers x steps": name,
            "frames/s taken in": f"{Sample([r.ingested for r in rates]).median:,.0f}",
            "training steps/s": f"{Sample([r.steps for r in rates]).median:,.0f}",
        }
        for name, rates in measured.items()
    ]

    def ratio(one: str, other: str, figure: str) -> Ratio:
        return as_is(quotient(*(Sample([getattr(r, figure) for r in measured[name]]) for name in (one, other))), "x")

    ours = "ours, 1 x 4"
    return StudyResult(
        rows,
        {
            "ours 1 x 4 against deque buckets 4 x 1, taken in": ratio(ours, "deque buckets, 4 x 1", "ingested"),
            "ours 1 x 4 against deque buckets 4 x 1, steps": ratio(ours, "deque buckets, 4 x 1", "steps"),
            "ours: 1 x 4 against 4 x 1, taken in": ratio(ours, "ours, 4 x 1", "ingested"),
            "ours: 1 x 4 against 4 x 1, steps": ratio(ours, "ours, 4 x 1", "steps"),
            "taken in beside uniform NumPy, 1 x 4, of that without training": ratio(
                "uniform NumPy, 1 x 4", ALONE, "ingested"
            ),
            "taken in beside ours, 1 x 4, of that without training": ratio(ours, ALONE, "ingested"),
        },
        [
            f"{OFFERED:,.0f} frames/s are sent, one at a time. The product receives chunks of some 128 instead.",
            "'Uniform NumPy' indexes with the GIL held; the gather of 'ours' holds none.",
        ],
    )


def _measure(store: "_Store", make: Callable[[], Draw], workers: int, seconds: float) -> _Rates:
    stop = threading.Event()
    counts = [0] * (workers + 1)
    lock = threading.Lock()
    learner = _SmallLearner()

    def ingest() -> None:
        while not stop.is_set():
            store.receive()
            counts[0] += 1

    def train(number: int) -> None:
        draw, steps = make(), STEPS // workers
        while not stop.is_set():
            states = draw(steps * BATCH_SIZE)
            for part in range(steps):
                with lock:  # one network for all of them
                    learner.step(states[part * BATCH_SIZE : (part + 1) * BATCH_SIZE])
                counts[number] += 1

    threads = [threading.Thread(target=ingest)]
    threads += [threading.Thread(target=train, args=(number + 1,)) for number in range(workers)]
    for thread in threads:
        thread.start()
    stop.wait(0.3)
    begun, before = time.perf_counter(), list(counts)
    stop.wait(seconds)
    elapsed, after = time.perf_counter() - begun, list(counts)
    stop.set()
    for thread in threads:
        thread.join()
    return _Rates((after[0] - before[0]) / elapsed, (sum(after[1:]) - sum(before[1:])) / elapsed)


class _SmallLearner:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self._network = QNetwork(SHAPE).train()
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=1e-3)

    def step(self, states: Tensor) -> None:
        loss = self._network(scale_pictures(states)).square().mean()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()


def _send_frames(connection: "Connection[bytes, bytes]") -> None:
    """Frames at a steady pace, as a collector would send them; later ones wait in the pipe."""
    frame = bytes(FRAME_SIZE * FRAME_SIZE)
    due = time.perf_counter()
    while True:
        due = max(due + 1.0 / OFFERED, time.perf_counter() - 0.01)
        time.sleep(max(0.0, due - time.perf_counter()))
        connection.send_bytes(frame)


class _Store:
    """The same experience, kept in each of the ways."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        rows = synthetic_rows(1, EPISODE_LENGTH)
        self._replay = ReplayStreams(1, CAPACITY)
        for _ in range(CAPACITY // EPISODE_LENGTH):
            self._replay.append(0, rows)
        self._frames = self._replay.frames.numpy().reshape(-1, FRAME_SIZE, FRAME_SIZE)
        self._next = 0
        context = multiprocessing.get_context("spawn")
        self._connection, sender = context.Pipe(duplex=False)
        self._process = context.Process(target=_send_frames, args=(sender,), daemon=True)
        self._process.start()
        sender.close()
        self.receive()  # it has started
        self._buckets: list[deque[int]] = [deque() for _ in range(NUM_BUCKETS)]
        for row in range(STACK_SIZE, CAPACITY):
            self._buckets[row % NUM_BUCKETS].append(row)
        self._priorities = self._rng.random(CAPACITY)
        self._usable = self._rng.random(CAPACITY) < 0.9

    def receive(self) -> None:
        """Take in one frame: wait for it, and store it."""
        self._connection.recv_bytes_into(self._frames[self._next].reshape(-1))
        self._next = (self._next + 1) % CAPACITY

    def close(self) -> None:
        """End the sending process."""
        self._process.terminate()
        self._process.join()
        self._connection.close()

    def _stack(self, rows: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(self._frames[rows[:, None] - np.arange(STACK_SIZE - 1, -1, -1)])

    def deque_buckets(self, count: int) -> Tensor:
        """One experience at a time out of a random bucket; indexing a deque walks through it."""
        pictures = []
        for _ in range(count):
            bucket = random.choice(self._buckets)
            row = bucket[random.randrange(len(bucket))]
            pictures.append(self._frames[row - STACK_SIZE + 1 : row + 1])
        return torch.from_numpy(np.stack(pictures))

    def boolean_scan(self, count: int) -> Tensor:
        """Find all usable rows anew for every batch."""
        usable = np.flatnonzero(self._usable & (np.arange(CAPACITY) >= STACK_SIZE) & (self._priorities > 0.01))
        return self._stack(np.random.default_rng().choice(usable, count))

    def stratified(self, count: int) -> Tensor:
        """A row from each stratum of the summed priorities, which change all the time."""
        bounds = np.cumsum(self._priorities)
        width = bounds[-1] / count
        rows = [int(np.searchsorted(bounds, (stratum + random.random()) * width)) for stratum in range(count)]
        return self._stack(np.clip(rows, STACK_SIZE, CAPACITY - 1))

    def uniform_numpy(self, count: int) -> Tensor:
        """One random-number call, and NumPy's own indexing, which holds the GIL."""
        return self._stack(np.random.default_rng().integers(STACK_SIZE, CAPACITY, count))

    def our_gather(self) -> Draw:
        """The product's sampler, one a worker; its gather holds no GIL."""
        rules = SamplingRules(gamma=0.9, n_step=1, picture_shift=0)
        sampler = UniformSampler(self._replay, rules, np.random.default_rng())
        buffers: dict[int, SampleBuffer] = {}

        def draw(count: int) -> Tensor:
            if count not in buffers:
                buffers[count] = sampler.new_buffer(count)
            buffer = buffers[count]
            sampler.sample(buffer)
            return buffer.pictures[:, 0]

        return draw
