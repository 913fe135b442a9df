"""Episodes as a collector leaves them: one after the other, from random starts or from practice, row by row.

On the tick after an episode's end the game is not played: its row is the FINAL picture, and it starts its next episode.
"""

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.emulator import NO_RESTART
from mario_rl.environment.observation import OBSERVATION
from mario_rl.environment.player import Player
from mario_rl.environment.practice import Practice
from mario_rl.environment.rewards import TrainingReward
from mario_rl.environment.task import PlayRules, TaskRules
from mario_rl.experience import FRAME_SIZE, NO_CELL, FrameArray, Mark, Rows
from mario_rl.mapping.level_map import LevelMap
from mario_rl.saved_part import check_like


class Episodes:
    """Some games' succession of episodes."""

    def __init__(self, play: PlayRules, rules: TaskRules, num_games: int, rng: np.random.Generator) -> None:
        """`num_games` games that begin episodes of the task's levels."""
        self._rules = rules
        self._rng = rng
        self._level_choices = rules.levels_played
        self.level_map = LevelMap(len(self._level_choices)) if rules.progress == "map" else None
        self._player = Player(play, self._level_choices[:1] * num_games, self._place, self.level_map)
        self._reward = TrainingReward(rules)
        self._levels = np.zeros(num_games, np.int64)  # of each game's present episode, by its place in the choices
        self._practises = np.zeros(num_games, np.bool_)
        self._over = np.ones(num_games, np.bool_)
        self._cells = np.full(num_games, NO_CELL, np.int64)  # of the present pictures
        self._practice: Practice | None = None
        emulator = self._player.emulator
        if rules.practice_share > 0 and emulator.game_type is not None:
            self._practice = self._make_practice(play, rng.spawn(1)[0])
        pictures = np.empty((num_games, 1, FRAME_SIZE, FRAME_SIZE), np.uint8)
        self._player.tick(np.zeros(num_games, np.int64), self._draw_starts(self._over), pictures, 0)
        self._over[:] = False
        self._cells[:] = emulator.outcomes.cell

    def _make_practice(self, play: PlayRules, rng: np.random.Generator) -> Practice:
        rules, rescue = self._rules, None
        if rules.rescue_share > 0 and self.level_map is not None:
            from mario_rl.environment.rescue import Rescue  # compiled code is loaded

            rescue = Rescue(play, self.level_map, rng)  # one generator, which is saved with practice
        emulator, num_levels = self._player.emulator, len(self._level_choices)
        return Practice(emulator, num_levels, rules.practice_share, rng, rescue, rules.rescue_share)

    @property
    def at_start(self) -> npt.NDArray[np.bool_]:
        """Whether no decision was made yet in the present episode."""  # [games]
        return self._player.at_start

    def draw(self, pictures: FrameArray, tick: int) -> None:
        """Draw every game as it is now."""  # [games, ticks, 84, 84]
        self._player.draw(pictures, tick)

    def play(self, actions: npt.NDArray[np.int64], rows: Rows, tick: int, pictures: FrameArray, next_tick: int) -> None:
        """Play one tick: fill the rows of `tick`, but for their pictures, and draw what comes after at `next_tick`."""
        over, player = self._over.copy(), self._player
        if self._practice is not None:
            actions = self._practice.lead(actions, ~over)
        self._write_summaries(rows, tick, over)
        final = np.where(self._practises, Mark.FINAL | Mark.PRACTICE, Mark.FINAL)
        # What came before practice is missing, so its lead holds no whole stack and is not learned from.
        first = np.where(self._practises, Mark.BREAK, Mark.START)
        begins = np.where(over, final, np.where(self.at_start, first, 0))

        result = player.tick(actions, self._draw_starts(over), pictures, next_tick)
        rows.cell[:, tick] = self._cells
        died = result.terminated & ~result.reached_flag
        self._cells[:] = np.where(died, NO_CELL, player.emulator.outcomes.cell)
        self._over[:] = result.over
        if self._practice is not None:
            x = player.emulator.outcomes.x
            self._practice.note_deaths(player.num_decisions, self._levels, died, x, player.known_cells)
            self._practice.follow(player.num_decisions, actions, player.held, ~self._over)

        rows.action[:, tick] = np.where(over, 0, actions)
        rows.reward[:, tick] = self._reward.of(player, result)
        ends = np.where(result.terminated, Mark.TERMINATED, np.where(result.stuck, Mark.TRUNCATED, 0))
        rows.marks[:, tick] = begins | ends

    def _draw_starts(self, begins: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
        """Level and idle frames of the games that begin an episode. The generator advances equally in every tick."""
        idle_frames = self._rng.integers(self._rules.noop_start_max_frames + 1, size=len(begins), dtype=np.int32)
        if len(self._level_choices) > 1:
            for game in np.flatnonzero(begins):
                self._levels[game] = self._rng.integers(len(self._level_choices))
                self._player.emulator.set_level(int(game), self._level_choices[self._levels[game]])
        return np.where(begins, idle_frames, np.int32(NO_RESTART))

    def _place(
        self, begins: npt.NDArray[np.bool_], held: npt.NDArray[np.uint8], pictures: FrameArray, tick: int
    ) -> None:
        if self._practice is not None:
            self._practises[begins] = self._practice.begin(begins, self._levels, held, pictures, tick)[begins]

    def _write_summaries(self, rows: Rows, tick: int, over: npt.NDArray[np.bool_]) -> None:
        rows.episode_reward[:, tick] = np.where(over, self._player.raw_rewards, 0)
        rows.episode_distance[:, tick] = np.where(over, self._player.distances, 0)
        rows.episode_decisions[:, tick] = np.where(over, self._player.num_decisions, 0)
        rows.episode_cleared[:, tick] = over & self._player.cleared

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "format": self._format,
            "games": base64.b64encode(self._player.emulator.state()).decode(),
            "episodes": {name: array.tolist() for name, array in self._arrays().items()},
            "rng": self._rng.bit_generator.state,
            "practice": self._practice.state() if self._practice is not None else None,
        }

    def fits(self, state: Any) -> bool:
        """Whether `load` can continue from this state: the same emulator and levels with as many games."""
        return isinstance(state, dict) and state.get("format") == self._format

    def check(self, state: Any) -> None:
        """ValueError where a state that fits is none of ours."""
        check_like(state, self.state(), "source.episodes")

    def load(self, state: dict[str, Any]) -> None:
        """Return to a saved moment."""
        self._player.emulator.load_state(base64.b64decode(state["games"]))
        for name, array in self._arrays().items():
            array[:] = state["episodes"][name]
        self._rng.bit_generator.state = state["rng"]
        if self._practice is not None:
            self._practice.load(state["practice"])

    @property
    def _format(self) -> str:
        practice = "practice by places with a lead or rescue" if self._practice is not None else "no practice"
        levels = " ".join(map(str, self._level_choices))
        games = f"{len(self._over)} games of {levels}"
        return f"{self._player.emulator.state_format}, {games}, {OBSERVATION}, cells, {practice}"

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        own = {"levels": self._levels, "practises": self._practises, "over": self._over, "row_cells": self._cells}
        return own | self._player.arrays()

    def close(self) -> None:
        """Free the emulator."""
        self._player.close()
