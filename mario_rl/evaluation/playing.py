"""Evaluation: how often a policy clears its level, playing greedily.

A greedy policy in a deterministic game has few distinct episodes, so there are two tests: one episode from each of the
31 starts (after 0 to 30 idle frames), and 100 episodes in which every action is, with a chance of 0.1, replaced by the
one before ("sticky actions"). Episodes are played side by side, with one policy call and one emulator call a tick. Used
by the evaluator process and by the command `evaluate`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mario_rl.agent.acting import ActingNetwork
from mario_rl.agent.network import QNetwork
from mario_rl.emulation.emulator import NO_RESTART, make_emulator
from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ACTION_SETS
from mario_rl.environment.episodes import TaskRules
from mario_rl.environment.observation import show_buttons
from mario_rl.environment.stacks import PictureStacks
from mario_rl.experience import FRAME_SIZE

NUM_STARTS = 31
STICKY_PROBABILITY = 0.1
NUM_STICKY_EPISODES = 100
BATCH_STEP = 16  # torch keeps compiled kernels for every batch size it meets, so there should be few
GAMES_AT_ONCE = 32  # a hundred would be no faster, and the evaluator would grow by 30 MB with its first sticky test
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

    `should_stop` is asked before every tick, and may take its time; where it says yes, episodes stay unfinished.
    """
    rng = np.random.default_rng(seed)
    starts = play_episodes(network, task, level, np.arange(NUM_STARTS, dtype=np.int32), 0.0, rng, should_stop)
    evaluation = Evaluation(level, starts, [])
    if not sticky_episodes or evaluation.clear_rate < sticky_from_clear_rate:
        return evaluation
    idle_frames = rng.integers(NUM_STARTS, size=sticky_episodes, dtype=np.int32)
    return evaluation._replace(sticky=play_episodes(network, task, level, idle_frames, sticky, rng, should_stop))


def play_episodes(
    network: QNetwork,
    task: TaskRules,
    level: Level,
    idle_frames: npt.NDArray[np.int32],
    sticky: float,
    rng: np.random.Generator,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Episode]:
    """One episode for each entry of `idle_frames`. A game whose episode is over begins the next one that waits."""
    num_games = min(len(idle_frames), GAMES_AT_ONCE)
    joypad = np.array(ACTION_SETS[task.actions], np.uint8)
    acting = ActingNetwork(network)
    emulator = make_emulator(task.emulator, [level] * num_games)
    outcomes = emulator.outcomes
    pictures = np.empty((num_games, 1, FRAME_SIZE, FRAME_SIZE), np.uint8)
    stacks = PictureStacks(num_games)
    # Of each game: which episode it plays, and how that goes.
    numbers = np.arange(num_games)
    begins = np.ones(num_games, np.bool_)  # with this tick, which is no decision
    is_done = np.zeros(num_games, np.bool_)  # and no further episode waits for it
    actions = np.zeros(num_games, np.int64)
    cleared = np.zeros(num_games, np.bool_)
    distance = np.zeros(num_games, np.int32)
    reward = np.zeros(num_games)
    decisions = np.zeros(num_games, np.int64)
    progress_decisions = np.zeros(num_games, np.int64)
    episodes: dict[int, Episode] = {}
    num_begun = num_games
    try:
        while not is_done.all() and not should_stop():
            plays = ~begins & ~is_done
            if plays.any():
                chosen = actions.copy()
                chosen[plays] = _best_actions(acting, stacks, np.flatnonzero(plays))
                actions = np.where((rng.random(num_games) < sticky) & (decisions > 0), actions, chosen)
            held = np.where(plays, joypad[actions], np.uint8(0))
            # Who is done costs a copy of the level's start instead of four frames.
            restarts = np.where(plays, np.int32(NO_RESTART), np.where(begins, idle_frames[numbers], np.int32(0)))
            emulator.step(held, task.frame_skip, restarts, pictures, 0)
            show_buttons(pictures[:, 0], held)
            stacks.push(pictures[:, 0], begins)
            for figures in (reward, decisions, progress_decisions, cleared):
                figures[begins] = 0
            distance[begins] = outcomes.x[begins]
            reward[plays] += outcomes.reward[plays]
            decisions[plays] += 1
            cleared |= plays & outcomes.flag
            grown = plays & (outcomes.x > distance)
            distance[grown] = outcomes.x[grown]
            progress_decisions[grown] = decisions[grown]
            over = plays & (outcomes.done | (decisions - progress_decisions >= task.no_progress_decisions))
            begins = np.zeros(num_games, np.bool_)
            for game in np.flatnonzero(over):
                columns = (cleared, distance, reward, decisions)
                episodes[int(numbers[game])] = Episode(*(column[game].item() for column in columns))
                if num_begun < len(idle_frames):
                    numbers[game], begins[game] = num_begun, True
                    num_begun += 1
                else:
                    is_done[game] = True
    finally:
        emulator.close()
    return [episode for _, episode in sorted(episodes.items())]


def _best_actions(acting: ActingNetwork, stacks: PictureStacks, games: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """What a greedy policy does in these games."""  # [games]
    padded = np.resize(games, -(-len(games) // BATCH_STEP) * BATCH_STEP)  # some of them twice
    return acting.best_actions(stacks.pictures(padded))[: len(games)]
