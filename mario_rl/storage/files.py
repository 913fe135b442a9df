"""Writing files so that a crash leaves the old one or the new one, never half of one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def open_durably(path: Path) -> Iterator[BinaryIO]:
    """A new file to write to; in the end, wait until it is on disk."""
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_durably(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on disk."""
    with open_durably(path) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Wait until renames in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(path: Path, content: bytes) -> None:
    """Put new content in a file's place in one step."""
    temporary = path.with_name(f".{path.name}.saving")
    try:
        write_durably(temporary, content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # half a file would keep a full disk full
        raise
    sync_folder(path.parent)
