"""The player of episodes: the one place where actions become frames, and frames become episodes.

Collecting, evaluation, films and the benchmarks that play episodes all do so through it. It plays some games together,
one tick at a time, as arrays with one entry a game. In a tick each game either makes a decision or begins an episode.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.emulator import NO_RESTART, make_emulator
from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ACTION_SETS
from mario_rl.environment.observation import show_buttons
from mario_rl.environment.task import PlayRules
from mario_rl.experience import FrameArray

# Which games begin an episode, the buttons that each holds, and where pictures are drawn: [games, ticks, 84, 84].
Placement = Callable[[npt.NDArray[np.bool_], npt.NDArray[np.uint8], FrameArray, int], None]


class Tick(NamedTuple):
    """What a tick did to each game. The arrays are overwritten by the next one."""

    raw_reward: npt.NDArray[np.float32]  # [games] as gym-super-mario-bros counts it; 0 where an episode begins
    terminated: npt.NDArray[np.bool_]  # [games] dead, or at the flag
    stuck: npt.NDArray[np.bool_]  # [games] without progress for too long
    reached_flag: npt.NDArray[np.bool_]  # [games]

    @property
    def over(self) -> npt.NDArray[np.bool_]:
        """Whose episode has ended, by the game or by us."""
        return self.terminated | self.stuck


class Player:
    """Some games, and how the present episode of each is going."""

    def __init__(self, rules: PlayRules, levels: Sequence[Level], place: Placement | None = None) -> None:
        """A game of each of these levels. `place` may move games that begin an episode to another beginning."""
        self._rules = rules
        self._place = place
        self.emulator = make_emulator(rules.emulator, levels)
        self._joypad = np.array(ACTION_SETS[rules.actions], np.uint8)
        num_games = len(levels)
        self.raw_rewards = np.zeros(num_games, np.float64)
        self.distances = np.zeros(num_games, np.int32)  # furthest x
        self.num_decisions = np.zeros(num_games, np.int32)
        self.progress_decisions = np.zeros(num_games, np.int32)  # how many there were when the distance last grew
        self.cleared = np.zeros(num_games, np.bool_)
        self.held = np.zeros(num_games, np.uint8)  # buttons of the last decision

    @property
    def at_start(self) -> npt.NDArray[np.bool_]:
        """Whether no decision was made yet in the present episode."""  # [games]
        starts: npt.NDArray[np.bool_] = self.num_decisions == 0
        return starts

    def draw(self, pictures: FrameArray, tick: int) -> None:
        """Draw every game as it is now."""  # [games, ticks, 84, 84]
        self.emulator.draw(pictures, tick)
        show_buttons(pictures[:, tick], self.held)

    def tick(
        self, actions: npt.NDArray[np.int64], idle_frames: npt.NDArray[np.int32], pictures: FrameArray, tick: int
    ) -> Tick:
        """Make a decision in each game, or begin an episode; and draw what comes after at `tick`.

        `idle_frames` is NO_RESTART where an action is played, and elsewhere the idle frames an episode begins with.
        """  # [games], [games], [games, ticks, 84, 84]
        begins = idle_frames != NO_RESTART
        self.held[:] = np.where(begins, 0, self._joypad[actions])
        self.emulator.step(self.held, self._rules.frame_skip, idle_frames, pictures, tick)
        outcomes = self.emulator.outcomes
        if begins.any():
            if self._place is not None:
                self._place(begins, self.held, pictures, tick)
            for figures in (self.raw_rewards, self.num_decisions, self.progress_decisions, self.cleared):
                figures[begins] = 0
            self.distances[begins] = outcomes.x[begins]
        show_buttons(pictures[:, tick], self.held)
        self.raw_rewards += outcomes.reward
        self.num_decisions[~begins] += 1
        grown = outcomes.x > self.distances
        self.distances[grown] = outcomes.x[grown]
        self.progress_decisions[grown] = self.num_decisions[grown]
        self.cleared |= outcomes.flag
        stuck = self.num_decisions - self.progress_decisions >= self._rules.no_progress_decisions
        return Tick(outcomes.reward, outcomes.done, stuck, outcomes.flag)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All figures of the present episodes by name, for a checkpoint of them."""
        return {
            "raw_rewards": self.raw_rewards,
            "distances": self.distances,
            "num_decisions": self.num_decisions,
            "progress_decisions": self.progress_decisions,
            "cleared": self.cleared,
            "held": self.held,
        }

    def close(self) -> None:
        """Free the emulator."""
        self.emulator.close()
