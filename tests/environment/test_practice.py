"""Practice: trails, the pool of moments before deaths, and episodes that begin there."""

import json

import numpy as np
import pytest

from mario_rl.emulation.emulator import NO_RESTART, make_emulator
from mario_rl.emulation.rules import Level, player_x
from mario_rl.environment.episodes import Episodes
from mario_rl.environment.practice import LATEST, LEAD_IN, LONGEST_LEAD, SHORTEST_LEAD, SPACING, Practice
from mario_rl.experience import NO_CELL, Mark, finished_episodes
from tests.environment.test_episodes import RUN, _play
from tests.rules import game_rules

PRACTISING = game_rules(practice_share=1.0, no_progress_decisions=1_000)
RUN_BUTTONS = 0x82
HELD = np.full(2, RUN_BUTTONS, np.uint8)
LEVELS = np.array([1, 1])  # of the two games
NOWHERE = np.full(2, NO_CELL)
X = np.full(2, 900)


@pytest.fixture
def emulator():
    made = make_emulator("fast", [Level(1, 1)] * 2)
    yield made
    made.close()


def _advance(emulator, ticks=1):
    pictures = np.empty((2, 1, 84, 84), np.uint8)
    for _ in range(ticks):
        emulator.step(np.full(2, RUN_BUTTONS, np.uint8), 4, np.full(2, NO_RESTART, np.int32), pictures, 0)
    return pictures


def test_a_saved_game_can_be_taken_up_by_another_game(emulator):
    _advance(emulator, 5)
    saved = emulator.save_games(np.array([0]))
    expected = _advance(emulator, 3)[0, 0].copy()
    x = int(emulator.outcomes.x[0])
    _advance(emulator, 4)
    pictures = np.zeros((2, 2, 84, 84), np.uint8)
    emulator.load_game(1, saved[0], pictures, 1)
    assert np.array_equal(pictures[1, 1], saved[0]["picture"])
    assert emulator.outcomes.x[1] == player_x(emulator.ram(1)) < x
    assert np.array_equal(_advance(emulator, 3)[1, 0], expected)
    assert emulator.outcomes.x[1] == x


def _practise(emulator, length):
    """A game's trail over this many decisions, then its death."""
    practice = Practice(emulator, 2, 1.0, np.random.default_rng(0))
    for decision in range(1, length + 1):
        _advance(emulator)
        practice.follow(np.full(2, decision, np.int32), np.full(2, RUN), HELD, np.array([True, False]))
    practice.note_deaths(np.full(2, length, np.int32), LEVELS, np.array([True, False]), X, NOWHERE)
    return practice


def test_an_episode_is_taken_up_some_time_before_its_death(emulator):
    xs = [int(emulator.outcomes.x[0])]
    length = 20
    practice = Practice(emulator, 2, 1.0, np.random.default_rng(0))
    for decision in range(1, length + 1):
        _advance(emulator)
        xs.append(int(emulator.outcomes.x[0]))
        practice.follow(np.full(2, decision, np.int32), np.full(2, RUN), HELD, np.array([True, False]))
    practice.note_deaths(np.full(2, length, np.int32), LEVELS, np.array([True, False]), X, NOWHERE)
    pictures, held = np.zeros((2, 1, 84, 84), np.uint8), np.zeros(2, np.uint8)
    assert practice.begin(np.array([False, True]), LEVELS, held, pictures, 0).tolist() == [False, True]
    assert held.tolist() == [0, RUN_BUTTONS]
    possible = {xs[d] for d in range(SPACING, length, SPACING) if SHORTEST_LEAD <= length - d <= LONGEST_LEAD}
    assert int(emulator.outcomes.x[1]) in possible


def test_a_short_episode_and_a_game_that_left_no_trail_give_nothing(emulator):
    practice = _practise(emulator, SHORTEST_LEAD - 1)
    practice.note_deaths(np.full(2, 100, np.int32), LEVELS, np.array([False, True]), X, NOWHERE)
    assert not practice.begin(np.array([True, True]), LEVELS, HELD.copy(), np.zeros((2, 1, 84, 84), np.uint8), 0).any()


