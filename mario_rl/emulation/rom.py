"""Finds and checks the game's ROM. It comes with gym-super-mario-bros; this project contains none."""

import importlib.util
from pathlib import Path
from typing import NamedTuple

from mario_rl.errors import UserError

ROM_NAME = "super-mario-bros.nes"
HEADER_SIZE, PROGRAM_SIZE, PATTERNS_SIZE = 0x10, 0x8000, 0x2000


class RomError(UserError):
    """The ROM is missing or of another kind; the message is for the user."""


class Rom(NamedTuple):
    """What is on the cartridge's two chips."""

    program: bytes  # 32 KB
    patterns: bytes  # 8 KB


def find_rom() -> Path:
    """The ROM inside the installed gym-super-mario-bros, found without importing it (its import takes 0.4 s)."""
    spec = importlib.util.find_spec("gym_super_mario_bros")
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders:
        raise RomError(
            "The package gym-super-mario-bros, which carries the game, is not installed: "
            "run `pip install -r requirements.txt`."
        )
    rom = Path(folders[0]) / "_roms" / ROM_NAME
    if not rom.is_file():
        raise RomError(
            f"gym-super-mario-bros is installed but {ROM_NAME} is missing from it: "
            "run `pip install --force-reinstall -r requirements.txt`."
        )
    return rom


def read_rom(path: Path) -> Rom:
    """Read an iNES file of the one kind that the fast emulator plays: mapper 0, 32 KB of program, 8 KB of patterns."""
    content = path.read_bytes()
    if len(content) < HEADER_SIZE or content[:4] != b"NES\x1a":
        raise RomError(f"{path.name} is not an NES ROM: run `pip install --force-reinstall -r requirements.txt`.")
    mapper = content[6] >> 4 | content[7] & 0xF0
    vertical_mirroring, more = content[6] & 1, content[6] & 0x0E
    sizes = (content[4] * 0x4000, content[5] * 0x2000)
    if mapper != 0 or sizes != (PROGRAM_SIZE, PATTERNS_SIZE) or not vertical_mirroring or more:
        raise RomError(
            f"{path.name} has mapper {mapper}, {sizes[0] // 1024} KB of program and {sizes[1] // 1024} KB of patterns; "
            "the fast emulator plays mapper 0 with 32 KB and 8 KB and side-by-side nametables. "
            'Set EMULATOR = "nes_py", or run `pip install --force-reinstall -r requirements.txt`.'
        )
    if len(content) < HEADER_SIZE + PROGRAM_SIZE + PATTERNS_SIZE:
        raise RomError(f"{path.name} is cut short: run `pip install --force-reinstall -r requirements.txt`.")
    return Rom(
        content[HEADER_SIZE : HEADER_SIZE + PROGRAM_SIZE],
        content[HEADER_SIZE + PROGRAM_SIZE : HEADER_SIZE + PROGRAM_SIZE + PATTERNS_SIZE],
    )
