"""One game of 1-1 at a time, by the product's rules, as designs play it that know no batches of games."""

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.emulator import NO_RESTART, EmulatorName, make_emulator
from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ACTION_SETS
from mario_rl.evaluation.playing import NO_PROGRESS_DECISIONS
from mario_rl.experience import FRAME_SIZE, STACK_SIZE

FRAME_SKIP = 4
REWARD_SCALE = 1 / 15

Stack = npt.NDArray[np.uint8]  # [4, 84, 84]


class OneGame:
    """A game and the last four pictures of it."""

    def __init__(self, emulator: EmulatorName) -> None:
        self._emulator = make_emulator(emulator, [Level(1, 1)])
        self._buttons = np.array(ACTION_SETS["simple"], np.uint8)
        self.num_actions = len(self._buttons)
        self._restarts = np.zeros(1, np.int32)
        self._picture = np.zeros((1, 1, FRAME_SIZE, FRAME_SIZE), np.uint8)
        self._stack = np.zeros((STACK_SIZE, FRAME_SIZE, FRAME_SIZE), np.uint8)
        self._farthest = self._since_progress = 0

    def reset(self) -> Stack:
        """Begin an episode."""
        self._restarts[0] = 0
        self._emulator.step(self._buttons[:1], FRAME_SKIP, self._restarts, self._picture, 0)
        self._stack = np.repeat(self._picture[0], STACK_SIZE, axis=0)
        self._farthest = self._since_progress = 0
        return self._stack

    def step(self, action: int) -> tuple[Stack, float, bool, bool]:
        """Make a decision: the state after it, the scaled reward, terminated, truncated."""
        self._restarts[0] = NO_RESTART
        self._emulator.step(self._buttons[action : action + 1], FRAME_SKIP, self._restarts, self._picture, 0)
        outcomes = self._emulator.outcomes
        x = int(outcomes.x[0])
        self._since_progress = 0 if x > self._farthest else self._since_progress + 1
        self._farthest = max(self._farthest, x)
        self._stack = np.concatenate((self._stack[1:], self._picture[0]))
        truncated = self._since_progress >= NO_PROGRESS_DECISIONS
        return self._stack, float(outcomes.reward[0]) * REWARD_SCALE, bool(outcomes.done[0]), truncated

    def close(self) -> None:
        """Free the emulator."""
        self._emulator.close()