def test_a_new_episode_forgets_the_trail_of_the_one_before(emulator):
    practice = _practise(emulator, 20)
    practice.begin(np.array([True, False]), LEVELS, HELD.copy(), np.zeros((2, 1, 84, 84), np.uint8), 0)
    deaths = practice.state()["num_deaths"]
    practice.note_deaths(np.full(2, 30, np.int32), LEVELS, np.array([True, False]), X, NOWHERE)
    assert practice.state()["num_deaths"] == deaths


def test_a_pool_keeps_the_latest_deaths_and_the_last_one_of_each_place(emulator):
    practice = _practise(emulator, 20)
    early = {bytes(practice._pools[1, 0])}
    for decision in range(21, 90):
        _advance(emulator)
        practice.follow(np.full(2, decision, np.int32), np.full(2, RUN), HELD, np.array([True, False]))
    for _ in range(LATEST):
        practice.note_deaths(np.full(2, 89, np.int32), LEVELS, np.array([True, False]), 2 * X, NOWHERE)
    assert not early & {bytes(moment) for moment in practice._pools[1, :LATEST]}
    assert early & {bytes(moment) for moment in practice._pools[1, LATEST:]}
    practice.note_deaths(np.full(2, 89, np.int32), LEVELS, np.array([True, False]), X + 1, NOWHERE)
    assert not early & {bytes(moment) for moment in practice._pools[1, LATEST:]}


def test_a_level_without_deaths_is_not_practised(emulator):
    practice = _practise(emulator, 20)
    pictures = np.zeros((2, 1, 84, 84), np.uint8)
    both = np.array([True, True])
    assert practice.begin(both, np.array([0, 1]), HELD.copy(), pictures, 0).tolist() == [False, True]


def test_episodes_practise_where_they_died_and_say_so():
    episodes = Episodes(*PRACTISING, 1, np.random.default_rng(0))
    rows = _play(episodes, np.full((400, 1), RUN))  # runs into the first enemy again and again
    episodes.close()
    finals = np.flatnonzero(rows.marks[0] & Mark.FINAL)
    assert len(finals) >= 3
    assert rows.marks[0, finals[0]] == Mark.FINAL  # no death had happened yet
    assert (rows.marks[0, finals[1:]] == Mark.FINAL | Mark.PRACTICE).all()
    assert finals[1] - finals[0] < finals[0]  # it began nearer to its death
    assert len(finished_episodes(rows)) == 1  # practice is not counted among the episodes


def test_no_episode_practises_unless_asked_to():
    episodes = Episodes(*game_rules(no_progress_decisions=1_000), 1, np.random.default_rng(0))
    rows = _play(episodes, np.full((400, 1), RUN))
    episodes.close()
    assert not (rows.marks & Mark.PRACTICE).any()
    assert len(finished_episodes(rows)) >= 3


def test_practice_continues_exactly_from_a_saved_state():
    one, other = (Episodes(*PRACTISING, 2, np.random.default_rng(seed)) for seed in (1, 2))
    actions = np.random.default_rng(5).integers(1, 5, size=(300, 2))
    _play(one, actions[:150])
    other.load(json.loads(json.dumps(one.state())))
    ours, theirs = _play(one, actions[150:]), _play(other, actions[150:])
    for mine, its in zip(ours, theirs, strict=True):
        assert np.array_equal(mine, its)
    assert (ours.marks & Mark.PRACTICE).any()
    one.close()
    other.close()


def test_practice_begins_with_the_pictures_that_preceded_it():
    episodes = Episodes(*PRACTISING, 1, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    rows = _play(episodes, rng.integers(1, 5, size=(400, 1)))  # whatever is wished in a lead, it is repeated
    episodes.close()
    pictures = [bytes(picture) for picture in rows.frame[0]]
    starts = np.flatnonzero(rows.marks[0] & Mark.BREAK)
    assert len(starts) > 1
    for start in starts:
        led = pictures[start : start + LEAD_IN + 1]
        assert any(pictures[place : place + LEAD_IN + 1] == led for place in range(start - LEAD_IN))
