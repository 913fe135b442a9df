"""Evaluation: how often a policy clears its level, playing greedily.

A greedy policy in a deterministic game has few distinct episodes, so there are two halves: one episode from each of the
31 starts (after 0 to 30 idle frames), and 100 episodes in which every action is, with a chance of 0.1, replaced by the
one before ("sticky actions"). Episodes are played side by side, with one policy call and one emulator call a tick. Used
by the evaluator process and by the command `evaluate`.

Training begins its episodes after 0 to 30 idle frames, too. The 30 starts after 31 to 60 are kept away from it, and
confirm what the others have found.
"""

from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mario_rl.agent.acting import ActingNetwork
from mario_rl.agent.network import QNetwork
from mario_rl.emulation.emulator import NO_RESTART
from mario_rl.emulation.rules import Level
from mario_rl.environment.player import Player
from mario_rl.environment.stacks import PictureStacks
from mario_rl.environment.task import PlayRules
from mario_rl.evaluation.results import Episode, Evaluation
from mario_rl.experience import FRAME_SIZE

STARTS = np.arange(31, dtype=np.int32)  # idle frames
UNSEEN_STARTS = np.arange(31, 61, dtype=np.int32)
NUM_STICKY_EPISODES = 100
BATCH_STEP = 16  # torch keeps compiled kernels for every batch size it meets, so there should be few
GAMES_AT_ONCE = 32  # a hundred would be no faster, and the evaluator would grow by 30 MB with its first sticky episodes
NO_PROGRESS_DECISIONS = 150  # 10 s: for models, whose files do not tell what it was in training


class Sticky(NamedTuple):
    """With which chance what was held before is held on, at every decision or at every frame."""

    probability: float
    by_frame: bool = False  # as the Arcade Learning Environment does it: buttons come some frames late, mostly none

    def __str__(self) -> str:
        return f"sticky actions {self.probability:g}" + (" by frame" if self.by_frame else "")


STICKY, NOT_STICKY = Sticky(0.1), Sticky(0.0)


def _go_on() -> bool:
    return True


def evaluate(
    network: QNetwork,
    rules: PlayRules,
    level: Level,
    seed: int,
    sticky_episodes: int = NUM_STICKY_EPISODES,
    sticky: Sticky = STICKY,
    starts: npt.NDArray[np.int32] = STARTS,
    wait_for_turn: Callable[[], bool] = _go_on,
) -> Evaluation:
    """Both halves; `network` is in eval mode.

    `wait_for_turn` is called before every tick and may sleep; where it returns False, episodes stay unfinished.
    """
    evaluation = evaluate_starts(network, rules, level, starts, wait_for_turn)
    return add_sticky(evaluation, network, rules, seed, sticky_episodes, sticky, starts, wait_for_turn)


def evaluate_starts(
    network: QNetwork,
    rules: PlayRules,
    level: Level,
    starts: npt.NDArray[np.int32] = STARTS,
    wait_for_turn: Callable[[], bool] = _go_on,
) -> Evaluation:
    """The first half: an episode from each start."""
    nothing_random = np.random.default_rng(0)
    return Evaluation(
        level, play_episodes(network, rules, level, starts, NOT_STICKY, nothing_random, wait_for_turn), []
    )


def add_sticky(
    evaluation: Evaluation,
    network: QNetwork,
    rules: PlayRules,
    seed: int,
    sticky_episodes: int = NUM_STICKY_EPISODES,
    sticky: Sticky = STICKY,
    starts: npt.NDArray[np.int32] = STARTS,
    wait_for_turn: Callable[[], bool] = _go_on,
    fewest_cleared: float = 0.0,
) -> Evaluation:
    """The second half: episodes with sticky actions, from starts drawn at random.

    Where fewer than this share of the first episodes are cleared, the others are not played.
    """
    rng = np.random.default_rng(seed)
    idle_frames = rng.choice(starts, size=sticky_episodes)
    episodes: list[Episode] = []
    for part in (idle_frames[:GAMES_AT_ONCE], idle_frames[GAMES_AT_ONCE:]):
        if sum(episode.cleared for episode in episodes) < fewest_cleared * len(episodes):
            break
        episodes += play_episodes(network, rules, evaluation.level, part, sticky, rng, wait_for_turn)
    return evaluation._replace(sticky=episodes)


def play_episodes(
    network: QNetwork,
    rules: PlayRules,
    level: Level,
    idle_frames: npt.NDArray[np.int32],
    sticky: Sticky,
    rng: np.random.Generator,
    wait_for_turn: Callable[[], bool] = _go_on,
) -> list[Episode]:
    """One episode for each entry of `idle_frames`. A game whose episode is over begins the next one that waits."""
    if not len(idle_frames):
        return []
    num_games = min(len(idle_frames), GAMES_AT_ONCE)
    acting = ActingNetwork(network)
    pictures = np.empty((num_games, 1, FRAME_SIZE, FRAME_SIZE), np.uint8)
    stacks = PictureStacks(num_games)
    # Of each game: which episode it plays, and what it does with this tick.
    numbers = np.arange(num_games)
    begins = np.ones(num_games, np.bool_)
    is_done = np.zeros(num_games, np.bool_)  # and no further episode waits for it
    actions = np.zeros(num_games, np.int64)
    delays: npt.NDArray[np.int32] | None = None
    episodes: dict[int, Episode] = {}
    num_begun = num_games
    with closing(Player(rules, [level] * num_games)) as player:
        while not is_done.all() and wait_for_turn():
            plays = ~begins & ~is_done
            if plays.any():
                chosen = actions.copy()
                chosen[plays] = _best_actions(acting, stacks, np.flatnonzero(plays))
                may_stick = player.num_decisions > 0
                if sticky.by_frame:
                    # The frames until the first that does not stick.
                    late = rng.geometric(1.0 - sticky.probability, num_games) - 1
                    delays = np.where(may_stick, np.minimum(late, rules.frame_skip), 0).astype(np.int32)
                    actions = chosen
                else:
                    actions = np.where((rng.random(num_games) < sticky.probability) & may_stick, actions, chosen)
            # A game that is done costs a copy of the level's start instead of four frames.
            restarts = np.where(begins, idle_frames[numbers], np.int32(0))
            idle = np.where(plays, np.int32(NO_RESTART), restarts)
            result = player.tick(actions, idle, pictures, 0, delays)
            stacks.push(pictures[:, 0], begins)
            begins = np.zeros(num_games, np.bool_)
            for game in np.flatnonzero(plays & result.over):
                columns = (player.cleared, player.distances, player.raw_rewards, player.num_decisions)
                episodes[int(numbers[game])] = Episode(*(column[game].item() for column in columns))
                if num_begun < len(idle_frames):
                    numbers[game], begins[game] = num_begun, True
                    num_begun += 1
                else:
                    is_done[game] = True
    return [episode for _, episode in sorted(episodes.items())]


def _best_actions(acting: ActingNetwork, stacks: PictureStacks, games: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """What a greedy policy does in these games."""  # [games]
    padded = np.resize(games, -(-len(games) // BATCH_STEP) * BATCH_STEP)  # some of them twice
    return acting.best_actions(stacks.pictures(padded))[: len(games)]
