"""A NumPy array in anonymous shared memory.

`RawArray` maps a file that is unlinked before it is used, so nothing can be left behind in /dev/shm, not even by a
SIGKILL. It travels to a spawned child as an inherited file descriptor, only while that child is being started.
"""

import math
from multiprocessing.context import SpawnContext
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT_BYTES = 64  # a cache line: what two processes write should not share one


class SharedArray:
    """Zero-filled shared memory with a shape. Who writes and who reads is the owner's business."""

    array: npt.NDArray[Any]

    def __init__(self, raw: Any, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.__setstate__((raw, offset, dtype, shape))

    def __getstate__(self) -> tuple[Any, ...]:
        return self._place

    def __setstate__(self, place: tuple[Any, ...]) -> None:
        self._place = raw, offset, dtype, shape = place
        self.array = np.frombuffer(memoryview(raw), dtype, math.prod(shape), offset).reshape(shape)


def shared_array(context: SpawnContext, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> SharedArray:
    """A new array."""
    return shared_arrays(context, [(dtype, shape)])[0]


def shared_arrays(context: SpawnContext, wanted: list[tuple[npt.DTypeLike, tuple[int, ...]]]) -> list[SharedArray]:
    """New arrays that live and die together, in one allocation.

    Piece by piece, the small ones would settle in what others had freed, and keep whole rings from being given back.
    """
    sizes = [math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape in wanted]
    ends = np.cumsum([-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes])
    raw = context.RawArray("B", max(1, int(ends[-1])))
    offsets = [0, *ends[:-1].tolist()]
    return [
        SharedArray(raw, offset, np.dtype(dtype), shape) for offset, (dtype, shape) in zip(offsets, wanted, strict=True)
    ]
