"""The player of episodes: the one place where actions become frames, and frames become episodes.

Collecting, evaluation, films and the benchmarks that play episodes all do so through it. It plays some games together,
one tick at a time, as arrays with one entry a game. In a tick each game either makes a decision or begins an episode.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.emulator import NO_RESTART, make_emulator
from mario_rl.emulation.rules import AREA_UNIT, LEVEL_UNIT, Level
from mario_rl.environment.actions import ACTION_SETS
from mario_rl.environment.observation import show_buttons
from mario_rl.environment.task import PlayRules
from mario_rl.experience import NO_CELL, FrameArray
from mario_rl.mapping.graph import FAR
from mario_rl.mapping.level_map import UNKNOWN, LevelMap

# Which games begin an episode, the buttons that each holds, and where pictures are drawn: [games, ticks, 84, 84].
Placement = Callable[[npt.NDArray[np.bool_], npt.NDArray[np.uint8], FrameArray, int], None]


class Tick(NamedTuple):
    """What a tick did to each game. The arrays are overwritten by the next one."""

    raw_reward: npt.NDArray[np.float32]  # [games] as gym-super-mario-bros counts it; 0 where an episode begins
    terminated: npt.NDArray[np.bool_]  # [games] dead, at the flag, or out of the level
    stuck: npt.NDArray[np.bool_]  # [games] without progress for too long
    reached_flag: npt.NDArray[np.bool_]  # [games]
    gained: npt.NDArray[np.int32]  # [games] cells nearer to the flag by the map; 0 without one

    @property
    def over(self) -> npt.NDArray[np.bool_]:
        """Whose episode has ended, by the game or by us."""
        return self.terminated | self.stuck


class Player:
    """Some games, and how the present episode of each is going."""

    def __init__(
        self,
        rules: PlayRules,
        levels: Sequence[Level],
        place: Placement | None = None,
        level_map: LevelMap | None = None,
    ) -> None:
        """A game of each of these levels. `place` may move games that begin an episode to another beginning."""
        self._rules = rules
        self._place = place
        self._map = level_map
        self.emulator = make_emulator(rules.emulator, levels)
        self._joypad = np.array(ACTION_SETS[rules.actions], np.uint8)
        num_games = len(levels)
        self.raw_rewards = np.zeros(num_games, np.float64)
        self.distances = np.zeros(num_games, np.int32)  # furthest x
        self.num_decisions = np.zeros(num_games, np.int32)
        self.progress_decisions = np.zeros(num_games, np.int32)  # how many there were when Mario last got further ...
        self.furthest = np.zeros(num_games, np.int32)  # ... in the present area, as x ...
        self.nearest = np.zeros(num_games, np.int32)  # ... or to the flag by the map
        self.cells = np.zeros(num_games, np.int64)  # where Mario is; at the flag, where he was before
        self.known_cells = np.zeros(num_games, np.int64)  # the last one on the map
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
        self,
        actions: npt.NDArray[np.int64],
        idle_frames: npt.NDArray[np.int32],
        pictures: FrameArray,
        tick: int,
        delays: npt.NDArray[np.int32] | None = None,
    ) -> Tick:
        """Make a decision in each game, or begin an episode; and draw what comes after at `tick`.

        `idle_frames` is NO_RESTART where an action is played, and elsewhere the idle frames an episode begins with.
        `delays` tells for how many frames of the decision the buttons before are still held.
        """  # [games], [games], [games, ticks, 84, 84]
        begins = idle_frames != NO_RESTART
        buttons = self._joypad[actions]
        if delays is not None:
            buttons = np.where(delays < self._rules.frame_skip, buttons, self.held)
        self.held[:] = np.where(begins, 0, buttons)
        self.emulator.step(self.held, self._rules.frame_skip, idle_frames, pictures, tick, delays)
        outcomes = self.emulator.outcomes
        if begins.any():
            if self._place is not None:
                self._place(begins, self.held, pictures, tick)
            for figures in (self.raw_rewards, self.num_decisions, self.progress_decisions, self.cleared):
                figures[begins] = 0
            self.distances[begins] = self.furthest[begins] = outcomes.x[begins]
            self.nearest[begins] = FAR
            self.cells[begins] = outcomes.cell[begins]
            self.known_cells[begins] = NO_CELL
        show_buttons(pictures[:, tick], self.held)
        self.raw_rewards += outcomes.reward
        self.num_decisions[~begins] += 1
        np.maximum(self.distances, outcomes.x, out=self.distances)
        self.cleared |= outcomes.flag
        cells = np.where(outcomes.flag, self.cells, outcomes.cell)
        has_left = cells // LEVEL_UNIT != self.cells // LEVEL_UNIT  # through a warp zone: what follows does not count
        further = self._note_area_progress(cells, outcomes.x)
        gained = np.zeros(len(cells), np.int32)
        if self._map is not None:
            gained, further = self._note_map_progress(self._map, outcomes.cell, further)
        self.progress_decisions[further] = self.num_decisions[further]
        self.cells[:] = cells
        stuck = self.num_decisions - self.progress_decisions >= self._rules.no_progress_decisions
        return Tick(outcomes.reward, outcomes.done | has_left, stuck, outcomes.flag, gained)

    def _note_area_progress(self, cells: npt.NDArray[np.int64], x: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Where Mario got further to the right than ever in his present area, or into another one."""
        further: npt.NDArray[np.bool_] = (cells // AREA_UNIT != self.cells // AREA_UNIT) | (x > self.furthest)
        self.furthest[further] = x[further]
        return further

    def _note_map_progress(
        self, level_map: LevelMap, cells: npt.NDArray[np.int64], further: npt.NDArray[np.bool_]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_]]:
        """By how many cells Mario came nearer to the flag, and where he came nearer than ever.

        A cell that is not on the map changes nothing. Until one is on it, `further` holds.
        """
        # Both by the map of this moment, which may be newer than that of the last tick.
        before, now = np.split(level_map.distances(np.concatenate([self.known_cells, cells])), 2)
        is_known, was_known = now != UNKNOWN, before != UNKNOWN
        gained = np.where(is_known & was_known, before - now, 0)
        self.known_cells[is_known] = cells[is_known]
        nearer = is_known & (now < self.nearest)
        self.nearest[nearer] = now[nearer]
        return gained, np.where(is_known | was_known, nearer, further)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All figures of the present episodes by name, for a checkpoint of them."""
        return {
            "raw_rewards": self.raw_rewards,
            "distances": self.distances,
            "num_decisions": self.num_decisions,
            "progress_decisions": self.progress_decisions,
            "furthest": self.furthest,
            "nearest": self.nearest,
            "cells": self.cells,
            "known_cells": self.known_cells,
            "cleared": self.cleared,
            "held": self.held,
        }

    def close(self) -> None:
        """Free the emulator."""
        self.emulator.close()
