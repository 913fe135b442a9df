"""Episodes as the agent meets them: held actions, random starts, a cut without progress, the training reward.

training reward = raw reward x `reward_scale` + `flag_bonus` on the decision that reaches the flag.
"""

from typing import Any, NamedTuple

import numpy as np

from mario_rl.environment.actions import ACTION_SETS, NOOP, ActionSet
from mario_rl.environment.game import MarioGame
from mario_rl.experience import EpisodeSummary, FrameArray, Mark


class TaskRules(NamedTuple):
    """What makes the task; the same in every collector."""

    world: int
    stage: int
    actions: ActionSet
    frame_skip: int  # frames an action is held
    noop_start_max_frames: int  # an episode starts after 0 to this many idle frames
    no_progress_decisions: int  # cut the episode after so many decisions without a new furthest x
    reward_scale: float
    flag_bonus: float


class DecisionResult(NamedTuple):
    """What one decision left."""

    reward: float  # training reward
    marks: Mark  # TERMINATED, TRUNCATED or nothing


class Episodes:
    """One emulator's succession of episodes."""

    def __init__(self, rules: TaskRules, rng: np.random.Generator) -> None:
        self._rules = rules
        self._rng = rng
        self._buttons = ACTION_SETS[rules.actions]
        self._game = MarioGame(rules.world, rules.stage)
        self._noop_frames = 0
        self._actions_taken = bytearray()
        self._raw_reward = 0.0
        self._distance = 0
        self._last_progress = 0  # the decision at which the distance last grew
        self._cleared = False
        self.over = False
        self.begin()

    @property
    def at_start(self) -> bool:
        """Whether no decision was made yet in this episode."""
        return not self._actions_taken

    @property
    def summary(self) -> EpisodeSummary:
        """The episode so far."""
        return EpisodeSummary(self._raw_reward, self._distance, len(self._actions_taken), self._cleared)

    def begin(self) -> None:
        """Start the next episode, after a random number of idle frames."""
        self._begin_with(int(self._rng.integers(self._rules.noop_start_max_frames + 1)))

    def decide(self, action: int) -> DecisionResult:
        """Hold an action for `frame_skip` frames."""
        self._actions_taken.append(action)
        result = self._game.play(self._buttons[action], self._rules.frame_skip)
        self._raw_reward += result.reward
        x = self._game.x
        if x > self._distance:
            self._distance = x
            self._last_progress = len(self._actions_taken)
        reward = result.reward * self._rules.reward_scale
        self.over = True
        if result.done:
            self._cleared = result.flag
            return DecisionResult(reward + self._rules.flag_bonus * result.flag, Mark.TERMINATED)
        if len(self._actions_taken) - self._last_progress >= self._rules.no_progress_decisions:
            return DecisionResult(reward, Mark.TRUNCATED)
        self.over = False
        return DecisionResult(reward, Mark(0))

    def draw(self, frame: FrameArray) -> None:
        """Write the present picture into `frame`."""  # [84, 84] uint8
        self._game.draw(frame)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps. nes-py cannot save its state, so the actions of this episode are kept instead."""
        return {
            "noop_frames": self._noop_frames,
            "actions_taken": list(self._actions_taken),
            "rng": self._rng.bit_generator.state,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Return to a saved moment by playing the episode's actions again; the game is deterministic."""
        self._begin_with(state["noop_frames"])
        for action in state["actions_taken"]:
            self.decide(action)
        self._rng.bit_generator.state = state["rng"]

    def close(self) -> None:
        """Free the emulator."""
        self._game.close()

    def _begin_with(self, noop_frames: int) -> None:
        self._game.restart()
        self._game.play(NOOP, noop_frames)
        self._noop_frames = noop_frames
        self._actions_taken.clear()
        self._raw_reward = 0.0
        self._distance = self._game.x
        self._last_progress = 0
        self._cleared = False
        self.over = False
