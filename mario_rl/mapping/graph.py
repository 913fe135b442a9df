"""A graph of cells: an edge leads from a cell to one that a decision there was seen to lead to.

Cells and edges are only ever added, at the end of plain arrays, and counted after they were written. So one thread may
add while another copies what was there when it looked.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.rules import FLAG_CELL
from mario_rl.machine.compiling import compiled
from mario_rl.mapping.cell_table import NOT_FOUND, empty_table, entry_of, fill_table, look_up

SMALLEST_TABLE = 2**12
FAR = np.iinfo(np.int32).max  # no way to the flag is known
FLAG_PLACE = 0  # the flag is the first cell of every graph


class CellGraph:
    """Cells by their place in `cells`, and edges as pairs of places. One thread adds."""

    def __init__(self) -> None:
        self._cells = np.zeros(SMALLEST_TABLE // 2, np.int64)
        self._edges = np.zeros((SMALLEST_TABLE // 2, 2), np.int32)
        self._cell_table = empty_table(SMALLEST_TABLE)
        self._edge_table = empty_table(SMALLEST_TABLE)
        self.num_cells = self.num_edges = 0
        self.place_of(FLAG_CELL)

    @property
    def cells(self) -> npt.NDArray[np.int64]:
        """All cells, in the order in which they were found."""  # [cells]
        return self._cells[: self.num_cells]

    @property
    def edges(self) -> npt.NDArray[np.int32]:
        """From where to where, as places of cells."""  # [edges, 2]
        return self._edges[: self.num_edges]

    def place_of(self, cell: int) -> int:
        """A cell's place; it gets one if it has none."""
        return int(self.add_walk(np.array([cell], np.int64))[0])

    def add_walk(self, walk: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Add the cells of a walk, one a decision, and the edges between neighbours. Their places."""
        places: npt.NDArray[np.int32] = self.add_walks(walk[None], np.array([len(walk)]))[0]
        return places

    def add_walks(self, walks: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Add some walks, each of its length."""  # [walks, longest], [walks] -> [walks, longest]
        self._make_room(walks.size)
        places = np.full(walks.shape, NOT_FOUND, np.int32)
        self.num_cells, self.num_edges = _add_walks(
            walks,
            lengths,
            places,
            self._cells,
            self._edges,
            *self._cell_table,
            *self._edge_table,
            self.num_cells,
            self.num_edges,
        )
        return places

    def add_edges(self, cells: npt.NDArray[np.int64]) -> None:
        """Add edges between pairs of cells."""  # [edges, 2]
        self.add_walks(np.ascontiguousarray(cells), np.full(len(cells), 2))

    def replace(self, cells: npt.NDArray[np.int64], edges: npt.NDArray[np.int32]) -> None:
        """Hold this graph instead, as `cells` and `edges` of another gave it."""
        self.__init__()  # type: ignore[misc]
        self.add_walks(cells[:, None], np.ones(len(cells), np.int64))
        self.add_edges(cells[edges])

    def distances(self, num_edges: int | None = None) -> npt.NDArray[np.int32]:
        """Every cell's distance to the flag, in changes of cells, by the first `num_edges` edges; FAR: no way."""
        edges = self.edges[:num_edges]
        return _distances(self.num_cells, np.ascontiguousarray(edges[:, 0]), np.ascontiguousarray(edges[:, 1]))

    def _make_room(self, num_new: int) -> None:
        """So that tables stay at most half full."""
        if self.num_cells + num_new > len(self._cells):
            self._cells = _longer(self._cells, self.num_cells + num_new)
            self._cell_table = empty_table(2 * len(self._cells))
            fill_table(*self._cell_table, self.cells, 0)
        if self.num_edges + num_new > len(self._edges):
            self._edges = _longer(self._edges, self.num_edges + num_new)
            self._edge_table = empty_table(2 * len(self._edges))
            fill_table(*self._edge_table, _pair_numbers(self.edges), 0)


def _longer(array: npt.NDArray[Any], needed: int) -> npt.NDArray[Any]:
    length = 2 ** int(np.ceil(np.log2(needed)))
    longer = np.zeros((length, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


def _pair_numbers(edges: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    numbers: npt.NDArray[np.int64] = edges[:, 0].astype(np.int64) * 2**32 + edges[:, 1]
    return numbers


@compiled
def _add_walks(
    walks: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
    places: npt.NDArray[np.int32],
    cells: npt.NDArray[np.int64],
    edges: npt.NDArray[np.int32],
    cell_numbers: npt.NDArray[np.int64],
    cell_places: npt.NDArray[np.int32],
    edge_numbers: npt.NDArray[np.int64],
    edge_places: npt.NDArray[np.int32],
    num_cells: int,
    num_edges: int,
) -> tuple[int, int]:
    """How many cells and edges there are then."""
    for walk in range(len(walks)):
        before = NOT_FOUND
        for step in range(lengths[walk]):
            number = walks[walk, step]
            place = look_up(cell_numbers, cell_places, number)
            if place == NOT_FOUND:
                place = num_cells
                cells[place] = number
                num_cells += 1
                entry = entry_of(cell_numbers, number)
                cell_places[entry] = place
                cell_numbers[entry] = number
            places[walk, step] = place
            if before != NOT_FOUND and before != place:
                pair = before * 2**32 + place
                entry = entry_of(edge_numbers, pair)
                if edge_numbers[entry] != pair:
                    edge_numbers[entry] = pair
                    edge_places[entry] = num_edges
                    edges[num_edges, 0] = before
                    edges[num_edges, 1] = place
                    num_edges += 1
            before = place
    return num_cells, num_edges


@compiled
def _distances(num_cells: int, sources: npt.NDArray[np.int32], targets: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Breadth-first from the flag, backwards along the edges."""
    # Edges by their target: those of cell c lie at first[c] to first[c + 1].
    first = np.zeros(num_cells + 2, np.int64)
    for edge in range(len(targets)):
        first[targets[edge] + 2] += 1
    for place in range(num_cells):
        first[place + 2] += first[place + 1]
    ordered = np.empty(len(sources), np.int32)
    for edge in range(len(targets)):
        ordered[first[targets[edge] + 1]] = sources[edge]
        first[targets[edge] + 1] += 1
    distances = np.full(num_cells, FAR, np.int32)
    waiting = np.empty(num_cells, np.int32)
    distances[FLAG_PLACE] = 0
    waiting[0] = FLAG_PLACE
    num_waiting, done = 1, 0
    while done < num_waiting:
        place = waiting[done]
        done += 1
        for edge in range(first[place], first[place + 1]):
            source = ordered[edge]
            if distances[source] == FAR:
                distances[source] = distances[place] + 1
                waiting[num_waiting] = source
                num_waiting += 1
    return distances
