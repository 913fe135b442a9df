from typing import Any, TypeVar
import numba
F = TypeVar("F")

def compiled(function: F) -> F:
    return numba.njit(nogil=True, cache=True, error_model="numpy")(function)
