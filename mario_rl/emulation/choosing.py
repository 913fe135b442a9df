"""Decides which emulator a run uses, and gets it ready. Main process, before anything starts."""

from collections.abc import Callable

from mario_rl.emulation.emulator import EmulatorName
from mario_rl.emulation.rom import find_rom, read_rom

USING_NES_PY = "using nes-py instead, which is about fifty times slower"


def choose_emulator(wish: EmulatorName, report: Callable[[str], None]) -> EmulatorName:
    """The emulator wished for, ready to play; or nes-py, with a word why, where numba or its folder is missing."""
    if wish == "nes_py":
        return wish
    try:
        from mario_rl.emulation.fast.preparing import prepare

        prepare(report)
    except ImportError as error:
        report(f"The fast emulator needs numba ({error}): {USING_NES_PY}. Remedy: pip install -r requirements.txt")
        return "nes_py"
    except OSError as error:
        report(f"The fast emulator cannot keep its compiled code ({error}): {USING_NES_PY}.")
        report("Remedy: set XDG_CACHE_HOME to a folder that can be written to.")
        return "nes_py"
    return wish


def check_rom(wish: EmulatorName) -> None:
    """Raise a RomError where the ROM is missing, or is not one that the emulator plays."""
    rom = find_rom()
    if wish == "fast":
        read_rom(rom)
