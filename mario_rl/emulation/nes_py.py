"""nes-py as a bare console: buttons in, RAM and picture out. Runs wherever a game is played (collectors, serial mode).

Only nes-py's emulator is used, never the gym environment on top of it: that one computes a dozen properties and an info
dict a frame, and our own game rules (`mario_rl.environment.game`) need eleven bytes of RAM.
"""

import contextlib
import importlib.util
import io
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from mario_rl.errors import UserError
from mario_rl.experience import FRAME_SIZE, FrameArray

ROM_NAME = "super-mario-bros.nes"
SCREEN_HEIGHT, SCREEN_WIDTH = 240, 256


class RomMissingError(UserError):
    """The ROM cannot be found; the message is for the user."""


def find_rom() -> Path:
    """The ROM inside the installed gym-super-mario-bros, found without importing it (its import takes 0.4 s)."""
    spec = importlib.util.find_spec("gym_super_mario_bros")
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders:
        raise RomMissingError(
            "The package gym-super-mario-bros, which carries the game, is not installed: "
            "run `pip install -r requirements.txt`."
        )
    rom = Path(folders[0]) / "_roms" / ROM_NAME
    if not rom.is_file():
        raise RomMissingError(
            f"gym-super-mario-bros is installed but {ROM_NAME} is missing from it: "
            "run `pip install --force-reinstall -r requirements.txt`."
        )
    return rom


def _new_console(rom: Path) -> Any:
    # gym 0.26 prints a notice about its own end of life on import, which tells a user of this project nothing.
    with contextlib.redirect_stderr(io.StringIO()):
        import nes_py
    return nes_py.NESEnv(str(rom))


class NesPyEmulator:
    """One NES with the game inserted. Not thread-safe; one owner."""

    def __init__(self) -> None:
        self._console = _new_console(find_rom())
        self._console.reset()
        self._advance = self._console._frame_advance
        # A memoryview hands out plain ints, twice as fast as NumPy scalars. It is live: it changes with every frame.
        self.ram = memoryview(self._console.ram)
        # nes-py shows its picture as a reversed view of BGRx memory. OpenCV wants that memory itself, which saves a
        # 184 KB copy a picture.
        reversed_view = self._console.screen[:, :, ::-1]
        assert reversed_view.strides == (SCREEN_WIDTH * 4, 4, 1), "nes-py has changed its picture layout"
        self._screen_bgrx = np.lib.stride_tricks.as_strided(
            reversed_view, shape=(SCREEN_HEIGHT, SCREEN_WIDTH, 4), strides=(SCREEN_WIDTH * 4, 4, 1)
        )
        self._grey = np.empty((SCREEN_HEIGHT, SCREEN_WIDTH), np.uint8)

    def advance(self, buttons: int) -> None:
        """Run one frame with these buttons held."""
        self._advance(buttons)

    def backup(self) -> None:
        """Keep the present state; there is one such place."""
        self._console._backup()

    def restore(self) -> None:
        """Return to the state of the last backup."""
        self._console._restore()

    def draw(self, frame: FrameArray) -> None:
        """Write the present picture, grey and resized, into `frame`."""  # [84, 84] uint8
        cv2.cvtColor(self._screen_bgrx, cv2.COLOR_BGRA2GRAY, dst=self._grey)
        cv2.resize(self._grey, (FRAME_SIZE, FRAME_SIZE), dst=frame, interpolation=cv2.INTER_AREA)

    def close(self) -> None:
        """Free the console. nes-py does not free it on garbage collection."""
        self.ram.release()
        self._console.close()
