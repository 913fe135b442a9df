"""Wanders: random play from saved games, without pictures. Compiled; a call plays some wanders and holds no GIL."""

from typing import Any

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.fast.canvas import Canvas
from mario_rl.emulation.fast.cartridge import Cartridge
from mario_rl.emulation.fast.console import CONSOLE
from mario_rl.emulation.fast.emulator import cell, play_frames
from mario_rl.emulation.rules import FLAG_CELL, LEVEL_UNIT
from mario_rl.machine.compiling import compiled

_MIX_1, _MIX_2, _STEP = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x9E3779B97F4A7C15


@compiled
def _next(state: npt.NDArray[np.uint64]) -> Any:
    """The next of a series of random numbers (splitmix64)."""
    state[0] += np.uint64(_STEP)
    mixed = state[0]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(_MIX_1)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(_MIX_2)
    return mixed ^ (mixed >> np.uint64(31))


@compiled
def wander(
    consoles: npt.NDArray[np.void],  # [wanders] where each begins; changed
    cartridge: Cartridge,  # [1]
    canvas: Canvas,  # [1] this thread's own
    seeds: npt.NDArray[np.uint64],  # [wanders]
    num_decisions: npt.NDArray[np.int64],  # [wanders] at most
    max_hold: npt.NDArray[np.int64],  # [wanders] decisions for which an action is held, at most
    joypad: npt.NDArray[np.uint8],  # [actions] buttons
    bounds: npt.NDArray[np.float64],  # [actions] a number below the first draws the first action, ...
    frame_skip: int,
    buttons: npt.NDArray[np.uint8],  # [wanders, longest] what was played
    walks: npt.NDArray[np.int64],  # [wanders, 1 + longest] the cell where each began, and where decisions led to
    moments: npt.NDArray[np.void],  # [wanders, longest] the consoles then
    lengths: npt.NDArray[np.int64],  # [wanders] decisions until the end, without one that ended in death
    first: int,
    last: int,
) -> bool:
    """Play wanders [first, last); False when one of them did what is not emulated.

    A wander ends at the flag, before a death, and where it leaves its level.
    """
    before = np.empty(1, CONSOLE)
    state = np.empty(1, np.uint64)
    good = True
    for game in range(first, last):
        state[0] = seeds[game]
        walks[game, 0] = cell(consoles[game].ram)
        level = walks[game, 0] // LEVEL_UNIT
        held = remaining = 0
        lengths[game] = 0
        for decision in range(num_decisions[game]):
            if remaining == 0:
                draw = np.float64(_next(state) >> np.uint64(11)) / 2.0**53
                held = 0
                while draw >= bounds[held]:
                    held += 1
                remaining = 1 + int(_next(state) % np.uint64(max_hold[game]))
            remaining -= 1
            buttons[game, decision] = joypad[held]
            _, done, flag = play_frames(
                consoles, game, before, cartridge[0], canvas[0], 0, 0, joypad[held], frame_skip, False
            )
            good = good and not consoles[game].strayed
            here = cell(consoles[game].ram)
            if (done and not flag) or here // LEVEL_UNIT != level:
                break
            walks[game, decision + 1] = FLAG_CELL if flag else here
            moments[game, decision] = consoles[game]
            lengths[game] = decision + 1
            if flag:
                break
    return good
