"""Weights from the learner to a collector: through a queue, through shared memory with a lock, and our slots."""

import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.context import SpawnContext
from typing import Any, NamedTuple

import torch

from benchmarks.measure import Sample, StudyResult, as_is, interleave_many, quotient
from benchmarks.product import product_settings
from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.channels.weight_slots import WeightSlots
from mario_rl.learning.publishing import WeightPublisher

QUESTION = "How long does publishing weights keep the learner, and when does a collector have them?"
TEACHES = (
    "A queue is quick for the sender, since a thread pickles behind it, and slow for the receiver. Shared memory "
    "under a lock is the quickest, but a collector that is killed or stopped while it holds the lock stops the "
    "learner. Slots pay for their independence with a checksum on each side and a hand-over to a thread, which is "
    "little at one publication in several seconds."
)
SECONDS = {"quick": 9, "full": 45}

QUEUE = "state_dict through a queue"
LOCKED = "shared memory, copied under a lock"
SLOTS = "our slots"


class _Figures(NamedTuple):
    publish_milliseconds: float  # for which the learner is kept
    arrival_milliseconds: float  # from the beginning of the publication until the collector has loaded it


def run(quick: bool) -> StudyResult:
    """A child process takes each publication and says when it has it."""
    context = multiprocessing.get_context("spawn")
    shape = product_settings().network_shape
    torch.manual_seed(0)
    state = QNetwork(shape).state_dict()
    publications = 30 if quick else 100
    channels: dict[str, Callable[[], _Channel]] = {
        QUEUE: lambda: _QueueChannel(context),
        LOCKED: lambda: _LockedChannel(context, state),
        SLOTS: lambda: _SlotsChannel(context, state),
    }
    measured = interleave_many(
        {name: partial(_measure, context, make, shape, state, publications) for name, make in channels.items()},
        repeats=1 if quick else 4,
        warm_up=False,
    )

    def figure(name: str, field: str) -> Sample:
        return Sample([getattr(figures, field) for figures in measured[name]])

    size = sum(tensor.nbytes for tensor in state.values())
    return StudyResult(
        [
            {
                "channel": name,
                "learner kept for": f"{figure(name, 'publish_milliseconds').median:.2f} ms",
                "collector has it after": f"{figure(name, 'arrival_milliseconds').median:.2f} ms",
            }
            for name in measured
        ],
        {
            "our slots against a queue, time that the learner is kept": as_is(
                quotient(figure(SLOTS, "publish_milliseconds"), figure(QUEUE, "publish_milliseconds")), "x"
            ),
            "our slots against a queue, until the collector has it": as_is(
                quotient(figure(SLOTS, "arrival_milliseconds"), figure(QUEUE, "arrival_milliseconds")), "x"
            ),
            "our slots against a lock, until the collector has it": as_is(
                quotient(figure(SLOTS, "arrival_milliseconds"), figure(LOCKED, "arrival_milliseconds")), "x"
            ),
        },
        [
            f"The network of this machine's settings, {size / 1e6:.1f} MB, one collector. With a queue each further "
            "collector costs another copy; slots are written once for all. Ours is published by a thread: the "
            "learner is kept for a snapshot only, and no process ever waits for a lock.",
        ],
    )


class _Channel:
    """What the learner sends with and the collector receives with; pickled into the child."""

    def attach(self, network: QNetwork) -> None:
        """Begin to publish this network."""

    def close(self) -> None:
        """End that."""

    def send(self, state: dict[str, torch.Tensor]) -> None:
        raise NotImplementedError

    def receive(self, network: QNetwork) -> None:
        """Load the newest weights; called once a publication."""
        raise NotImplementedError


class _QueueChannel(_Channel):
    def __init__(self, context: SpawnContext) -> None:
        self._queue: Any = context.Queue()

    def send(self, state: dict[str, torch.Tensor]) -> None:
        self._queue.put({name: tensor.clone() for name, tensor in state.items()})

    def receive(self, network: QNetwork) -> None:
        network.load_state_dict(self._queue.get())


class _LockedChannel(_Channel):
    def __init__(self, context: SpawnContext, state: dict[str, torch.Tensor]) -> None:
        self._shared = {name: tensor.clone() for name, tensor in state.items()}
        for tensor in self._shared.values():
            tensor.share_memory_()  # type: ignore[no-untyped-call]
        self._lock = context.Lock()

    def send(self, state: dict[str, torch.Tensor]) -> None:
        with self._lock:
            for name, tensor in state.items():
                self._shared[name].copy_(tensor)

    def receive(self, network: QNetwork) -> None:
        with self._lock:
            network.load_state_dict(self._shared)


class _SlotsChannel(_Channel):
    def __init__(self, context: SpawnContext, state: dict[str, torch.Tensor]) -> None:
        self._slots = WeightSlots(context, state)
        self._version = self._num_sent = 0

    def attach(self, network: QNetwork) -> None:
        self._publisher = WeightPublisher(self._slots, network)

    def send(self, state: dict[str, torch.Tensor]) -> None:
        self._num_sent += 1
        self._publisher.publish(self._num_sent)

    def receive(self, network: QNetwork) -> None:
        known = self._version
        while self._version == known:  # the product looks between two chunks, and never waits
            self._version = self._slots.take(network.state_dict(), known)

    def close(self) -> None:
        self._publisher.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_publisher"}


def _measure(
    context: SpawnContext,
    make_channel: Callable[[], _Channel],
    shape: NetworkShape,
    state: dict[str, torch.Tensor],
    publications: int,
) -> _Figures:
    channel = make_channel()
    ours, theirs = context.Pipe()
    process = context.Process(target=_collect, args=(channel, shape, theirs), daemon=True)
    process.start()
    theirs.close()
    ours.recv()  # it is ready
    network = QNetwork(shape)
    network.load_state_dict(state)
    channel.attach(network)
    state = network.state_dict()
    kept, arrived = [], []
    for _ in range(publications):
        begun = time.perf_counter()
        channel.send(state)
        kept.append(time.perf_counter() - begun)
        ours.send(True)
        ours.recv()
        arrived.append(time.perf_counter() - begun)
    ours.send(False)
    process.join()
    channel.close()
    return _Figures(1e3 * Sample(kept).median, 1e3 * Sample(arrived).median)


def _collect(channel: _Channel, shape: NetworkShape, connection: Any) -> None:
    torch.set_num_threads(1)
    network = QNetwork(shape).eval()
    connection.send(True)
    while connection.recv():
        channel.receive(network)
        connection.send(True)
