"""The keeper of the map: it learns from what collectors see, and gives them what it knows."""

import multiprocessing

import numpy as np
import pytest

from mario_rl.channels.weight_slots import WeightSlots
from mario_rl.experience import FIELDS, NO_CELL, Mark, Rows
from mario_rl.mapping.graph import CellGraph
from mario_rl.mapping.keeper import PUBLISH_DECISIONS, MapKeeper
from mario_rl.mapping.level_map import UNKNOWN, LevelMap

A, B, C, D = (number * 2**20 for number in (1, 2, 3, 4))
FLAG = 0


@pytest.fixture
def slots():
    return WeightSlots(multiprocessing.get_context("spawn"), LevelMap(1).tensors)


def _keeper(slots, *walks):
    graph = CellGraph()
    for walk in walks:
        graph.add_walk(np.array(walk, np.int64))
    return MapKeeper(graph, slots, 1, 2)


def _rows(cells, marks=()):
    rows = Rows(*(np.zeros((1, len(cells), *field.shape), field.dtype) for field in FIELDS))
    rows.cell[0] = cells
    for place, mark in dict(marks).items():
        rows.marks[0, place] = mark
    return rows


def _known(slots, *cells):
    level_map = LevelMap(1)
    slots.take(level_map.tensors, 0)
    return level_map.distances(np.array(cells, np.int64)).tolist()


def test_a_shortcut_that_play_finds_counts(slots):
    keeper = _keeper(slots, [A, B, C, FLAG])
    keeper.publish()
    assert _known(slots, A, B, C, FLAG, D) == [3, 2, 1, 0, UNKNOWN]
    keeper.add(0, _rows([A, D]), continues=True)
    keeper.add(0, _rows([C, C]), continues=True)  # from D, where the chunk before ended
    assert _known(slots, A, D) == [3, UNKNOWN]
    keeper.add(1, _rows([A] * PUBLISH_DECISIONS), continues=True)
    assert _known(slots, A, D) == [3, 2]
    keeper.add(0, _rows([A, C] + [A] * PUBLISH_DECISIONS), continues=True)
    assert _known(slots, A) == [2]


@pytest.mark.parametrize("mark", [Mark.START, Mark.BREAK])
def test_an_episode_does_not_continue_the_one_before(slots, mark):
    keeper = _keeper(slots, [A, B, C, FLAG])
    keeper.add(0, _rows([D, C], {1: mark}), continues=True)
    keeper.add(0, _rows([D, NO_CELL, C], {2: mark}), continues=True)
    keeper.publish()
    assert _known(slots, D) == [UNKNOWN]


def test_rows_after_a_gap_continue_nothing(slots):
    keeper = _keeper(slots, [A, B, C, FLAG])
    keeper.add(0, _rows([D]), continues=True)
    keeper.add(0, _rows([C]), continues=False)
    keeper.publish()
    assert _known(slots, D) == [UNKNOWN]


def test_a_saved_map_goes_on_with_what_was_published(slots):
    keeper = _keeper(slots, [A, B, C, FLAG])
    keeper.publish()
    keeper.add(0, _rows([D, C]), continues=True)
    state, tensors = keeper.state(), keeper.tensors()
    other_slots = WeightSlots(multiprocessing.get_context("spawn"), LevelMap(1).tensors)
    other = MapKeeper(CellGraph(), other_slots, 1, 2)
    other.check(state, tensors)
    other.load(state, tensors)
    assert _known(other_slots, A, D) == [3, UNKNOWN]
    other.publish()
    assert _known(other_slots, A, D) == [3, 2]
    assert other.state()["last_cells"] == state["last_cells"]


@pytest.mark.parametrize(
    ("name", "value"), [("map.edges", [[0, 99]]), ("map.cells", [0, 5, 5]), ("map.cells", [7]), ("map.cells", [0, -3])]
)
def test_what_is_no_map_is_refused(slots, name, value):
    keeper = _keeper(slots, [A, B])
    state, tensors = keeper.state(), keeper.tensors()
    tensors[name] = tensors[name].new_tensor(value)
    with pytest.raises(ValueError, match="map"):
        keeper.check(state, tensors)
