"""Rescue: what it finds gets past the place where Mario died, and lives on."""

from contextlib import closing

import numpy as np
import pytest

from mario_rl.emulation.emulator import NO_RESTART
from mario_rl.emulation.rules import Level
from mario_rl.environment.episodes import Episodes
from mario_rl.environment.player import Player
from mario_rl.environment.rescue import SURVIVAL, Rescue
from mario_rl.experience import Mark
from mario_rl.mapping.level_map import LevelMap
from mario_rl.searching.search import LevelSearch
from tests.environment.test_episodes import RUN, _play
from tests.rules import PLAY, game_rules

LEVEL = Level(1, 1)
RUN_DECISIONS = 20  # straight into the first enemy


@pytest.fixture(scope="module")
def level_map():
    with closing(LevelSearch(PLAY, LEVEL, 1, 1, 2)) as search:
        while search.figures.start_distance is None:
            search.play_round()
        made = LevelMap(1)
        made.draw(search.graph, search.graph.num_edges)
        return made


def _tick(player, pictures, action):
    return player.tick(np.array([action]), np.array([NO_RESTART], np.int32), pictures, 0)


def test_what_is_found_gets_past_a_death_and_lives_on(level_map):
    pictures = np.empty((1, 1, 84, 84), np.uint8)
    with closing(Player(PLAY, [LEVEL], level_map=level_map)) as player:
        player.tick(np.array([0]), np.zeros(1, np.int32), pictures, 0)
        for _ in range(RUN_DECISIONS):
            _tick(player, pictures, RUN)
        saved = player.emulator.save_games(np.array([0]))
        while not _tick(player, pictures, RUN).terminated[0]:
            pass
        died_at = player.known_cells[0]
        actions = Rescue(PLAY, level_map, np.random.default_rng(0)).find(saved["console"][0], died_at)
        assert actions is not None
        player.emulator.load_game(0, saved[0], pictures, 0)
        limit = level_map.distances(np.array([died_at]))[0]
        distances = []
        for action in actions:
            assert not _tick(player, pictures, action).terminated[0]
            distances.append(int(level_map.distances(player.emulator.outcomes.cell)[0]))
        assert any(0 <= distance < limit for distance in distances[:-SURVIVAL] + distances[-SURVIVAL:][:1])


def test_nothing_is_found_where_the_map_does_not_know_the_place(level_map):
    with closing(Player(PLAY, [LEVEL])) as player:
        console = player.emulator.save_games(np.array([0]))["console"][0]
    assert Rescue(PLAY, level_map, np.random.default_rng(0)).find(console, np.int64(2**50 + 1)) is None


def test_practice_follows_a_rescue_whatever_the_policy_wants(level_map):
    play, task = game_rules(practice_share=1.0, rescue_share=1.0, progress="map", no_progress_decisions=40)
    episodes = Episodes(play, task, 1, np.random.default_rng(0))
    for mine, theirs in zip(episodes.level_map.tensors.values(), level_map.tensors.values(), strict=True):
        mine.copy_(theirs)
    rows = _play(episodes, np.full((400, 1), RUN))
    episodes.close()
    begins = np.flatnonzero(rows.marks[0] & Mark.BREAK)
    assert len(begins)
    # It ran into the first enemy at first; whoever practises gets past it, with other actions than those that it chose.
    assert (rows.action[0, begins[0] : begins[0] + 30] != RUN).any()
    deaths = [distance for distance in rows.episode_distance[0] if distance]
    assert max(deaths[1:]) > deaths[0]
