"""A sum tree: numbers at its leaves, in every other node the sum of the two below. Compiled; holds no GIL.

Drawing in proportion to the leaves and changing one of them both follow one path between a leaf and the root: 16 nodes
for 50,000 leaves, 20 for a million. Sums are always computed from the two nodes below, never by adding differences, so
nothing drifts. Libraries' trees and a NumPy version of this one were slower (docs/benchmarks.md, `replay`).
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Function = TypeVar("Function", bound=Callable[..., Any])

try:
    from mario_rl.machine.compiling import compiled
except (ImportError, OSError):  # no numba, or no folder for what it compiles: the same loops, 8 ms for 512, not 0.03

    def compiled(function: Function) -> Function:
        """Leave it as it is."""
        return function


class SumTree:
    """Not thread-safe: the sampling thread owns it."""

    def __init__(self, num_leaves: int) -> None:
        self._first_leaf = 1 << max(0, num_leaves - 1).bit_length()
        self._sums = np.zeros(2 * self._first_leaf)  # node 1 is the root; below n are 2 n and 2 n + 1
        self.leaves = self._sums[self._first_leaf : self._first_leaf + num_leaves]  # to read; `set` changes them

    @property
    def total(self) -> float:
        """The sum of all leaves."""
        return float(self._sums[1])

    def set(self, leaves: npt.NDArray[np.int64], values: npt.NDArray[np.float64] | float) -> None:
        """Change leaves. Of those named twice, the last counts."""
        if len(leaves):
            self.leaves[leaves] = values
            _add_up(self._sums, leaves + self._first_leaf)

    def find(self, amounts: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        """The leaves at which the running sum passes these amounts, which lie between 0 and the total."""
        nodes = np.ones(len(amounts), np.int64)
        if len(nodes):
            _find(self._sums, amounts.copy(), nodes)
        return nodes - self._first_leaf


# Both go a level at a time over all of a batch, not along one path after the other: what a path reads next depends on
# what it has just read, but the reads of different paths are independent and can all be on their way at once.


@compiled
def _add_up(sums: npt.NDArray[np.float64], nodes: npt.NDArray[np.int64]) -> None:
    """Compute everything above these nodes, which are of one level, anew. Overwrites `nodes`."""
    while nodes[0] > 1:
        for number in range(len(nodes)):
            node = nodes[number] >> 1
            sums[node] = sums[2 * node] + sums[2 * node + 1]
            nodes[number] = node


@compiled
def _find(sums: npt.NDArray[np.float64], amounts: npt.NDArray[np.float64], nodes: npt.NDArray[np.int64]) -> None:
    """Go down from `nodes` to their leaves. Overwrites both arrays."""
    while 2 * nodes[0] < len(sums):
        for number in range(len(nodes)):
            left = 2 * nodes[number]
            amount, left_sum = amounts[number], sums[left]
            # Rounding may leave a little too much to the right of everything: never into an empty branch. And `&`, not
            # `and`: where an amount goes cannot be predicted, so a jump here would make this three times as slow.
            to_the_right = (amount >= left_sum) & (sums[left + 1] > 0.0)
            amounts[number] = amount - (left_sum if to_the_right else 0.0)
            nodes[number] = left + to_the_right
