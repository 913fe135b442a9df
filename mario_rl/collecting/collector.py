"""A collector: E emulators, one policy, one ring. Runs in a child process; in serial mode inside the learner's.

Every tick each emulator leaves one row. One policy call decides for all emulators, one call plays all of them, and
their next pictures are drawn straight into the ring's slot. On the tick after an episode's end the row is the FINAL
picture, and the emulator starts its next episode instead of acting. Acting takes no lock: the network is the
collector's own.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mario_rl.agent.acting import ActingNetwork
from mario_rl.agent.exploration import EpsilonLadder, ExplorationRules, Explorer
from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.channels.control import Control
from mario_rl.channels.experience_ring import CollectorStat, RingWriter
from mario_rl.channels.weight_slots import WeightSlots
from mario_rl.collecting.rules import CollectingRules
from mario_rl.environment.episodes import Episodes
from mario_rl.environment.stacks import PictureStacks
from mario_rl.environment.task import PlayRules, TaskRules
from mario_rl.experience import FIELDS, FRAME_SIZE, Mark, Rows
from mario_rl.saved_part import check_like

HEARTBEAT_SECONDS = 1.0  # between two signs of life of a collector that waits; one that plays gives one every tick


class CollectorSetup(NamedTuple):
    """Everything a collector is told at its start; it travels to the child by pickling."""

    number: int
    collecting: CollectingRules
    play: PlayRules
    task: TaskRules
    exploration: ExplorationRules
    network: NetworkShape
    ladder: EpsilonLadder  # of all collectors' emulators
    seed: np.random.SeedSequence
    map_slots: WeightSlots | None = None  # where new maps come from, with PROGRESS = "map"

    @property
    def num_envs(self) -> int:
        """Emulators of this collector."""
        return self.collecting.envs_per_process


class Collector:
    """Plays and fills chunks."""

    def __init__(self, setup: CollectorSetup, control: Control, slots: WeightSlots) -> None:
        self._setup = setup
        self._control = control
        self._slots = slots
        self._map_version = 0
        acting_seed, episodes_seed = setup.seed.spawn(2)
        self._explorer = Explorer(
            setup.exploration, setup.num_envs, setup.play.actions, np.random.default_rng(acting_seed)
        )
        self._episodes = Episodes(setup.play, setup.task, setup.num_envs, np.random.default_rng(episodes_seed))
        self._stacks = PictureStacks(setup.num_envs)
        # Where the picture after a chunk's last tick waits for the next chunk.
        self._pending = np.empty((setup.num_envs, 1, FRAME_SIZE, FRAME_SIZE), np.uint8)
        self._episodes.draw(self._pending, 0)
        self._network = QNetwork(setup.network).eval().requires_grad_(False)
        self._weights = self._network.state_dict()
        self._acting = ActingNetwork(self._network)
        self.weights_version = 0

    def take_news(self) -> None:
        """Use the newest weights, and the newest map."""
        level_map, map_slots = self._episodes.level_map, self._setup.map_slots
        if level_map is not None and map_slots is not None:
            self._map_version = map_slots.take(level_map.tensors, self._map_version)
        version = self._slots.take(self._weights, self.weights_version)
        if version != self.weights_version:
            self._acting.refresh()
            self.weights_version = version

    def collect_chunk(self, rows: Rows, beat: Callable[[], None] = lambda: None) -> bool:
        """Fill a chunk; False when the run was stopped in the middle of it."""  # rows: [envs, decisions, ...]
        num_ticks = self._setup.collecting.chunk_decisions
        rows.frame[:, 0] = self._pending[:, 0]
        for tick in range(num_ticks):
            if self._control.stop:
                return False
            beat()
            self._stacks.push(rows.frame[:, tick], self._episodes.at_start)
            actions = self._decide()
            if tick < num_ticks - 1:
                self._episodes.play(actions, rows, tick, rows.frame, tick + 1)
            else:
                self._episodes.play(actions, rows, tick, self._pending, 0)
        return True

    def _decide(self) -> npt.NDArray[np.int64]:
        """Epsilon-greedy actions for all emulators."""  # [envs]
        number, num_envs = self._setup.number, self._setup.num_envs
        epsilons = self._setup.ladder.epsilons(self._control.decisions)[number * num_envs : (number + 1) * num_envs]
        return self._explorer.decide(epsilons, self._best_actions)

    def _best_actions(self) -> npt.NDArray[np.int64]:
        return self._acting.best_actions(self._stacks.pictures())

    def state(self) -> dict[str, Any]:
        """What serial mode's checkpoint keeps as JSON."""
        return {
            "explorer": self._explorer.state(),
            "episodes": self._episodes.state(),
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """What serial mode's checkpoint keeps as tensors."""
        weights = {f"acting.{name}": tensor for name, tensor in self._weights.items()}
        stacks = self._stacks.pictures().contiguous()
        return weights | {"stacks": stacks, "pending": torch.from_numpy(self._pending)}

    def fits(self, state: dict[str, Any]) -> bool:
        """Whether `load` can continue from this state; one of another emulator, level or mode may be anything."""
        return self._episodes.fits(state.get("episodes"))

    def check(self, state: dict[str, Any]) -> None:
        """ValueError where a state that fits is none of ours."""
        self._episodes.check(state["episodes"])
        check_like(state["explorer"], self._explorer.state(), "source.explorer")
        actions = state["explorer"]["held"] + state["explorer"]["last"]
        if not all(0 <= action < self._setup.network.num_actions for action in actions):
            raise ValueError("source.explorer holds an action that there is not")

    def acting_weights(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The weights among what `tensors` gave."""
        return {name: tensors[f"acting.{name}"] for name in self._weights}

    def load(self, state: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        """Continue from a serial checkpoint."""
        for name, tensor in self.acting_weights(tensors).items():
            self._weights[name].copy_(tensor)
        self._acting.refresh()
        self.weights_version = self._slots.version
        self._stacks.pictures().copy_(tensors["stacks"])
        self._pending[:] = tensors["pending"].numpy()
        self._episodes.load(state["episodes"])
        self._explorer.load(state["explorer"])

    def close(self) -> None:
        """Free the emulators."""
        self._episodes.close()


def collect_until_stopped(collector: Collector, setup: CollectorSetup, writer: RingWriter, control: Control) -> None:
    """A collector process's life: wait for permission and for a slot, take weights, fill the slot, hand it over."""
    stats = writer.memory.stats.array
    spare = _private_rows(setup) if setup.collecting.when_ring_full == "drop" else None
    begun, cpu_begun = time.perf_counter(), time.process_time()

    def beat() -> None:
        stats[CollectorStat.HEARTBEAT] = time.monotonic()

    while not control.stop:
        beat()
        writer.answer()
        while not control.stop and stats[CollectorStat.DECISIONS_WRITTEN] >= control.granted_decisions(setup.number):
            stats[CollectorStat.THROTTLE_SECONDS] += writer.freed.wait(HEARTBEAT_SECONDS)
            beat()
            writer.answer()
        while not control.stop and writer.is_full and spare is None:
            stats[CollectorStat.RING_WAIT_SECONDS] += writer.freed.wait(HEARTBEAT_SECONDS)
            beat()
            writer.answer()
        if control.stop:
            return
        collector.take_news()  # after the waiting, which may have been long
        stats[CollectorStat.WEIGHTS_VERSION] = collector.weights_version
        rows = spare if spare is not None and writer.is_full else writer.free_slot()
        if not collector.collect_chunk(rows, beat):
            return
        decisions = np.count_nonzero((rows.marks & Mark.FINAL) == 0)
        stats[CollectorStat.RUNNING_SECONDS] = time.perf_counter() - begun
        stats[CollectorStat.CPU_SECONDS] = time.process_time() - cpu_begun
        if rows is spare:
            stats[CollectorStat.DECISIONS_DROPPED] += decisions
            writer.skip()
        else:
            stats[CollectorStat.DECISIONS_WRITTEN] += decisions
            writer.publish()


def _private_rows(setup: CollectorSetup) -> Rows:
    """A chunk that is never handed over: where rows go when the ring is full and may be dropped."""
    leading = (setup.num_envs, setup.collecting.chunk_decisions)
    columns: list[Any] = [np.zeros(leading + field.shape, field.dtype) for field in FIELDS]
    return Rows(*columns)
