"""The map as reward: nothing is earned by going round in circles, and a way back costs what the way there earned."""

from contextlib import closing

import numpy as np
import pytest

from mario_rl.emulation.emulator import NO_RESTART
from mario_rl.emulation.rules import Level
from mario_rl.environment.player import Player
from mario_rl.mapping.level_map import UNKNOWN, LevelMap
from mario_rl.searching.search import LevelSearch
from tests.rules import PLAY

NUM_GAMES = 8


@pytest.fixture(scope="module")
def maze():
    """A map of the maze 4-4, whose loops lead back: rough, but with its flag."""
    level = Level(4, 4)
    with closing(LevelSearch(PLAY, level, 1, 3, 2)) as search:
        while search.figures.start_distance is None and search.num_decisions < 400_000:
            for _ in range(10):
                search.play_round()
    level_map = LevelMap(1)
    level_map.draw(search.graph, search.graph.num_edges)
    return level, level_map, search.graph.cells


def test_a_wrong_passage_does_not_look_as_if_it_led_on(maze):
    _, level_map, cells = maze
    distances = level_map.distances(cells)
    columns, rows = (cells >> 8) & 0xFFF, cells & 0xFF
    before_the_decision = ((cells >> 26) & 1 == 1) & (columns >= 59) & (columns <= 62) & (distances != UNKNOWN)
    upper, lower = (distances[before_the_decision & (rows == row)] for row in (20, 27))
    assert len(upper) > 1
    assert len(lower) > 1
    # The upper passage leads on, the lower one back to the level's start, 60 cells away.
    assert lower.min() > upper.max() + 40


def test_what_is_gained_between_two_moments_is_the_difference_of_their_distances(maze):
    level, level_map, _ = maze
    rng = np.random.default_rng(0)
    pictures = np.empty((NUM_GAMES, 1, 84, 84), np.uint8)
    num_returns = 0
    with closing(Player(PLAY, [level] * NUM_GAMES, level_map=level_map)) as player:
        player.tick(np.zeros(NUM_GAMES, np.int64), np.zeros(NUM_GAMES, np.int32), pictures, 0)
        total = np.zeros(NUM_GAMES, np.int64)
        seen = [{} for _ in range(NUM_GAMES)]  # what was gained in all when a cell was last left
        over = np.zeros(NUM_GAMES, np.bool_)
        actions = rng.integers(7, size=NUM_GAMES)
        for _ in range(1_500):
            change = rng.random(NUM_GAMES) < 0.3
            actions[change] = rng.choice([1, 2, 3, 4, 4, 6, 6], size=NUM_GAMES)[change]
            tick = player.tick(actions, np.where(over, 0, NO_RESTART).astype(np.int32), pictures, 0)
            for game in range(NUM_GAMES):
                if over[game]:
                    total[game], seen[game] = 0, {}
                total[game] += tick.gained[game]
                cell = int(player.known_cells[game])
                if cell in seen[game] and player.cells[game] == cell:
                    num_returns += 1
                    assert total[game] == seen[game][cell], "a closed walk has earned something"
                seen[game][cell] = total[game]
            over = tick.terminated.copy()
    assert num_returns > 1_000


def test_a_cell_that_is_not_on_the_map_changes_nothing(maze):
    _, level_map, _ = maze
    assert level_map.distances(np.array([2**50 + 1])).tolist() == [UNKNOWN]
