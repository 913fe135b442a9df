"""Decides which emulator a run uses, and gets it ready. Main process, before anything starts."""

from collections.abc import Callable

from mario_rl.emulation.emulator import EmulatorName
from mario_rl.emulation.rom import find_rom, read_rom

USING_NES_PY = "using nes-py instead, which is about fifty times slower"
MOST_COLLECTORS = 12  # that the other settings for one collector have room for (REP_Q_SIZE, WARMUP_EXPERIENCES)


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


def advise_more_collectors(num_processes: int, num_cores: int) -> str | None:
    """For a run on nes-py: how to have all cores collect, where the settings, made for the fast emulator, do not."""
    wanted = min(num_cores, MOST_COLLECTORS)
    if num_processes >= wanted:
        return None
    return (
        f"nes-py fills a core with about 100 decisions/s, and NUM_PROCESSES = {num_processes} of {num_cores} cores "
        f"collect. Remedy: --set NUM_PROCESSES={wanted}"
    )


def check_rom(wish: EmulatorName) -> None:
    """Raise a RomError where the ROM is missing, or is not one that the emulator plays."""
    rom = find_rom()
    if wish == "fast":
        read_rom(rom)
