"""Nametables: the two screens of 32 x 30 tiles that lie side by side, and are repeated below. Compiled.

A place in them is an address `yyy NN YYYYY XXXXX`: pixel row inside the tile, nametable, row and column of tiles.
"""

from mario_rl.machine.compiling import compiled


@compiled
def tile_to_the_right(address: int, num_tiles: int) -> int:
    """`num_tiles` further right, at most 32: behind the last column begins the other nametable."""
    column = (address & 0x1F) + num_tiles
    address = address & ~0x1F | column & 0x1F
    return address ^ 0x400 if column & 0x20 else address


@compiled
def nametable_index(address: int) -> int:
    """Where in `video_ram` an address from 0x2000 on lies; nes-py repeats the second nametable from 0x3000 on."""
    if address >= 0x3000:
        return 0x400 | address & 0x3FF
    return address & 0x7FF
