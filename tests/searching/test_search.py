"""The search: what it finds can be played again, and depends on its seed alone."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from mario_rl.emulation.rules import Level
from mario_rl.evaluation.recording import record_buttons
from mario_rl.searching import maps
from mario_rl.searching.maps import draw_maps, search_level, search_with
from mario_rl.searching.rules import SearchRules
from mario_rl.searching.saving import continue_search, save_search
from mario_rl.searching.search import LevelSearch, furthest
from tests.rules import PLAY

CASTLE = Level(1, 4)  # the flag that is found soonest
ROUNDS = 3


def _search(seed=1, threads=1, rounds=ROUNDS, level=CASTLE):
    with closing(LevelSearch(PLAY, level, seed, 3, threads)) as search:
        for _ in range(rounds):
            search.play_round()
    return search


def _assert_same(one, other):
    ours, theirs = one.arrays(), other.arrays()
    assert one.facts == other.facts
    for name, array in ours.items():
        assert np.array_equal(array, theirs[name]), name


def test_a_search_depends_on_its_seed_not_on_its_threads():
    one = _search(threads=1)
    _assert_same(one, _search(threads=2))
    assert not np.array_equal(one.graph.cells, _search(seed=2).graph.cells)


def test_the_flag_is_found_and_the_way_to_it_can_be_played(tmp_path):
    lines = []
    with closing(LevelSearch(PLAY, CASTLE, 1, 3, 2)) as search:
        assert search_level(search, lines.append, 100.0)
        idle_frames, buttons = search.way_to_flag()
    film = record_buttons(PLAY, CASTLE, tmp_path / "way.gif", idle_frames, buttons)
    assert film.cleared
    assert film.decisions == len(buttons)
    assert search.figures.start_distance > 100  # 2,300 pixels
    assert "not found" not in lines[-1]


def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path):
    file = tmp_path / "search.npz"
    save_search(file, _search(rounds=2))
    lines = []
    with closing(continue_search(file, PLAY, CASTLE, 1, 3, 1, lines.append)) as search:
        search.play_round()
    assert len(lines) == 1
    _assert_same(search, _search(rounds=3))


@pytest.mark.parametrize("fault", ["torn", "text", "another seed"])
def test_a_file_that_holds_no_such_search_is_not_used(tmp_path, fault):
    file, lines = tmp_path / "search.npz", []
    save_search(file, _search(seed=2 if fault == "another seed" else 1, rounds=1))
    if fault == "torn":
        file.write_bytes(file.read_bytes()[:-500])
    if fault == "text":
        file.write_text("no search")
    with closing(continue_search(file, PLAY, CASTLE, 1, 3, 1, lines.append)) as search:
        assert search.num_decisions == 0
    assert "begins anew" in lines[0]


def _begin(actions):
    return LevelSearch(replace(PLAY, actions=actions), CASTLE, 1, 3, 2), None


def test_more_buttons_are_tried_where_fewer_do_not_reach_the_flag(monkeypatch):
    monkeypatch.setattr(maps, "PATIENCE_DECISIONS", 5_000)  # of which the castle needs more
    lines = []
    with closing(search_with(["right_only", "simple"], _begin, lines.append, 100.0).search) as search:
        assert search.actions == "simple"
    assert any("No way to the flag of 1-4 with right_only actions: now with simple ones" in line for line in lines)


def test_the_last_buttons_get_all_the_time(monkeypatch):
    monkeypatch.setattr(maps, "PATIENCE_DECISIONS", 5_000)
    found = search_with(["simple"], _begin, lambda _: None, 100.0)
    found.search.close()
    assert found.has_flag
    assert found.has_settled
    assert found.decisions == found.search.num_decisions > 5_000


def test_a_run_is_told_which_levels_have_no_flag_and_which_actions_it_needs(monkeypatch):
    monkeypatch.setattr(maps, "PATIENCE_DECISIONS", 1)
    rules = SearchRules(search_minutes=0.005, fallback_actions="complex")
    drawn = draw_maps(PLAY, rules, (CASTLE,), 1, 3, 2, lambda _: None)
    assert drawn.without_flag == [CASTLE]
    assert drawn.actions == PLAY.actions
    assert drawn.decisions > 128  # of both searches
    drawn = draw_maps(PLAY, replace(rules, search_minutes=1.0), (CASTLE,), 1, 3, 2, lambda _: None)
    assert drawn.without_flag == []
    assert drawn.actions == "complex"


def test_what_lies_before_a_level_is_not_far_to_its_right():
    def cell_at(column):
        return (column & 0xFFF) << 8

    assert furthest(np.array([cell_at(0), cell_at(-1), cell_at(7)])) == 7 * 16
