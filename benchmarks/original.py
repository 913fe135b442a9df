"""The design that the product grew out of, written as a careful person would have written it first.

Two collector processes with one game each put single pickled experiences into one shared queue. In the main process a
thread moves them into a deque under a lock, and the training loop draws a batch of tuples under the same lock, stacks
it, and trains. Every epoch, the whole state_dict goes to every collector through a queue. No mixed precision, no
channels_last, nothing pre-allocated.

Game, network and loss are the product's own, and it trains on the same device, so that only the design differs. As in
the product, collectors act on the CPU.
"""

import contextlib
import math
import multiprocessing
import queue
import random
import threading
import time
from collections import deque
from multiprocessing.context import SpawnContext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import psutil
import torch

from benchmarks.one_game import OneGame
from benchmarks.product import gpu_percent
from mario_rl.agent.network import NetworkShape, QNetwork, eval_twin
from mario_rl.agent.pictures import scale_pictures
from mario_rl.environment.task import PlayRules, TaskRules
from mario_rl.learning.losses import MicroBatch, double_q_loss
from mario_rl.machine.child_processes import end_with_parent
from mario_rl.machine.facts import num_cores
from mario_rl.telemetry.locks import LockReport, TimedLock

QUEUE_SIZE = 10_000
MEMORY_SIZE = 10_000
BATCH_SIZE = 256
EPISODES_PER_EPOCH = 8
TARGET_INTERVAL = 100
EPSILON = 0.2


class OriginalSetup(NamedTuple):
    """What is varied."""

    network: NetworkShape
    play: PlayRules
    task: TaskRules
    replay_ratio: float  # experiences trained on for each one collected; 0: neither side waits
    device: torch.device  # that it trains on
    batch_size: int = BATCH_SIZE
    num_processes: int = 2
    warmup: int = 1_000


class OriginalFigures(NamedTuple):
    """What was measured while it learned."""

    decisions_per_second: float
    updates_per_second: float
    samples_per_second: float
    episodes_per_second: float
    lock_wait_milliseconds: float  # a mean acquisition
    lock_wait_share: float  # all threads' waiting together, against the time that passed
    cpu_percent: float
    gpu_percent: float
    sample_wait_share: float = math.nan  # it samples by itself, under the lock


def run_original(setup: OriginalSetup, seconds: float) -> OriginalFigures:
    """Start it, wait until it learns, measure, stop it."""
    context = multiprocessing.get_context("spawn")
    torch.set_num_threads(num_cores())  # as torch does by itself; a product that ran before has left its own number
    pipeline = _Original(context, setup)
    try:
        return pipeline.measure(seconds)
    finally:
        pipeline.stop()


class _Memory:
    """A deque of experiences and the lock around it."""

    def __init__(self) -> None:
        self._experiences: deque[tuple[Any, ...]] = deque(maxlen=MEMORY_SIZE)
        self._lock = TimedLock()

    def append(self, experience: tuple[Any, ...]) -> None:
        with self._lock:
            self._experiences.append(experience)

    def sample(self, count: int) -> tuple[Any, ...]:
        """A batch, column by column."""
        with self._lock:
            batch = random.sample(self._experiences, count)
            return tuple(np.stack(column) for column in zip(*batch, strict=True))

    def take_report(self) -> LockReport:
        with self._lock:
            return self._lock.take_report()


