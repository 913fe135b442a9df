import llvmlite.binding as _b
_b.set_option("mario-rl", "-min-jump-table-entries=100000")
from typing import Any, TypeVar
import numba
from pathlib import Path
F = TypeVar("F")
import os
CACHE_FOLDER = Path("/tmp/w/nbcache")
CACHE_FOLDER.mkdir(exist_ok=True)

def compiled(function: F) -> F:
    return numba.njit(nogil=True, cache=bool(os.environ.get("NBCACHE")), error_model="numpy")(function)
