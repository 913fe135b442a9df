"""Evaluation: how often a policy clears its level, playing greedily.

A greedy policy in a deterministic game has few distinct episodes, so there are two tests: one episode from each of the
31 starts (after 0 to 30 idle frames), and 100 episodes in which every action is, with a chance of 0.1, replaced by the
one before ("sticky actions"). All episodes of a test are played side by side: one policy call and one emulator call a
tick. Used by the evaluator process and by the command `evaluate`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mario_rl.emulation.emulator import NO_RESTART, make_emulator
from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ACTION_SETS
from mario_rl.environment.episodes import TaskRules
from mario_rl.environment.observation import show_buttons
from mario_rl.experience import FRAME_SIZE, STACK_SIZE
from mario_rl.network import QNetwork, scale_pictures

NUM_STARTS = 31
STICKY_PROBABILITY = 0.1
NUM_STICKY_EPISODES = 100
BATCH_STEP = 16  # torch keeps compiled kernels for every batch size it meets, so there should be few
NO_PROGRESS_DECISIONS = 150  # 10 s: for models, whose files do not tell what it was in training


class Episode(NamedTuple):
    """How one episode of a test went."""

    cleared: bool
    distance: int
    reward: float  # raw, as gym-super-mario-bros counts it
    decisions: int


class Evaluation(NamedTuple):
    """Both tests of one policy on one level."""

    level: Level
    starts: list[Episode]
    sticky: list[Episode]

    @property
    def clear_rate(self) -> float:
        """From the different starts."""
        return _mean([episode.cleared for episode in self.starts])

    @property
    def sticky_clear_rate(self) -> float:
        """With sticky actions; 0 where that test was left out."""
        return _mean([episode.cleared for episode in self.sticky])

    @property
    def mean_distance(self) -> float:
        """From the different starts."""
        return _mean([episode.distance for episode in self.starts])

    @property
    def mean_reward(self) -> float:
        """From the different starts."""
        return _mean([episode.reward for episode in self.starts])


class Totals(NamedTuple):
    """The means over all levels."""

    clear_rate: float
    sticky_clear_rate: float | None  # None where that test was left out somewhere
    mean_distance: float
    mean_reward: float


def summarise(evaluations: list[Evaluation]) -> Totals:
    """The means over all levels."""
    tried = all(evaluation.sticky for evaluation in evaluations)
    return Totals(
        _mean([evaluation.clear_rate for evaluation in evaluations]),
        _mean([evaluation.sticky_clear_rate for evaluation in evaluations]) if tried else None,
        _mean([evaluation.mean_distance for evaluation in evaluations]),
        _mean([evaluation.mean_reward for evaluation in evaluations]),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def evaluate(
    network: QNetwork,
    task: TaskRules,
    level: Level,
    seed: int,
    sticky_episodes: int = NUM_STICKY_EPISODES,
    sticky: float = STICKY_PROBABILITY,
    sticky_from_clear_rate: float = 0.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> Evaluation:
    """Both tests, the second only from some clear rate in the first; `network` is in eval mode.

    Where it should stop, the episodes stay unfinished.
    """
    rng = np.random.default_rng(seed)
    starts = play_episodes(network, task, level, np.arange(NUM_STARTS, dtype=np.int32), 0.0, rng, should_stop)
    evaluation = Evaluation(level, starts, [])
    if not sticky_episodes or evaluation.clear_rate < sticky_from_clear_rate:
        return evaluation
    idle_frames = rng.integers(NUM_STARTS, size=sticky_episodes, dtype=np.int32)
    return evaluation._replace(sticky=play_episodes(network, task, level, idle_frames, sticky, rng, should_stop))


@torch.inference_mode()
def play_episodes(
    network: QNetwork,
    task: TaskRules,
    level: Level,
    idle_frames: npt.NDArray[np.int32],
    sticky: float,
    rng: np.random.Generator,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Episode]:
    """One episode for each entry of `idle_frames`, all at once."""
    num_games = len(idle_frames)
    joypad = np.array(ACTION_SETS[task.actions], np.uint8)
    emulator = make_emulator(task.emulator, [level] * num_games)
    outcomes = emulator.outcomes
    pictures = np.empty((num_games, 1, FRAME_SIZE, FRAME_SIZE), np.uint8)
    nothing_held = np.zeros(num_games, np.uint8)
    emulator.step(nothing_held, task.frame_skip, idle_frames, pictures, 0)
    show_buttons(pictures[:, 0], nothing_held)
    stacks = np.repeat(pictures, STACK_SIZE, axis=1)
    playing = np.ones(num_games, np.bool_)
    cleared = np.zeros(num_games, np.bool_)
    distance = outcomes.x.copy()
    reward = np.zeros(num_games)
    decisions = np.zeros(num_games, np.int64)
    progress_decisions = np.zeros(num_games, np.int64)
    actions = np.zeros(num_games, np.int64)
    try:
        while playing.any() and not should_stop():
            rows = np.flatnonzero(playing)
            batch = np.resize(rows, -(-len(rows) // BATCH_STEP) * BATCH_STEP)  # some of them twice
            best = network(scale_pictures(torch.from_numpy(stacks[batch]))).argmax(dim=1).numpy()
            chosen = actions.copy()
            chosen[rows] = best[: len(rows)]
            actions = np.where((rng.random(num_games) < sticky) & (decisions > 0), actions, chosen)
            # Who is done costs a copy of the level's start instead of four frames.
            restarts = np.where(playing, np.int32(NO_RESTART), np.int32(0))
            emulator.step(joypad[actions], task.frame_skip, restarts, pictures, 0)
            show_buttons(pictures[:, 0], joypad[actions])
            stacks[:, :-1] = stacks[:, 1:]
            stacks[:, -1:] = pictures
            reward[playing] += outcomes.reward[playing]
            decisions[playing] += 1
            cleared |= playing & outcomes.flag
            grown = playing & (outcomes.x > distance)
            distance[grown] = outcomes.x[grown]
            progress_decisions[grown] = decisions[grown]
            playing &= ~outcomes.done & (decisions - progress_decisions < task.no_progress_decisions)
    finally:
        emulator.close()
    columns = (cleared.tolist(), distance.tolist(), reward.tolist(), decisions.tolist())
    return [Episode(*values) for values in zip(*columns, strict=True)]
