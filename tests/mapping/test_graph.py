"""The graph of cells: what is added is there, and distances are those of a plain breadth-first search."""

import itertools
from collections import deque

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mario_rl.emulation.rules import FLAG_CELL
from mario_rl.mapping.graph import FAR, CellGraph
from mario_rl.mapping.level_map import UNKNOWN, LevelMap

CELLS = st.integers(0, 30).map(lambda number: number * 2**20)  # the first is the flag
WALKS = st.lists(st.lists(CELLS, min_size=1, max_size=12), min_size=1, max_size=20)


def _plain_distances(walks):
    into = {}
    for walk in walks:
        for before, after in itertools.pairwise(walk):
            into.setdefault(after, set()).add(before)
    distances, waiting = {FLAG_CELL: 0}, deque([FLAG_CELL])
    while waiting:
        cell = waiting.popleft()
        for before in into.get(cell, ()):
            if before not in distances:
                distances[before] = distances[cell] + 1
                waiting.append(before)
    return distances


def _graph_of(walks):
    graph = CellGraph()
    for walk in walks:
        graph.add_walk(np.array(walk, np.int64))
    return graph


@given(walks=WALKS)
def test_distances_are_those_of_a_plain_search(walks):
    graph, expected = _graph_of(walks), _plain_distances(walks)
    found = dict(zip(graph.cells.tolist(), graph.distances().tolist(), strict=True))
    assert {cell: distance for cell, distance in found.items() if distance != FAR} == expected
    assert set(found) == {FLAG_CELL, *(cell for walk in walks for cell in walk)}


@given(walks=WALKS)
def test_a_map_tells_the_distance_of_cells_with_a_way_and_of_no_others(walks):
    graph, level_map = _graph_of(walks), LevelMap(1)
    level_map.draw(graph, graph.num_edges)
    expected = _plain_distances(walks)
    asked = np.array([*graph.cells.tolist(), 31 * 2**20, -1], np.int64)
    assert level_map.distances(asked).tolist() == [expected.get(cell, UNKNOWN) for cell in asked.tolist()]


def test_a_graph_grows_beyond_its_first_tables_and_can_be_saved():
    rng = np.random.default_rng(0)
    walk = rng.integers(1, 2**40, size=20_000)
    graph = _graph_of([walk, [*walk[:3], FLAG_CELL]])
    assert graph.num_cells == 1 + len(set(walk.tolist()))
    other = CellGraph()
    other.replace(graph.cells.copy(), graph.edges.copy())
    assert np.array_equal(other.cells, graph.cells)
    assert np.array_equal(other.edges, graph.edges)
    assert graph.distances()[graph.place_of(int(walk[0]))] == 3
    assert other.place_of(int(walk[-1])) == graph.place_of(int(walk[-1]))
