"""Ctrl-C, SIGTERM and SIGHUP. The handler runs in the main thread, in the middle of whatever that is doing."""

import contextlib
import os
import signal
import types
from collections.abc import Callable
from typing import NoReturn


class StopSignals:
    """The first asks the run to save and stop, the second ends it at once."""

    def __init__(self) -> None:
        self._received: int | None = None
        self._request_stop: Callable[[str], None] | None = None
        self._kill: Callable[[], None] | None = None
        self._message = b"\nStopped before training began; nothing was saved.\n"

    @property
    def exit_code(self) -> int:
        """0, or what shells expect after a signal."""
        return 0 if self._received is None else 128 + self._received

    def install(self) -> None:
        """Handle them from now on."""
        signal.signal(signal.SIGINT, self._handle)
        signal.signal(signal.SIGTERM, self._handle)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup wants the run to outlive its terminal
            signal.signal(signal.SIGHUP, self._handle)

    def nothing_to_save(self) -> None:
        """A command runs that only reads: the first signal ends it at once."""
        self._message = b"\nStopped.\n"

    def begin(self, request_stop: Callable[[str], None], kill: Callable[[], None]) -> None:
        """From now on there is something to save. Both functions are called from the signal handler."""
        self._request_stop, self._kill = request_stop, kill

    def _handle(self, number: int, frame: types.FrameType | None) -> None:
        first = self._received is None
        self._received = number
        if self._request_stop is None:
            # Not KeyboardInterrupt: torch is probably being imported, and turns that into an error of its own.
            _say(self._message)
            os._exit(self.exit_code)
        if first:
            self._request_stop(f"{signal.Signals(number).name} was received")
            _say(b"\nStopping: saving a checkpoint. Press Ctrl-C again to end at once.\n")
            return
        self._force()

    def _force(self) -> NoReturn:
        if self._kill is not None:
            self._kill()
        _say(b"\nEnded at once; the last saved checkpoint is kept.\n")
        os._exit(self.exit_code)


def _say(message: bytes) -> None:
    """To the terminal, if it is still there: Ctrl-C also ends the `tee` behind a pipe, and SIGHUP means it is gone."""
    with contextlib.suppress(OSError):
        os.write(2, message)
