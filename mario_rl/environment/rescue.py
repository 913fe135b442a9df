"""Rescue: random continuations from before a death, until one gets past it; the practice episode then follows that one.

A network learns from what it did, and where one action in a hundred survives it rarely does that one. The emulator
plays a few hundred continuations in the time in which the learner trains on one episode. Needs a map, which tells what
"past" means. Collector process; in serial mode the learner's.
"""

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.fast.canvas import CANVAS
from mario_rl.emulation.fast.console import CONSOLE
from mario_rl.emulation.fast.emulator import STRAYED, FastConsole
from mario_rl.environment.actions import ACTION_SETS, action_bounds
from mario_rl.environment.task import PlayRules
from mario_rl.environment.wandering import wander
from mario_rl.mapping.level_map import UNKNOWN, LevelMap

ATTEMPTS_AT_ONCE = 16
MOST_ATTEMPTS = 128
LONGEST = 64  # decisions of a continuation: the longest lead before a death, and some more
SURVIVAL = 16  # decisions that it must live on after it has got past the death: a fall takes some ten
MAX_HOLDS = (2, 8)
RIGHT_PROBABILITY = 0.7


class Rescue:
    """Looks for continuations by a map that others keep up to date."""

    def __init__(self, play: PlayRules, level_map: LevelMap, rng: np.random.Generator) -> None:
        self._frame_skip = play.frame_skip
        self._map = level_map
        self._rng = rng
        self._joypad = np.array(ACTION_SETS[play.actions], np.uint8)
        self._bounds = action_bounds(play.actions, RIGHT_PROBABILITY)
        self._cartridge = FastConsole().cartridge
        self._canvas = np.zeros(1, CANVAS)
        # What attempts are played in; 5 MB that need not be found again each time.
        self._consoles = np.empty(ATTEMPTS_AT_ONCE, CONSOLE)
        self._moments = np.empty((ATTEMPTS_AT_ONCE, LONGEST), CONSOLE)
        self._buttons = np.zeros((ATTEMPTS_AT_ONCE, LONGEST), np.uint8)
        self._walks = np.zeros((ATTEMPTS_AT_ONCE, 1 + LONGEST), np.int64)
        self._lengths = np.zeros(ATTEMPTS_AT_ONCE, np.int64)

    def find(self, console: np.void, cell: np.int64) -> npt.NDArray[np.int64] | None:
        """Actions that lead from this console past this cell, where Mario died; None where none were found."""
        (limit,) = self._map.distances(np.array([cell], np.int64))
        if limit == UNKNOWN:
            return None
        for _ in range(MOST_ATTEMPTS // ATTEMPTS_AT_ONCE):
            buttons, walks, lengths = self._play_on(console)
            distances = self._map.distances(walks.reshape(-1)).reshape(walks.shape)
            steps = np.arange(walks.shape[1])
            is_past = (distances != UNKNOWN) & (distances < limit)
            # At the flag nothing needs to be survived.
            is_past &= (distances == 0) | (steps + SURVIVAL <= lengths[:, None])
            is_past &= steps <= lengths[:, None]
            found = np.flatnonzero(is_past.any(axis=1))
            if len(found):
                attempt = found[0]
                length = min(int(is_past[attempt].argmax()) + SURVIVAL, int(lengths[attempt]))
                held = buttons[attempt, :length]
                actions: npt.NDArray[np.int64] = (held[:, None] == self._joypad).argmax(axis=1)
                return actions
        return None

    def _play_on(self, console: np.void) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Buttons, cells and lengths of some continuations; the next call overwrites them.

        Behind a continuation's length lies what was left of earlier ones.
        """
        count, rng = ATTEMPTS_AT_ONCE, self._rng
        self._consoles[:] = console
        buttons, walks, lengths = self._buttons, self._walks, self._lengths
        seeds = rng.integers(2**63, size=count, dtype=np.uint64)
        num_decisions = np.full(count, LONGEST)
        chances = (seeds, num_decisions, rng.choice(MAX_HOLDS, size=count), self._joypad, self._bounds)
        results = (buttons, walks, self._moments, lengths)
        if not wander(self._consoles, self._cartridge, self._canvas, *chances, self._frame_skip, *results, 0, count):
            raise RuntimeError(STRAYED)
        return buttons, walks, lengths
