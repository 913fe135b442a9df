"""The keeper of a run's map: has its graph, adds what collectors see, and gives them new distances. Learner process.

The thread that commits experience adds to it (in serial mode the main loop). Collectors read a published map from
shared memory between two chunks; nobody waits for anybody.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mario_rl.channels.weight_slots import WeightSlots
from mario_rl.experience import NO_CELL, Mark, Rows
from mario_rl.mapping.graph import CellGraph
from mario_rl.mapping.level_map import LevelMap, map_capacity

# Between two publications. Most of what play finds after the search is a detour and changes no distance.
PUBLISH_DECISIONS = 5_000


class MapKeeper:
    """The graph of all levels of a run, and the map made of it."""

    def __init__(self, graph: CellGraph, slots: WeightSlots, num_levels: int, num_streams: int) -> None:
        self._graph = graph
        self._slots = slots
        self._map = LevelMap(num_levels)
        self._max_cells = map_capacity(num_levels) // 2
        self._last_cells = np.full(num_streams, NO_CELL, np.int64)  # where each stream's next row continues
        self._unpublished_rows = 0
        self._published_edges = 0

    @property
    def num_cells(self) -> int:
        """Cells that were ever seen."""
        return self._graph.num_cells

    def publish(self) -> None:
        """Give collectors the map as it is known now."""
        self._published_edges, self._unpublished_rows = self._graph.num_edges, 0
        self._map.draw(self._graph, self._published_edges)
        self._slots.publish(self._map.tensors)

    def add(self, first_stream: int, rows: Rows, continues: bool) -> None:
        """Learn from a chunk of some streams."""  # rows: [envs, T, ...]
        num_envs, num_ticks = rows.cell.shape
        group = slice(first_stream, first_stream + num_envs)
        if not continues:
            self._last_cells[group] = NO_CELL
        if self._graph.num_cells + rows.cell.size <= self._max_cells:
            for walk in _walks(np.column_stack([self._last_cells[group], rows.cell]), rows.marks):
                self._graph.add_walk(walk)
        self._last_cells[group] = rows.cell[:, -1]
        self._unpublished_rows += num_envs * num_ticks
        if self._unpublished_rows >= PUBLISH_DECISIONS:
            if self._graph.num_edges > self._published_edges:
                self.publish()
            self._unpublished_rows = 0

    def metrics(self) -> dict[str, float]:
        """How much is known."""
        return {"map/cells": self._graph.num_cells, "map/edges": self._graph.num_edges}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps as JSON."""
        return {
            "published_edges": self._published_edges,
            "unpublished_rows": self._unpublished_rows,
            "last_cells": self._last_cells.tolist(),
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps as tensors. Edges first: cells are added before the edges between them."""
        edges = self._graph.edges.copy()
        return {"map.cells": torch.from_numpy(self._graph.cells.copy()), "map.edges": torch.from_numpy(edges)}

    def check(self, state: Any, tensors: dict[str, torch.Tensor]) -> None:
        """ValueError where this is no graph."""
        cells, edges = tensors["map.cells"], tensors["map.edges"]
        if cells.dtype != torch.int64 or cells.dim() != 1 or not 1 <= len(cells) <= self._max_cells or cells[0] != 0:
            raise ValueError("map.cells holds no cells")
        if bool((cells < 0).any()) or len(set(cells.tolist())) != len(cells):
            raise ValueError("map.cells holds a cell that cannot be, or one twice")
        if edges.dtype != torch.int32 or edges.dim() != 2 or edges.shape[1] != 2:
            raise ValueError("map.edges holds no edges")
        if len(edges) and not (int(edges.min()) >= 0 and int(edges.max()) < len(cells)):
            raise ValueError("map.edges leads to a cell that there is not")
        if not 0 <= state["published_edges"] <= len(edges):
            raise ValueError(f"map.published_edges is {state['published_edges']}")
        if not 0 <= state["unpublished_rows"] <= PUBLISH_DECISIONS:
            raise ValueError(f"map.unpublished_rows is {state['unpublished_rows']}")

    def load(self, state: Any, tensors: dict[str, torch.Tensor]) -> list[str]:
        """Go on with a saved graph, and with the distances that were published of it."""
        self._graph.replace(tensors["map.cells"].numpy(), tensors["map.edges"].numpy())
        self._published_edges, self._unpublished_rows = state["published_edges"], state["unpublished_rows"]
        if len(state["last_cells"]) == len(self._last_cells):
            self._last_cells[:] = state["last_cells"]
        self._map.draw(self._graph, self._published_edges)
        self._slots.publish(self._map.tensors)
        return []


def _walks(cells: npt.NDArray[np.int64], marks: npt.NDArray[np.uint8]) -> "list[npt.NDArray[np.int64]]":
    """The parts of rows that belong together; the first column is where the row before them ended."""
    walks = []
    for stream in range(len(cells)):
        ends = np.flatnonzero((marks[stream] & (Mark.START | Mark.BREAK)) != 0) + 1  # a new episode continues nothing
        for walk in np.split(cells[stream], ends):
            known = walk[walk != NO_CELL]  # only the last one of an episode can be none
            if len(known) > 1:
                walks.append(known)
    return walks
