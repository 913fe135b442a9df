"""Sprites: which of the 64 are on a line, what pixels they have there, where sprite 0 meets the background. Compiled.

At the end of each line the picture unit chooses up to eight sprites for the next, by their order in memory. We choose
when the line is drawn, unless the sprites change in between: then `hold_sprites` chooses from the old ones before.
nes-py keeps the choice made at the end of line 239 for line 0 of the next picture (the hardware shows no sprites
there), and takes their patterns from above their first row. Mario falling into a pit shows it.
"""

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.emulator import SCREEN_HEIGHT
from mario_rl.emulation.fast.canvas import Canvas
from mario_rl.emulation.fast.cartridge import Cartridge
from mario_rl.emulation.fast.console import Console
from mario_rl.emulation.fast.nametables import tile_to_the_right
from mario_rl.machine.compiling import compiled

NUM_SPRITES = 64
MAX_SPRITES_PER_LINE = 8
MIRRORED_X, MIRRORED_Y, BEHIND_BACKGROUND = 0x40, 0x80, 0x20


@compiled
def choose_sprites(console: Console, canvas: Canvas) -> None:
    """Choose up to eight sprites for each line: `line_sprites`, `num_line_sprites`."""
    sprites, counts = console.sprites, canvas.num_line_sprites
    counts[:] = 0
    for sprite in range(console.sprite_address >> 2, NUM_SPRITES):
        top = sprites[sprite * 4] + 1
        for below in range(top, min(top + 8, SCREEN_HEIGHT + 1)):
            line = below if below < SCREEN_HEIGHT else 0  # below the last line is the next picture's first
            count = counts[line]
            if count < MAX_SPRITES_PER_LINE:
                canvas.line_sprites[line, count] = sprite
                counts[line] = count + 1
    if console.held_line >= 0:
        canvas.line_sprites[console.held_line] = console.held_sprites
        counts[console.held_line] = console.num_held


@compiled
def _sprites_on(sprites: npt.NDArray[np.uint8], first: int, line: int, chosen: npt.NDArray[np.uint8]) -> int:
    count = 0
    for sprite in range(first, NUM_SPRITES):
        row = line - 1 - sprites[sprite * 4]
        if 0 <= row < 8:
            chosen[count] = sprite
            count += 1
            if count == MAX_SPRITES_PER_LINE:
                break
    return count


@compiled
def hold_sprites(console: Console, line: int) -> None:
    """Before sprites change: keep the choice that was made for this line already."""
    if console.held_line != line:
        console.num_held = _sprites_on(
            console.sprites, console.sprite_address >> 2, line if line > 0 else 240, console.held_sprites
        )
        console.held_line = line


@compiled
def sprite_row(console: Console, cartridge: Cartridge, sprite: int, line: int) -> int:
    """A sprite's eight pixels on a line: high bits in the upper byte, low bits in the lower; leftmost is bit 7."""
    first_line = (console.sprites[sprite * 4] + 1) & 0xFF
    attributes = console.sprites[sprite * 4 + 2]
    row = line - first_line
    row = row & 7 if row >= 0 else -(-row & 7)  # the remainder as C has it
    if attributes & MIRRORED_Y:
        row ^= 7
    address = console.sprite_page + console.sprites[sprite * 4 + 1] * 16 + row
    low = cartridge.patterns[address & 0x1FFF] if address >= 0 else 0
    high = cartridge.patterns[(address + 8) & 0x1FFF]
    if attributes & MIRRORED_X:
        low, high = cartridge.mirrored[low], cartridge.mirrored[high]
    return 256 * high + low


@compiled
def sprite_zero_x(console: Console, cartridge: Cartridge, line: int, first: int, last: int) -> int:
    """The first of the pixels [first, last) of a line where sprite 0 covers background, or -1."""
    left = console.sprites[3]
    if last <= left or first >= left + 8 or not _is_sprite_zero_on(console, line):
        return -1
    row = sprite_row(console, cartridge, 0, line)
    opaque = row | row >> 8
    for x in range(max(first, left), min(last, left + 8)):
        if opaque >> (7 - (x - left)) & 1 and _is_background_opaque(console, cartridge, x - first, first):
            return x
    return -1


@compiled
def _is_sprite_zero_on(console: Console, line: int) -> bool:
    if line == console.held_line:
        return console.num_held > 0 and console.held_sprites[0] == 0
    row = (line if line > 0 else 240) - 1 - console.sprites[0]
    return 0 <= row < 8 and console.sprite_address < 4


@compiled
def _is_background_opaque(console: Console, cartridge: Cartridge, distance: int, x: int) -> bool:
    """Whether the background has a colour of its own `distance` pixels right of the beam, which is at `x`."""
    pixel = ((console.fine_x + x) & 7) + distance
    address = tile_to_the_right(console.video_address, pixel >> 3)
    pattern = console.background_page + 16 * console.video_ram[address & 0x7FF] + (address >> 12 & 7)
    both = cartridge.patterns[pattern & 0x1FFF] | cartridge.patterns[(pattern + 8) & 0x1FFF]
    return both >> (7 - (pixel & 7)) & 1 != 0
