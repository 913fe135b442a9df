"""The game's ROM, prepared for the compiled code: one read-only record that every console shares."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.fast.instructions import STEP, decode
from mario_rl.emulation.rom import Rom

# A record of CARTRIDGE. To numba it is a typed record; mypy cannot see its fields.
Cartridge: TypeAlias = Any

CARTRIDGE = np.dtype(
    [
        ("steps", STEP, 0x10000),  # the decoded program
        ("program", np.uint8, 0x8000),  # the same as bytes: tables and constants are read from it
        ("patterns", np.uint8, 0x2000),  # 512 tiles of 8 x 8 pixels: 8 bytes of low bits, 8 of high bits
        ("lanes", np.uint64, 0x100),  # a byte's 8 bits spread over 8 bytes of 0x00 or 0xFF, leftmost pixel first
        ("mirrored", np.uint8, 0x100),  # a byte's bits in the opposite order
        ("inks", np.uint8, 0x40),  # what is written to the screen for each of the console's 64 colours
    ],
    align=True,
)


def insert_cartridge(rom: Rom, inks: npt.NDArray[np.uint8]) -> Cartridge:
    """Prepare a ROM; pixels will be drawn with these inks."""  # [1] CARTRIDGE
    cartridge = np.zeros(1, CARTRIDGE)
    cartridge["steps"][0] = decode(rom.program)
    cartridge["program"][0] = np.frombuffer(rom.program, np.uint8)
    cartridge["patterns"][0] = np.frombuffer(rom.patterns, np.uint8)
    bits = (np.arange(0x100)[:, None] >> np.arange(7, -1, -1)) & 1  # leftmost first
    cartridge["lanes"][0] = (bits * 0xFF).astype(np.uint8).view("<u8")[:, 0]
    cartridge["mirrored"][0] = (bits << np.arange(8)).sum(axis=1)
    cartridge["inks"][0] = inks
    return cartridge
