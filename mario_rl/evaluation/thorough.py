"""The evaluation that a result is reported with: more kinds of episodes than training looks at, and how sure it is."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mario_rl.agent.network import QNetwork
from mario_rl.emulation.rules import Level
from mario_rl.environment.task import PlayRules
from mario_rl.evaluation.episodes import NOT_STICKY, NUM_STICKY_EPISODES, STARTS, UNSEEN_STARTS, Sticky, play_episodes
from mario_rl.evaluation.results import Episode

STICKIES = (Sticky(0.1), Sticky(0.25), Sticky(0.25, by_frame=True))
Z_95 = 1.959964  # of a normal distribution, 95 % lie within so many standard deviations


class Trial(NamedTuple):
    """Episodes of one kind."""

    name: str
    episodes: list[Episode]

    @property
    def num_cleared(self) -> int:
        """Episodes that reached the flag."""
        return sum(episode.cleared for episode in self.episodes)

    @property
    def clear_rate(self) -> float:
        """Their share."""
        return self.num_cleared / len(self.episodes)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the true rate lies with a chance of 95 %."""
        return wilson_interval(self.num_cleared, len(self.episodes))


def try_thoroughly(
    network: QNetwork,
    play: PlayRules,
    level: Level,
    seed: int,
    sticky_episodes: int = NUM_STICKY_EPISODES,
    stickies: tuple[Sticky, ...] = STICKIES,
    on_trial: Callable[[Trial], None] = lambda _: None,
) -> list[Trial]:
    """All kinds of episodes: from the starts of training, from others, and with sticky actions."""
    trials = []

    def add(name: str, idle_frames: "np.ndarray[tuple[int], np.dtype[np.int32]]", sticky: Sticky, seed: int) -> None:
        rng = np.random.default_rng(seed)
        trials.append(Trial(name, play_episodes(network, play, level, idle_frames, sticky, rng)))
        on_trial(trials[-1])

    for starts in (STARTS, UNSEEN_STARTS):
        add(f"starts after {starts[0]}-{starts[-1]} idle frames", starts, NOT_STICKY, seed)
    for number, sticky in enumerate(stickies if sticky_episodes else ()):
        drawn = np.random.default_rng([seed, number]).choice(STARTS, size=sticky_episodes)
        add(str(sticky), drawn, sticky, seed + number)
    return trials


def wilson_interval(num_successes: int, count: int) -> tuple[float, float]:
    """Wilson's interval: unlike the plain one it does not claim certainty when all, or none, succeeded."""
    rate, square = num_successes / count, Z_95**2
    middle = (rate + square / (2 * count)) / (1 + square / count)
    reach = Z_95 / (1 + square / count) * math.sqrt(rate * (1 - rate) / count + square / (4 * count**2))
    return max(0.0, middle - reach), min(1.0, middle + reach)
