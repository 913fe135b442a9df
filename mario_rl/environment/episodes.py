"""Episodes as the agent meets them: held actions, random starts, a cut without progress, the training reward.

training reward = raw reward x `reward_scale` + `flag_bonus` on the decision that reaches the flag.

All games of a collector go through here together, one tick at a time, as arrays with one entry a game. On the tick
after an episode's end the game is not played: its row is the FINAL picture, and it starts its next episode.
"""

import base64
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.emulator import NO_RESTART, EmulatorName, Outcomes, make_emulator
from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ACTION_SETS, ActionSet
from mario_rl.environment.observation import show_buttons
from mario_rl.environment.practice import Practice
from mario_rl.experience import FRAME_SIZE, FrameArray, Mark, Rows


class TaskRules(NamedTuple):
    """What makes the task; the same in every collector."""

    levels: tuple[Level, ...]  # every episode draws one
    actions: ActionSet
    emulator: EmulatorName
    frame_skip: int  # frames an action is held
    noop_start_max_frames: int  # an episode starts after 0 to this many idle frames
    no_progress_decisions: int  # cut the episode after so many decisions without a new furthest x
    reward_scale: float
    flag_bonus: float
    practice_share: float  # of the episodes; the others begin at the level's start


class Episodes:
    """Some games' succession of episodes."""

    def __init__(self, rules: TaskRules, num_games: int, rng: np.random.Generator) -> None:
        self._rules = rules
        self._rng = rng
        self._emulator = make_emulator(rules.emulator, rules.levels[:1] * num_games)
        self._joypad = np.array(ACTION_SETS[rules.actions], np.uint8)
        # Of each game's present episode.
        self._levels = np.zeros(num_games, np.int64)  # by their place in `rules.levels`
        self._raw_rewards = np.zeros(num_games, np.float64)
        self._distances = np.zeros(num_games, np.int32)
        self._num_decisions = np.zeros(num_games, np.int32)
        self._progress_decisions = np.zeros(num_games, np.int32)  # how many there were when the distance last grew
        self._cleared = np.zeros(num_games, np.bool_)
        self._held = np.zeros(num_games, np.uint8)  # buttons of the last decision
        self._practises = np.zeros(num_games, np.bool_)
        self._over = np.ones(num_games, np.bool_)
        self._practice: Practice | None = None
        if rules.practice_share > 0 and self._emulator.game_type is not None:
            self._practice = Practice(self._emulator, len(rules.levels), rules.practice_share, rng.spawn(1)[0])
        self._begin_all()

    @property
    def at_start(self) -> npt.NDArray[np.bool_]:
        """Whether no decision was made yet in the present episode."""  # [games]
        starts: npt.NDArray[np.bool_] = self._num_decisions == 0
        return starts

    def draw(self, pictures: FrameArray, tick: int) -> None:
        """Draw every game as it is now."""  # [games, ticks, 84, 84]
        self._emulator.draw(pictures, tick)
        show_buttons(pictures[:, tick], self._held)

    def play(self, actions: npt.NDArray[np.int64], rows: Rows, tick: int, pictures: FrameArray, next_tick: int) -> None:
        """Play one tick: fill the rows of `tick`, but for their pictures, and draw what comes after at `next_tick`."""
        over, rules = self._over.copy(), self._rules
        self._write_summaries(rows, tick, over)
        final = np.where(self._practises, Mark.FINAL | Mark.PRACTICE, Mark.FINAL)
        begins = np.where(over, final, np.where(self.at_start, Mark.START, 0))

        outcomes = self._step(actions, over, pictures, next_tick)
        self._raw_rewards += outcomes.reward
        self._num_decisions[~over] += 1
        grown = outcomes.x > self._distances
        self._distances[grown] = outcomes.x[grown]
        self._progress_decisions[grown] = self._num_decisions[grown]
        stuck = self._num_decisions - self._progress_decisions >= rules.no_progress_decisions
        self._cleared |= outcomes.flag
        self._over[:] = outcomes.done | stuck
        if self._practice is not None:
            self._practice.note_deaths(self._num_decisions, self._levels, outcomes.done & ~outcomes.flag)
            self._practice.follow(self._num_decisions, self._held, ~self._over)

        rows.action[:, tick] = np.where(over, 0, actions)
        rows.reward[:, tick] = outcomes.reward * rules.reward_scale + outcomes.flag * rules.flag_bonus
        ends = np.where(outcomes.done, Mark.TERMINATED, np.where(stuck, Mark.TRUNCATED, 0))
        rows.marks[:, tick] = begins | ends

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "format": self._format,
            "games": base64.b64encode(self._emulator.state()).decode(),
            "episodes": {name: array.tolist() for name, array in self._arrays().items()},
            "rng": self._rng.bit_generator.state,
            "practice": self._practice.state() if self._practice is not None else None,
        }

    def fits(self, state: Any) -> bool:
        """Whether `load_state` can continue from this state."""
        return isinstance(state, dict) and state.get("format") == self._format

    def load_state(self, state: dict[str, Any]) -> None:
        """Return to a saved moment."""
        self._emulator.load_state(base64.b64decode(state["games"]))
        for name, array in self._arrays().items():
            array[:] = state["episodes"][name]
        self._rng.bit_generator.state = state["rng"]
        if self._practice is not None:
            self._practice.load_state(state["practice"])

    @property
    def _format(self) -> str:
        practice = "practice" if self._practice is not None else "no practice"
        levels = " ".join(map(str, self._rules.levels))
        return f"{self._emulator.state_format}, {len(self._over)} games of {levels}, {practice}"

    def close(self) -> None:
        """Free the emulator."""
        self._emulator.close()

    def _step(
        self, actions: npt.NDArray[np.int64], restart: npt.NDArray[np.bool_], pictures: FrameArray, tick: int
    ) -> Outcomes:
        """Play, or restart where asked to; a new episode's figures are those of its first picture."""
        idle_frames = self._rng.integers(self._rules.noop_start_max_frames + 1, size=len(restart), dtype=np.int32)
        restarts = np.where(restart, idle_frames, np.int32(NO_RESTART))
        self._held[:] = np.where(restart, 0, self._joypad[actions])
        self._draw_levels(restart)
        self._emulator.step(self._held, self._rules.frame_skip, restarts, pictures, tick)
        if self._practice is not None and restart.any():
            self._practises[restart] = self._practice.begin(restart, self._levels, self._held, pictures, tick)[restart]
        show_buttons(pictures[:, tick], self._held)
        outcomes = self._emulator.outcomes
        self._raw_rewards[restart] = 0
        self._num_decisions[restart] = 0
        self._progress_decisions[restart] = 0
        self._distances[restart] = outcomes.x[restart]
        self._cleared[restart] = False
        return outcomes

    def _draw_levels(self, restart: npt.NDArray[np.bool_]) -> None:
        if len(self._rules.levels) > 1:
            for game in np.flatnonzero(restart):
                self._levels[game] = self._rng.integers(len(self._rules.levels))
                self._emulator.set_level(int(game), self._rules.levels[self._levels[game]])

    def _begin_all(self) -> None:
        num_games = len(self._over)
        pictures = np.empty((num_games, 1, FRAME_SIZE, FRAME_SIZE), np.uint8)
        self._step(np.zeros(num_games, np.int64), self._over, pictures, 0)
        self._over[:] = False

    def _write_summaries(self, rows: Rows, tick: int, over: npt.NDArray[np.bool_]) -> None:
        rows.episode_reward[:, tick] = np.where(over, self._raw_rewards, 0)
        rows.episode_distance[:, tick] = np.where(over, self._distances, 0)
        rows.episode_decisions[:, tick] = np.where(over, self._num_decisions, 0)
        rows.episode_cleared[:, tick] = over & self._cleared

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {
            "levels": self._levels,
            "raw_rewards": self._raw_rewards,
            "distances": self._distances,
            "num_decisions": self._num_decisions,
            "progress_decisions": self._progress_decisions,
            "cleared": self._cleared,
            "held": self._held,
            "practises": self._practises,
            "over": self._over,
        }
