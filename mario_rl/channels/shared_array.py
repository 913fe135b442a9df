"""A NumPy array in anonymous shared memory.

`RawArray` maps a file that is unlinked before it is used, so nothing can be left behind in /dev/shm, not even by a
SIGKILL. It travels to a spawned child as an inherited file descriptor, only while that child is being started.
"""

from multiprocessing.context import SpawnContext
from typing import Any

import numpy as np
import numpy.typing as npt


class SharedArray:
    """Zero-filled shared memory with a shape. Who writes and who reads is the owner's business."""

    array: npt.NDArray[Any]

    def __init__(self, context: SpawnContext, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> None:
        self._dtype, self._shape = np.dtype(dtype), shape
        self._raw = context.RawArray("B", max(1, int(np.prod(shape)) * self._dtype.itemsize))
        self._map()

    def _map(self) -> None:
        num_items = int(np.prod(self._shape))
        self.array = np.frombuffer(memoryview(self._raw), self._dtype, count=num_items).reshape(self._shape)

    def __getstate__(self) -> tuple[Any, ...]:
        return self._dtype, self._shape, self._raw

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._dtype, self._shape, self._raw = state
        self._map()
