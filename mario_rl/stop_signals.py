"""Ctrl-C and SIGTERM. The handler runs in the main thread, between two steps of whatever that thread is doing."""

import os
import signal
import types
from collections.abc import Callable
from typing import NoReturn


class StopSignals:
    """Ctrl-C and SIGTERM: the first asks the run to save and stop, the second ends it at once."""

    def __init__(self) -> None:
        self._received: int | None = None
        self.request_stop: Callable[[str], None] | None = None  # set once there is something to save
        self.kill: Callable[[], None] = lambda: None

    @property
    def exit_code(self) -> int:
        """0, or what shells expect after a signal."""
        return 0 if self._received is None else 128 + self._received

    def install(self) -> None:
        """Handle both signals from now on."""
        signal.signal(signal.SIGINT, self._handle)
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        first = self._received is None
        self._received = number
        if self.request_stop is None:
            raise KeyboardInterrupt
        if first:
            os.write(2, b"\nStopping: saving a checkpoint. Press Ctrl-C again to end at once.\n")
            self.request_stop(f"{signal.Signals(number).name} was received")
            return
        self._force()

    def _force(self) -> NoReturn:
        self.kill()
        os.write(2, b"\nEnded at once; the last saved checkpoint is kept.\n")
        os._exit(self.exit_code)
