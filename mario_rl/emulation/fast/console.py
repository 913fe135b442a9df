"""A console's whole state as one record, so that saving a game is copying a row, and 16 games are 16 rows.

Compiled code reads and writes the fields directly: `console.a`, `console.ram[address]`. Registers are 64 bits wide
because numba mixes types badly (uint64 + int64 becomes a float); the code keeps them within their real widths.
"""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

# A row of CONSOLE. To numba it is a typed record; mypy cannot see its fields.
Console: TypeAlias = Any

_BYTE, _WORD = np.uint8, np.int64
CONSOLE = np.dtype(
    [
        ("ram", _BYTE, 0x800),
        # The processor, between two instructions.
        ("pc", _WORD),
        ("a", _WORD),
        ("x", _WORD),
        ("y", _WORD),
        ("sp", _WORD),
        ("result", _WORD),  # what flags N and Z are worked out from, see processor.py
        ("carry", _WORD),
        ("overflow", _WORD),
        ("others", _WORD),
        ("cycle", _WORD),  # when the next instruction begins, in processor cycles since power-on
        ("frame_end", _WORD),  # the cycle at which the frame in hand ends
        # The picture unit (PPU). `beam.py` explains the beam.
        ("dot", _WORD),  # the next dot to be drawn, since power-on; three dots a cycle
        ("picture_start", _WORD),  # the dot at which the picture in hand began
        ("odd_picture", _WORD),
        ("vblank", _WORD),  # the beam is on its way back; reading it clears it
        ("sprite_zero_hit", _WORD),
        ("interrupts", _WORD),  # whether the beam's way back interrupts the processor
        ("rendering", _WORD),  # background and sprites are shown
        ("background_page", _WORD),  # 0x0000 or 0x1000: where the background's patterns are
        ("sprite_page", _WORD),
        ("address_step", _WORD),  # 1 or 32: how far `video_address` moves after an access
        ("video_address", _WORD),  # the next byte for the processor; while drawing, the tile under the beam
        ("scroll_address", _WORD),  # where drawing starts: nametable, coarse and fine y, coarse x
        ("fine_x", _WORD),
        ("second_write", _WORD),  # scroll and address registers take two bytes in turn
        ("read_buffer", _WORD),
        ("sprite_address", _WORD),
        ("held_line", _WORD),  # the line for which `held_sprites` was chosen before sprites changed; -1: none
        ("num_held", _WORD),
        # The joypad.
        ("buttons", _WORD),
        ("strobe", _WORD),
        ("joypad_bits", _WORD),
        # Memories.
        ("video_ram", _BYTE, 0x800),  # two nametables
        ("palette", _BYTE, 0x20),
        ("sprites", _BYTE, 0x100),  # 64 x (y - 1, tile, attributes, x)
        ("held_sprites", _BYTE, 8),
        # Of this emulator, not of the console.
        ("strayed", _WORD),  # the program did what is not emulated: an unknown opcode, 8 x 16 sprites, ...
        ("last_x", _WORD),  # of the game rules: Mario's x and the clock after the last frame that counted
        ("last_time", _WORD),
    ],
    align=True,
)

RESET_STATUS = 0b0011_0100  # nes-py's, in its bit order


def power_on(consoles: npt.NDArray[np.void], reset_vector: int) -> None:
    """Consoles as nes-py's at power-on: memories all zero, rendering on."""
    consoles[...] = np.zeros((), CONSOLE)
    consoles["pc"] = reset_vector
    consoles["sp"] = 0xFD
    consoles["result"] = 1
    consoles["others"] = RESET_STATUS
    consoles["picture_start"] = 1  # nes-py's very first line is one dot longer than the others
    consoles["rendering"] = 1
    consoles["address_step"] = 1
    consoles["strobe"] = 1
    consoles["held_line"] = 0  # no sprites were chosen for the first line
