"""Wake-ups between two processes: one pipe, one byte a ring.

The pipe carries no meaning but "look again": the facts are counters in shared memory. A counter is read only after a
byte has been read, so the kernel's lock around the pipe orders the other side's writes before our reads, on machines
with weak memory order too. When the pipe is full, the other side has bytes to read anyway and one more is not needed.
End-of-file is the death notice: the last holder of the other end is gone.
"""

import os
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext


class PeerGoneError(Exception):
    """The process at the other end of a doorbell has ended."""


class Ringer:
    """The end that rings. Belongs to one process."""

    def __init__(self, connection: "Connection[bytes, bytes]") -> None:
        self._connection = connection

    def ring(self) -> None:
        """Wake the listener; never blocks."""
        try:
            os.write(self._connection.fileno(), b"\0")
        except BlockingIOError:
            pass  # full: the listener will wake up without this byte
        except BrokenPipeError:
            raise PeerGoneError from None

    def close(self) -> None:
        """Let go of this end."""
        self._connection.close()


class Listener:
    """The end that waits. Belongs to one process."""

    def __init__(self, connection: "Connection[bytes, bytes]") -> None:
        self._connection = connection

    def fileno(self) -> int:
        """For `multiprocessing.connection.wait`: one call waits on many doorbells."""
        return self._connection.fileno()

    def wait(self, timeout_seconds: float | None = None) -> float:
        """Sleep until it is rung, the other end dies, or the time is over; how long that took, in seconds."""
        begun = time.perf_counter()
        wait([self._connection], timeout_seconds)
        return time.perf_counter() - begun

    def answer(self) -> bool:
        """Take all waiting rings; whether there were any. PeerGoneError at end-of-file."""
        try:
            received = os.read(self._connection.fileno(), 65_536)
        except BlockingIOError:
            return False
        if not received:
            raise PeerGoneError
        return True

    def close(self) -> None:
        """Let go of this end."""
        self._connection.close()


def create_doorbell(context: SpawnContext) -> tuple[Ringer, Listener]:
    """Both ends of a new doorbell."""
    reading, writing = context.Pipe(duplex=False)
    os.set_blocking(reading.fileno(), False)
    os.set_blocking(writing.fileno(), False)
    return Ringer(writing), Listener(reading)
