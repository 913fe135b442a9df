"""One game at a time, as designs play it that know no batches of games. The product's player plays it."""

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.emulator import NO_RESTART
from mario_rl.environment.actions import ACTION_SETS
from mario_rl.environment.player import Player, Tick
from mario_rl.environment.rewards import TrainingReward
from mario_rl.environment.task import PlayRules, TaskRules
from mario_rl.experience import FRAME_SIZE, STACK_SIZE

Stack = npt.NDArray[np.uint8]  # [4, 84, 84]


class OneGame:
    """A game of the task's first level, and the last four pictures of it. There is no practice here."""

    def __init__(self, play: PlayRules, rules: TaskRules, seed: int) -> None:
        self._player = Player(play, rules.levels_played[:1])
        self._reward = TrainingReward(rules)
        self._max_idle_frames = rules.noop_start_max_frames
        self._rng = np.random.default_rng(seed)
        self.num_actions = len(ACTION_SETS[play.actions])
        self._action = np.zeros(1, np.int64)
        self._idle_frames = np.zeros(1, np.int32)
        self._picture = np.zeros((1, 1, FRAME_SIZE, FRAME_SIZE), np.uint8)
        # One picture after the other: the product's stacks are interleaved for its own network, and would cost a design
        # that wants them otherwise twenty times as much.
        self._stack: Stack = np.zeros((STACK_SIZE, FRAME_SIZE, FRAME_SIZE), np.uint8)

    def reset(self) -> Stack:
        """Begin an episode."""
        self._tick(0, int(self._rng.integers(self._max_idle_frames + 1)))
        self._stack = np.repeat(self._picture[0], STACK_SIZE, axis=0)
        return self._stack

    def step(self, action: int) -> tuple[Stack, float, bool, bool]:
        """Make a decision: the state after it, the training reward, terminated, truncated."""
        tick = self._tick(action, NO_RESTART)
        self._stack = np.concatenate((self._stack[1:], self._picture[0]))
        reward = float(self._reward.of(self._player, tick)[0])
        return self._stack, reward, bool(tick.terminated[0]), bool(tick.stuck[0])

    def _tick(self, action: int, idle_frames: int) -> Tick:
        self._action[0], self._idle_frames[0] = action, idle_frames
        return self._player.tick(self._action, self._idle_frames, self._picture, 0)

    def close(self) -> None:
        """Free the emulator."""
        self._player.close()
