"""Drawing: pixels of a line, eight at a time, from tiles and sprites to the screen. Compiled.

A tile has two bits a pixel, kept as a byte of low bits and one of high bits a row. `lanes` spreads such a byte over the
eight bytes of a machine word, and with a palette's four inks repeated in four words, a row of a tile is

    ink0 ^ (low & (ink0 ^ ink1)) ^ (high & (ink0 ^ ink2)) ^ (low & high & (ink0 ^ ink1 ^ ink2 ^ ink3))

An ink is what the screen shall hold for a colour: its grey level for training, the colour's own number for true colours.
"""

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.fast.cartridge import Cartridge
from mario_rl.emulation.fast.compiling import compiled
from mario_rl.emulation.fast.console import Console
from mario_rl.emulation.fast.sprites import BEHIND_BACKGROUND, choose_sprites, sprite_row

TILES_PER_LINE = 33  # 32, and one more when the picture begins inside a tile
_ALL_LANES = np.uint64(0x0101010101010101)


@compiled
def palette_words(console: Console, cartridge: Cartridge) -> npt.NDArray[np.uint64]:
    """The four words of the formula above for each of the background's four palettes."""  # [16]
    words = np.empty(16, np.uint64)
    inks, palette = cartridge.inks, console.palette
    ink0 = _ALL_LANES * np.uint64(inks[palette[0] & 0x3F])
    for number in range(4):
        ink1 = _ALL_LANES * np.uint64(inks[palette[number * 4 + 1] & 0x3F])
        ink2 = _ALL_LANES * np.uint64(inks[palette[number * 4 + 2] & 0x3F])
        ink3 = _ALL_LANES * np.uint64(inks[palette[number * 4 + 3] & 0x3F])
        words[number * 4] = ink0
        words[number * 4 + 1] = ink0 ^ ink1
        words[number * 4 + 2] = ink0 ^ ink2
        words[number * 4 + 3] = ink0 ^ ink1 ^ ink2 ^ ink3
    return words


@compiled
def draw_pixels(console: Console, cartridge: Cartridge, words: npt.NDArray[np.uint64], line: int, first: int, last: int) -> None:
    """Draw pixels [first, last) of a line; the beam is on the first."""
    screen = console.screen
    if not console.rendering:
        for x in range(first, last):
            screen[line, x] = cartridge.inks[console.palette[0] & 0x3F]
        return
    skipped = (console.fine_x + first) & 7  # pixels of the first tile that lie left of `first`
    num_tiles = (skipped + last - first + 7) >> 3
    colours = np.empty(TILES_PER_LINE, np.uint64)
    opaque = np.empty(TILES_PER_LINE, np.uint64)
    _draw_tiles(console, cartridge, words, num_tiles, colours, opaque)
    colour_bytes = colours.view(np.uint8)
    for x in range(first, last):
        screen[line, x] = colour_bytes[x - first + skipped]
    _draw_sprites(console, cartridge, line, first, last, colour_bytes[skipped:], opaque.view(np.uint8)[skipped:])


@compiled
def _draw_tiles(console, cartridge, words, num_tiles, colours, opaque) -> None:
    video_ram, patterns, lanes = console.video_ram, cartridge.patterns, cartridge.lanes
    address = console.video_address
    row = console.background_page | address >> 12 & 7
    for tile in range(num_tiles):
        attributes = video_ram[0x3C0 | address & 0x400 | address >> 4 & 0x38 | address >> 2 & 0x07]
        palette = attributes >> (address >> 4 & 4 | address & 2) & 3
        pattern = row + 16 * video_ram[address & 0x7FF]
        low = lanes[patterns[pattern & 0x1FFF]]
        high = lanes[patterns[(pattern + 8) & 0x1FFF]]
        colours[tile] = (
            words[palette * 4]
            ^ (low & words[palette * 4 + 1])
            ^ (high & words[palette * 4 + 2])
            ^ (low & high & words[palette * 4 + 3])
        )
        opaque[tile] = low | high
        address = next_tile(address)


@compiled
def next_tile(address: int) -> int:
    """The tile right of this one; the nametables lie side by side."""
    if address & 0x1F == 0x1F:
        return (address & ~0x1F) ^ 0x400
    return address + 1


@compiled
def _draw_sprites(console, cartridge, line, first, last, background, opaque) -> None:
    """Paint sprites over the line, the least important first."""
    chosen = np.empty(8, np.uint8)
    count = choose_sprites(console, line, chosen)
    screen = console.screen
    for k in range(count - 1, -1, -1):
        sprite = chosen[k]
        left = console.sprites[sprite * 4 + 3]
        attributes = console.sprites[sprite * 4 + 2]
        row = sprite_row(console, cartridge, sprite, line)
        for x in range(max(first, left), min(last, left + 8)):
            bit = 7 - (x - left)
            colour = row >> bit & 1 | (row >> (bit + 8) & 1) << 1
            if colour == 0:
                continue
            if attributes & BEHIND_BACKGROUND and opaque[x - first]:
                screen[line, x] = background[x - first]  # it still hides the sprites behind itself
            else:
                screen[line, x] = cartridge.inks[console.palette[0x10 | (attributes & 3) << 2 | colour] & 0x3F]
