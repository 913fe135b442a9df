from typing import Any, TypeVar
import numba
F = TypeVar("F")

def compiled(function: F) -> F:
    return numba.njit(nogil=True, cache=bool(__import__("os").environ.get("NBCACHE")), error_model="numpy")(function)
