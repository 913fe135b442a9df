"""Decides which emulator a run uses, and gets it ready. Main process, before anything starts."""

from collections.abc import Callable

from mario_rl.emulation.emulator import EmulatorName
from mario_rl.emulation.rom import find_rom, read_rom

INSTEAD = "using nes-py instead, which is about fifty times slower"


def choose_emulator(wish: EmulatorName, report: Callable[[str], None]) -> EmulatorName:
    """The emulator wished for, ready to play; or nes-py, with a word why, where ours cannot be compiled."""
    if wish == "nes_py":
        return wish
    try:
        from mario_rl.emulation.fast.preparing import prepare
    except ImportError as error:
        report(f"The fast emulator needs numba ({error}): {INSTEAD}. Remedy: pip install -r requirements.txt")
        return "nes_py"
    try:
        prepare(report)
    except OSError as error:
        report(f"The fast emulator cannot keep its compiled code ({error}): {INSTEAD}.")
        report("Remedy: set XDG_CACHE_HOME to a folder that can be written to.")
        return "nes_py"
    return wish


def check_rom(wish: EmulatorName) -> None:
    """Raise a RomError where the ROM is missing, or is not one that the emulator plays."""
    rom = find_rom()
    if wish == "fast":
        read_rom(rom)
