"""The map as a collector reads it: how far each known cell is from the flag. Private to its process."""

import numpy as np
import numpy.typing as npt
import torch

from mario_rl.machine.compiling import compiled
from mario_rl.mapping.cell_table import NOT_FOUND, empty_table, entry_of, look_up_all
from mario_rl.mapping.graph import FAR, CellGraph

UNKNOWN = NOT_FOUND  # the distance of a cell that is not on the map
ENTRIES_PER_LEVEL = 2**15  # half of them may be filled; levels have 1,000 to 6,000 cells


def map_capacity(num_levels: int) -> int:
    """Entries of the table for these levels, a power of two."""
    return ENTRIES_PER_LEVEL * int(2 ** np.ceil(np.log2(num_levels)))


class LevelMap:
    """A table of cells and distances, of a fixed size, so that it can travel through shared memory."""

    def __init__(self, num_levels: int) -> None:
        self._cells, self._distances = empty_table(map_capacity(num_levels))
        # The same memory, as it crosses processes.
        self.tensors = {"cells": torch.from_numpy(self._cells), "distances": torch.from_numpy(self._distances)}

    def draw(self, graph: CellGraph, num_edges: int) -> None:
        """Fill the table anew, with all cells from which these first edges lead to the flag."""
        distances = graph.distances(num_edges)
        self._cells[:], self._distances[:] = empty_table(len(self._cells))
        known = np.flatnonzero(distances != FAR)[: len(self._cells) // 2]
        _fill(self._cells, self._distances, graph.cells[known], distances[known])

    def distances(self, cells: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """How many cells each is from the flag, UNKNOWN where no way is known."""  # [n] -> [n]
        found = np.empty(len(cells), np.int32)
        look_up_all(self._cells, self._distances, cells, found)
        return found


@compiled
def _fill(
    table_cells: npt.NDArray[np.int64],
    table_distances: npt.NDArray[np.int32],
    cells: npt.NDArray[np.int64],
    distances: npt.NDArray[np.int32],
) -> None:
    for place in range(len(cells)):
        entry = entry_of(table_cells, cells[place])
        table_cells[entry] = cells[place]
        table_distances[entry] = distances[place]