class _Original:
    def __init__(self, context: SpawnContext, setup: OriginalSetup) -> None:
        self._setup = setup
        self._experiences = context.Queue(QUEUE_SIZE)
        self._weights = [context.Queue(1) for _ in range(setup.num_processes)]
        self._limit = context.Value("q", 2**62 if not setup.replay_ratio else setup.warmup + 512)
        self._played = context.Value("q", 0)
        self._stop = context.Event()
        self._processes = [
            context.Process(
                target=_collect,
                args=(number, setup, self._experiences, weights, self._limit, self._played, self._stop),
                daemon=True,
            )
            for number, weights in enumerate(self._weights)
        ]
        self._memory = _Memory()
        self._num_received = 0
        self._num_episodes = 0
        self._online = _plain_network(setup.network).to(setup.device).train()
        self._online_eval = eval_twin(self._online)
        self._target = _plain_network(setup.network).to(setup.device).eval().requires_grad_(False)
        self._optimizer = torch.optim.Adam(self._online.parameters(), lr=3e-4)
        self._num_updates = 0
        for process in self._processes:
            process.start()
        self._receiver = threading.Thread(target=self._receive, daemon=True)
        self._receiver.start()

    def measure(self, seconds: float) -> OriginalFigures:
        while self._num_received < self._setup.warmup or self._num_updates < 3:
            self._train_if_due()
            if not all(process.is_alive() for process in self._processes):
                raise RuntimeError("a collector of the original design has ended; its traceback is above")
        self._memory.take_report()
        psutil.cpu_percent()
        begun, received, updates = time.perf_counter(), self._num_received, self._num_updates
        episodes = epoch_begun = self._num_episodes
        while time.perf_counter() - begun < seconds:
            self._train_if_due()
            if self._num_episodes - epoch_begun >= EPISODES_PER_EPOCH:
                epoch_begun = self._num_episodes
                self._send_weights()
        elapsed = time.perf_counter() - begun
        report = self._memory.take_report()
        num_updates = self._num_updates - updates
        return OriginalFigures(
            decisions_per_second=(self._num_received - received) / elapsed,
            updates_per_second=num_updates / elapsed,
            samples_per_second=num_updates * self._setup.batch_size / elapsed,
            episodes_per_second=(self._num_episodes - episodes) / elapsed,
            lock_wait_milliseconds=report.mean_wait_milliseconds,
            lock_wait_share=report.wait_seconds / elapsed,
            cpu_percent=psutil.cpu_percent(),
            gpu_percent=gpu_percent(),
        )

    def _receive(self) -> None:
        while not self._stop.is_set():
            try:
                experience = self._experiences.get(timeout=0.5)
            except queue.Empty:
                continue
            self._memory.append(experience[:5])
            self._num_received += 1
            self._num_episodes += experience[5]

    def _train_if_due(self) -> None:
        setup = self._setup
        trained = self._num_updates * setup.batch_size
        allowed = (self._num_received - setup.warmup) * setup.replay_ratio if setup.replay_ratio else 2**62
        if self._num_received < setup.warmup or trained + setup.batch_size > allowed:
            time.sleep(0.001)
            return
        states, actions, rewards, next_states, ends = self._memory.sample(setup.batch_size)
        device = setup.device
        micro_batch = MicroBatch(
            states=_scaled(states, device),
            actions=torch.from_numpy(actions).to(device).long(),
            targets=None,
            next_states=_scaled(next_states, device),
            returns=torch.from_numpy(rewards).to(device).float(),
            discounts=0.9 * (1 - torch.from_numpy(ends).to(device).float()),
        )
        figures = double_q_loss(
            self._online.outputs, self._online_eval.outputs, self._target.outputs, self._online.head, micro_batch
        )
        self._optimizer.zero_grad()
        figures.loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._online.parameters(), 10.0)
        self._optimizer.step()
        self._num_updates += 1
        if self._num_updates % TARGET_INTERVAL == 0:
            self._target.load_state_dict(self._online.state_dict())
        if setup.replay_ratio:
            done = self._num_updates * setup.batch_size / setup.replay_ratio
            self._limit.value = int(done) + setup.warmup + 512

    def _send_weights(self) -> None:
        state = {name: tensor.cpu().clone() for name, tensor in self._online.state_dict().items()}
        for weights in self._weights:
            with contextlib.suppress(queue.Empty):  # what was not fetched yet is out of date
                weights.get_nowait()
            weights.put(state)

    def stop(self) -> None:
        self._stop.set()
        self._receiver.join()
        for process in self._processes:
            process.terminate()
            process.join()
        for channel in (self._experiences, *self._weights):
            channel.cancel_join_thread()
            channel.close()


def _plain_network(shape: NetworkShape) -> QNetwork:
    """The network in torch's ordinary layout."""
    network = QNetwork(shape)
    for parameter in network.parameters():
        parameter.data = parameter.data.contiguous()
    return network


def _scaled(stacks: npt.NDArray[np.uint8], device: torch.device) -> torch.Tensor:
    """Pictures as the network wants them, but contiguous. Bytes travel to a GPU: floats would be four times as many."""
    return scale_pictures(torch.from_numpy(stacks).to(device), out=torch.empty(stacks.shape, device=device))


def _collect(
    number: int, setup: OriginalSetup, experiences: Any, weights: Any, limit: Any, played: Any, stop: Any
) -> None:
    end_with_parent()  # a benchmark that is killed leaves no process behind
    torch.set_num_threads(1)
    rng = np.random.default_rng(number)
    game = OneGame(setup.play, setup.task, number)
    network = _plain_network(setup.network).eval()
    state = game.reset()
    while not stop.is_set():
        while played.value >= limit.value and not stop.is_set():
            time.sleep(0.002)
        with contextlib.suppress(queue.Empty):
            network.load_state_dict(weights.get_nowait())
        action = int(rng.integers(game.num_actions))
        if rng.random() > EPSILON:
            with torch.no_grad():
                action = int(network(_scaled(state[None], torch.device("cpu"))).argmax())
        next_state, reward, terminated, truncated = game.step(action)
        over = terminated or truncated
        experiences.put((state, action, reward, next_state, terminated, over))
        with played.get_lock():
            played.value += 1
        state = game.reset() if over else next_state
