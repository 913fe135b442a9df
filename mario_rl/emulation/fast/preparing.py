"""Compiles the emulator before the first game, once, with a word about what is going on. Runs in the main process.

Collectors that start together would otherwise each compile the same. A lock keeps two runs from doing so.
"""

import contextlib
import fcntl
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mario_rl.emulation.emulator import NO_RESTART
from mario_rl.emulation.fast.emulator import FastConsole, FastEmulator
from mario_rl.emulation.rules import Level
from mario_rl.experience import FRAME_SIZE
from mario_rl.machine.compiling import CACHE_FOLDER

KEPT_FOLDERS = 4  # of earlier versions


def prepare(report: Callable[[str], None]) -> None:
    """Compile, unless an earlier start has done so; `report` gets lines for the user. OSError: no usable folder."""
    done = CACHE_FOLDER / "done"
    with (CACHE_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists():
            os.utime(CACHE_FOLDER)  # it is in use: the last to be removed
            return
        report("Compiling the emulator for this processor; this happens once and takes about half a minute.")
        begun = time.perf_counter()
        FastConsole().advance(0)
        report(f"  its processor and picture unit took {time.perf_counter() - begun:.0f} s; now the game's rules")
        emulator = FastEmulator([Level(1, 1)])
        pictures = np.empty((1, 1, FRAME_SIZE, FRAME_SIZE), np.uint8)
        emulator.step(np.zeros(1, np.uint8), 1, np.full(1, NO_RESTART, np.int32), pictures, 0)
        emulator.close()
        report(
            f"  done after {time.perf_counter() - begun:.0f} s; kept in {_shown(CACHE_FOLDER.parent)} for later starts"
        )
        done.touch()
    with contextlib.suppress(OSError):  # another run may be tidying up at the same time
        _remove_old_folders()


def _remove_old_folders() -> None:
    folders = sorted(CACHE_FOLDER.parent.glob("compiled-*"), key=lambda folder: folder.stat().st_mtime)
    for folder in folders[: -KEPT_FOLDERS - 1]:
        shutil.rmtree(folder, ignore_errors=True)


def _shown(folder: Path) -> str:
    try:
        return f"~/{folder.relative_to(Path.home())}"
    except ValueError:
        return str(folder)
