"""Drawing: pixels of a line, eight at a time, from tiles and sprites to the screen. Compiled.

A tile has two bits a pixel, kept as a byte of low bits and one of high bits a row. `lanes` spreads such a byte over the
eight bytes of a machine word, and with a palette's four inks repeated in four words, a row of a tile is

    ink0 ^ (low & (ink0 ^ ink1)) ^ (high & (ink0 ^ ink2)) ^ (low & high & (ink0 ^ ink1 ^ ink2 ^ ink3))

An ink is what the screen shall hold for a colour: its grey level for training, or the colour's own number.
"""

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.fast.canvas import TILES_PER_LINE, Canvas
from mario_rl.emulation.fast.cartridge import Cartridge
from mario_rl.emulation.fast.console import Console
from mario_rl.emulation.fast.nametables import tile_to_the_right
from mario_rl.emulation.fast.sprites import BEHIND_BACKGROUND, choose_sprites, sprite_row
from mario_rl.machine.compiling import compiled

_ALL_LANES = np.uint64(0x0101010101010101)


@compiled
def prepare_drawing(console: Console, cartridge: Cartridge, canvas: Canvas) -> None:
    """Look up what stays the same from line to line: inks and sprites."""
    inks, palette, words = cartridge.inks, console.palette, canvas.palette_words
    ink0 = _ALL_LANES * np.uint64(inks[palette[0] & 0x3F])
    for first in range(0, 16, 4):
        ink1 = _ALL_LANES * np.uint64(inks[palette[first + 1] & 0x3F])
        ink2 = _ALL_LANES * np.uint64(inks[palette[first + 2] & 0x3F])
        ink3 = _ALL_LANES * np.uint64(inks[palette[first + 3] & 0x3F])
        words[first] = ink0
        words[first + 1] = ink0 ^ ink1
        words[first + 2] = ink0 ^ ink2
        words[first + 3] = ink0 ^ ink1 ^ ink2 ^ ink3
    canvas.fetched_row = -1
    choose_sprites(console, canvas)
    canvas.prepared = 1


@compiled
def draw_pixels(console: Console, cartridge: Cartridge, canvas: Canvas, line: int, first: int, last: int) -> None:
    """Draw pixels [first, last) of a line; the beam is on the first."""
    target = canvas.screen[line, first:last]
    if not console.rendering:
        target[:] = cartridge.inks[console.palette[0] & 0x3F]
        return
    if canvas.fetched_row != console.video_address & 0x0FFF:
        _draw_row_of_tiles(console, cartridge, canvas)
    skipped = (console.fine_x + first) & 7  # pixels of the first tile that lie left of `first`
    source = _line_of_tiles(console, canvas)[skipped : skipped + last - first]
    for x in range(last - first):
        target[x] = source[x]
    if canvas.num_line_sprites[line] > 0:
        _draw_sprites(console, cartridge, canvas, line, first, last, skipped)


@compiled
def _draw_row_of_tiles(console: Console, cartridge: Cartridge, canvas: Canvas) -> None:
    """Draw the tiles from the beam on, all eight lines of them."""
    video_ram, patterns, lanes, words = console.video_ram, cartridge.patterns, cartridge.lanes, canvas.palette_words
    address = console.video_address
    canvas.fetched_row = address & 0x0FFF
    for column in range(TILES_PER_LINE):
        attributes = video_ram[0x3C0 | address & 0x400 | address >> 4 & 0x38 | address >> 2 & 0x07]
        palette = (attributes >> (address >> 4 & 4 | address & 2) & 3) * 4
        ink0, ink01, ink02, ink0123 = words[palette], words[palette + 1], words[palette + 2], words[palette + 3]
        pattern = console.background_page + 16 * video_ram[address & 0x7FF]
        canvas.tile_patterns[column] = pattern
        for line in range(8):
            low = lanes[patterns[(pattern + line) & 0x1FFF]]
            high = lanes[patterns[(pattern + line + 8) & 0x1FFF]]
            canvas.row_pixels[line, column] = ink0 ^ (low & ink01) ^ (high & ink02) ^ (low & high & ink0123)
        address = tile_to_the_right(address, 1)


@compiled
def _line_of_tiles(console: Console, canvas: Canvas) -> npt.NDArray[np.uint8]:
    """The pixels of the row's line that the beam is on."""
    return canvas.row_pixels[console.video_address >> 12 & 7].view(np.uint8)


@compiled
def _draw_sprites(
    console: Console, cartridge: Cartridge, canvas: Canvas, line: int, first: int, last: int, skipped: int
) -> None:
    """Paint sprites over the line, the least important first."""
    screen = canvas.screen
    background = _line_of_tiles(console, canvas)
    for k in range(canvas.num_line_sprites[line] - 1, -1, -1):
        sprite = canvas.line_sprites[line, k]
        left = console.sprites[sprite * 4 + 3]
        attributes = console.sprites[sprite * 4 + 2]
        row = sprite_row(console, cartridge, sprite, line)
        for x in range(max(first, left), min(last, left + 8)):
            bit = 7 - (x - left)
            colour = row >> bit & 1 | (row >> (bit + 8) & 1) << 1
            if colour == 0:
                continue
            pixel = x - first + skipped
            if attributes & BEHIND_BACKGROUND and _is_opaque(console, cartridge, canvas, pixel):
                screen[line, x] = background[pixel]  # it still hides the sprites behind itself
            else:
                screen[line, x] = cartridge.inks[console.palette[0x10 | (attributes & 3) << 2 | colour] & 0x3F]


@compiled
def _is_opaque(console: Console, cartridge: Cartridge, canvas: Canvas, pixel: int) -> bool:
    """Whether the background shows a tile's own colour, not the backdrop, at a pixel of the row of tiles."""
    pattern = canvas.tile_patterns[pixel >> 3] + (console.video_address >> 12 & 7)
    both = cartridge.patterns[pattern & 0x1FFF] | cartridge.patterns[(pattern + 8) & 0x1FFF]
    return both >> (7 - (pixel & 7)) & 1 != 0
