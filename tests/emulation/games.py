"""Tests of the emulators: the buttons they are driven with, and games that take plain numbers."""

import numpy as np

from mario_rl.emulation.emulator import NO_RESTART, make_emulator
from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import DOWN, LEFT, RIGHT, A, B
from mario_rl.experience import FRAME_SIZE

# Decisions of four frames that clear 1-1: how many to run, to jump, to run, ... always to the right.
_LENGTHS = (
    "2 3 4 3 7 9 7 8 3 3 7 2 6 4 2 1 2 6 1 7 8 8 8 5 4 6 7 17 3 8 6 4 5 3 1 2 7 2 7 2 4 8 2 4 8 3 5 5 2 4 1 9 1 2 7 2 "
    "4 5 4 3 2 7 4 3 2 4 4 4 4 2"
)
RUN_AND_JUMP = tuple(int(length) for length in _LENGTHS.split())
WINNING_BUTTONS = tuple(
    RIGHT | B | (A if turn % 2 else 0) for turn, length in enumerate(RUN_AND_JUMP) for _ in range(4 * length)
)


def random_buttons(num_frames, seed):
    """Buttons that are held for ten frames each, mostly to the right."""
    rng = np.random.default_rng(seed)
    choices = [RIGHT, RIGHT | A, RIGHT | B, RIGHT | A | B, RIGHT | A | B, A, LEFT, DOWN, 0]
    return tuple(np.repeat(rng.choice(choices, size=num_frames // 10 + 1), 10)[:num_frames].tolist())


class Games:
    """A batch of games and its newest pictures."""

    def __init__(self, emulator_name, level=(1, 1), num_games=1, num_threads=1):
        self.emulator = make_emulator(emulator_name, [Level(*level)] * num_games, num_threads)
        self.outcomes = self.emulator.outcomes
        self._newest = np.zeros((num_games, 1, FRAME_SIZE, FRAME_SIZE), np.uint8)
        self.pictures = self._newest[:, 0]
        self.emulator.draw(self._newest, 0)

    def play(self, *buttons, num_frames=1, delays=None):
        """Hold these buttons, one entry a game."""
        self.step(buttons, [NO_RESTART] * len(buttons), num_frames, delays)

    def restart(self, *idle_frames):
        """Restart every game, one entry a game."""
        self.step([0] * len(idle_frames), idle_frames, num_frames=1)

    def step(self, buttons, restarts, num_frames, delays=None):
        """Play some and restart others."""
        late = None if delays is None else np.array(delays, np.int32)
        self.emulator.step(np.array(buttons, np.uint8), num_frames, np.array(restarts, np.int32), self._newest, 0, late)

    def draw(self):
        """Draw as if it had not been done."""
        self._newest.fill(0)
        self.emulator.draw(self._newest, 0)

    def ram(self, game=0):
        """A copy of a game's memory."""
        return self.emulator.ram(game).tobytes()

    def outcome(self, game=0):
        """(reward, done, flag, x) of the last step."""
        reward, x, done, flag, _ = (column[game].item() for column in self.outcomes)
        return reward, done, flag, x
