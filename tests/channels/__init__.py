"""Tests of what crosses processes. Children are real ones, started by spawn."""

import contextlib
import multiprocessing
from pathlib import Path

import pytest

PATIENCE_SECONDS = 30  # only so that a broken build fails instead of hanging

SHARED_MEMORY = Path("/dev/shm")
needs_shared_memory_folder = pytest.mark.skipif(not SHARED_MEMORY.exists(), reason="this system has no /dev/shm")

context = multiprocessing.get_context("spawn")


@contextlib.contextmanager
def child(target, *args):
    """A running child process, which does not outlive the block."""
    process = context.Process(target=target, args=args, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def receive(connection):
    """The other process's next message, if it comes at all."""
    assert connection.poll(PATIENCE_SECONDS), "no message came"
    return connection.recv()


def shared_memory_names():
    """All shared memory that has a name."""
    return {path.name for path in SHARED_MEMORY.iterdir()}


def mapped_shared_memory(pid):
    """The paths under /dev/shm that a process has mapped; the kernel adds "(deleted)" to those without a name."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [line[line.index(str(SHARED_MEMORY)) :] for line in lines if str(SHARED_MEMORY) in line]
