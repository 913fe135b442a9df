"""Compiling with numba, once: what was compiled is kept in a folder of the user's cache and loaded by later starts.

The folder's name is a fingerprint of all sources that are compiled, of numba and of the processor. numba alone would
miss an edit in an imported file: it looks only at the file of the function it is asked for.
"""

import hashlib
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import llvmlite.binding
import numba

Function = TypeVar("Function", bound=Callable[..., Any])

_PACKAGE = Path(__file__).parent.parent
# Whatever compiled code is made of, directly or not; tests/test_imports.py finds a missing one.
SOURCES = sorted(
    [
        _PACKAGE / "agent" / "pictures.py",
        *_PACKAGE.glob("emulation/*.py"),
        *_PACKAGE.glob("emulation/fast/*.py"),
        _PACKAGE / "environment" / "wandering.py",
        _PACKAGE / "errors.py",
        _PACKAGE / "experience.py",
        _PACKAGE / "machine" / "compiling.py",
        _PACKAGE / "mapping" / "cell_table.py",
        _PACKAGE / "mapping" / "graph.py",
        _PACKAGE / "mapping" / "level_map.py",
        _PACKAGE / "replay" / "gathering.py",
        _PACKAGE / "replay" / "sum_tree.py",
        _PACKAGE / "searching" / "archive.py",
    ]
)

# How LLVM shall lay out the processor's chain of questions, measured on an AMD EPYC (Zen 3). A table of jumps, its own
# choice, is predicted well only along short repeating paths: a tree of yes-or-no branches made frames 1.16 times as
# fast. Copying the loop's first questions to the end of every answer, as deep as they are known, gave another 1.06.
for _option in (
    "-min-jump-table-entries=1000000",
    "-tail-dup-size=30",
    "-tail-dup-placement-threshold=30",
    "-tail-dup-placement-aggressive-threshold=30",
    "-jump-threading-threshold=60",
):
    llvmlite.binding.set_option("mario_rl", _option)


def _fingerprint() -> str:
    """Sources with their times (numba looks at these), and what compiles them for what."""
    digest = hashlib.sha256()
    for path in SOURCES:
        digest.update(f"{path} {path.stat().st_mtime_ns}\n".encode())
        digest.update(path.read_bytes())
    cpu = f"{llvmlite.binding.get_host_cpu_name()} {llvmlite.binding.get_host_cpu_features().flatten()}"
    digest.update(f"{numba.__version__} {llvmlite.__version__} {platform.python_version()} {cpu}".encode())
    return digest.hexdigest()[:16]


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


CACHE_FOLDER = _user_cache() / "mario-rl" / f"compiled-{_fingerprint()}"
# An OSError here means that the folder cannot be used, and choosing.py falls back; numba would look for another one.
CACHE_FOLDER.mkdir(parents=True, exist_ok=True)
(CACHE_FOLDER / "lock").touch()
numba.config.CACHE_DIR = str(CACHE_FOLDER)  # type: ignore[attr-defined]  # before the first function is decorated


def compiled(function: Function) -> Function:
    """Compile a function when it is first called; it will hold no GIL."""
    made: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    typed: Function = made
    return typed
