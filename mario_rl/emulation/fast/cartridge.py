"""The game's ROM, prepared for the compiled code: one read-only record that every console shares."""

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from mario_rl.emulation.fast.instructions import STEP, decode

# A record of CARTRIDGE. To numba it is a typed record; mypy cannot see its fields.
Cartridge: TypeAlias = Any

CARTRIDGE = np.dtype(
    [
        ("steps", STEP, 0x8000),  # the decoded program
        ("program", np.uint8, 0x8000),  # the same as bytes: tables and constants are read from it
        ("patterns", np.uint8, 0x2000),  # 512 tiles of 8 x 8 pixels: 8 bytes of low bits, 8 of high bits
        ("lanes", np.uint64, 0x100),  # a byte's 8 bits spread over 8 bytes of 0x00 or 0xFF, leftmost pixel first
        ("mirrored", np.uint8, 0x100),  # a byte's bits in the opposite order
        ("inks", np.uint8, 0x40),  # what is written to the screen for each of the console's 64 colours
    ],
    align=True,
)


def make(program: bytes, patterns: bytes, inks) -> Cartridge:
    c = np.zeros(1, CARTRIDGE)
    c["steps"][0] = decode(program)
    c["program"][0] = np.frombuffer(program, np.uint8)
    c["patterns"][0] = np.frombuffer(patterns, np.uint8)
    bits = (np.arange(256)[:, None] >> np.arange(7, -1, -1)) & 1
    c["lanes"][0] = (bits * 255).astype(np.uint8).view(np.uint64)[:, 0]
    c["mirrored"][0] = (bits << np.arange(8)).sum(1)
    c["inks"][0] = inks
    return c
