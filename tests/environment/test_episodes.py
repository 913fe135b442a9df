import json

import numpy as np
import pytest

from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ACTION_SETS
from mario_rl.environment.episodes import Episodes
from mario_rl.experience import FIELDS, EpisodeSummary, Mark, Rows, finished_episodes
from tests.emulation.games import RUN_AND_JUMP
from tests.rules import game_rules

RULES = game_rules()
NOOP, RUN, RUN_AND_JUMP_ACTION, LEFT = 0, 3, 4, 6  # of SIMPLE_MOVEMENT
FRAME_COUNTER = 0x09  # in RAM: the game adds one every frame
POISON = 0xAB


@pytest.fixture
def episodes():
    made = []

    def make(rules=RULES, num_games=1, seed=0):
        made.append(Episodes(*rules, num_games, np.random.default_rng(seed)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def _play(episodes, actions):
    """The rows of a tick for each entry; the last picture is beyond them."""  # actions: [ticks, games]
    actions = np.array(actions, np.int64)
    num_ticks, num_games = actions.shape
    rows = Rows(*(np.zeros((num_games, num_ticks + 1, *field.shape), field.dtype) for field in FIELDS))
    for column in rows:
        column.view(np.uint8).fill(POISON)
    episodes.draw(rows.frame, 0)
    for tick in range(num_ticks):
        episodes.play(actions[tick], rows, tick, rows.frame, tick + 1)
    return Rows(*(column[:, :num_ticks] for column in rows))


def _random_actions(num_ticks, num_games, seed):
    return np.random.default_rng(seed).choice([RUN, RUN_AND_JUMP_ACTION], size=(num_ticks, num_games))


def _assert_equal(rows, others):
    for field, ours, theirs in zip(FIELDS, rows, others, strict=True):
        assert np.array_equal(ours, theirs), field.name


def test_the_action_sets_are_gym_super_mario_bros_own():
    import importlib.util
    from pathlib import Path

    # Read its actions.py without importing the package, which imports gym.
    folder = Path(importlib.util.find_spec("gym_super_mario_bros").submodule_search_locations[0])
    spec = importlib.util.spec_from_file_location("their_actions", folder / "actions.py")
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    buttons = {"NOOP": 0, "right": 0x80, "left": 0x40, "down": 0x20, "up": 0x10, "B": 2, "A": 1}
    for ours, their_set in (
        ("right_only", "RIGHT_ONLY"),
        ("simple", "SIMPLE_MOVEMENT"),
        ("complex", "COMPLEX_MOVEMENT"),
    ):
        expected = tuple(sum(buttons[name] for name in action) for action in getattr(theirs, their_set))
        assert ACTION_SETS[ours] == expected


def test_standing_still_is_cut_as_truncated_not_terminated(episodes):
    rows = _play(episodes(), [[NOOP]] * 22)
    assert rows.marks[0].tolist() == [Mark.START, *[0] * 18, Mark.TRUNCATED, Mark.FINAL, Mark.START]
    (summary,) = finished_episodes(rows)
    assert summary == EpisodeSummary(reward=2 * rows.reward[0, :20].sum(), distance=40, decisions=20, cleared=False)


def test_getting_further_puts_the_cut_off_and_going_back_does_not(episodes):
    rows = _play(episodes(), [[NOOP]] * 15 + [[RUN]] * 5 + [[LEFT]] * 25)
    (cut,) = np.flatnonzero(rows.marks[0] & Mark.TRUNCATED)
    (summary,) = finished_episodes(rows)
    # He stands for 15 decisions, runs for 5, and glides on for 2 after turning round: the 22nd is the last that counts.
    assert summary == EpisodeSummary(summary.reward, distance=73, decisions=22 + 20, cleared=False)
    assert cut == 22 + 20 - 1


@pytest.mark.parametrize("emulator", ["fast", "nes_py"])
def test_death_is_terminated(episodes, emulator):
    running = episodes(game_rules(emulator=emulator))
    rows = _play(running, [[RUN]] * 40)  # into the first Goomba
    (end,) = np.flatnonzero(rows.marks[0] & Mark.TERMINATED)
    assert rows.marks[0, end : end + 3].tolist() == [Mark.TERMINATED, Mark.FINAL, Mark.START]
    assert rows.reward[0, end] < 0
    (summary,) = finished_episodes(rows)
    assert 0 < summary.distance < 400
    assert summary.decisions == end + 1
    assert not summary.cleared


def test_the_flag_is_terminated_with_a_bonus_and_the_training_reward_is_the_scaled_raw_reward(episodes):
    plan = [RUN_AND_JUMP_ACTION if turn % 2 else RUN for turn, length in enumerate(RUN_AND_JUMP) for _ in range(length)]
    rows = _play(episodes(), [[action] for action in [*plan, NOOP, NOOP]])
    assert rows.marks[0, len(plan) - 1 :].tolist() == [Mark.TERMINATED, Mark.FINAL, Mark.START]
    (summary,) = finished_episodes(rows)
    assert summary.cleared
    assert summary.distance > 3_100
    assert summary.decisions == len(plan)
    assert rows.reward[0, : len(plan)].sum() == pytest.approx(summary.reward * 0.5 + 3.0)
    assert rows.action[0, : len(plan)].tolist() == plan


def test_every_field_of_every_row_is_written_and_only_final_rows_have_a_summary(episodes):
    playing = episodes(num_games=3)
    rows = _play(playing, np.stack([np.full(100, NOOP), np.full(100, RUN), _random_actions(100, 1, 0)[:, 0]], axis=1))
    final = (rows.marks & Mark.FINAL) != 0
    assert final.any(axis=1).all()
    for column in (rows.episode_reward, rows.episode_distance, rows.episode_decisions, rows.episode_cleared):
        assert (column[~final] == 0).all()
    assert (rows.episode_decisions[final] > 0).all()
    # Nobody acts on a final picture, and nothing is earned.
    assert (rows.action[final] == 0).all()
    assert (rows.reward[final] == 0).all()
    assert rows.action.max() < 7
    assert np.abs(rows.reward).max() <= 0.5 * 4 * 15
    assert (rows.frame.reshape(3, 100, -1).std(axis=-1) > 10).all()


def test_the_row_after_a_final_picture_shows_a_new_episode(episodes):
    playing = episodes()
    assert playing.at_start.tolist() == [True]
    rows = _play(playing, [[RUN]] * 100)
    assert not playing.at_start.any()
    starts = np.flatnonzero(rows.marks[0] & Mark.START)
    assert len(starts) >= 3
    # Without idle frames every episode begins with the same picture, and with the same buttons it goes on alike.
    assert np.array_equal(starts, starts[1] * np.arange(len(starts)))
    for start in starts[1:-1]:
        assert np.array_equal(rows.frame[0, start : start + starts[1]], rows.frame[0, : starts[1]])


def test_games_of_a_batch_are_equal_to_games_alone(episodes):
    actions = _random_actions(150, 3, seed=1)
    actions[:, 1] = NOOP
    together = _play(episodes(num_games=3), actions)
    for game in range(3):
        alone = _play(episodes(), actions[:, game : game + 1])
        _assert_equal(Rows(*(column[game : game + 1] for column in together)), alone)


def test_both_emulators_leave_the_same_rows(episodes):
    fast, nes_py = (
        _play(
            episodes(game_rules(noop_start_max_frames=30, emulator=emulator), num_games=2, seed=5),
            _random_actions(90, 2, seed=2),
        )
        for emulator in ("fast", "nes_py")
    )
    assert len(finished_episodes(fast)) >= 1
    assert np.abs(fast.frame.astype(int) - nes_py.frame).max() <= 1  # the reduced picture is rounded otherwise
    _assert_equal(fast._replace(frame=nes_py.frame), nes_py)


def test_starts_differ_and_follow_the_seed(episodes):
    # Every decision without progress is cut, so that every other tick begins an episode.
    rules = game_rules(noop_start_max_frames=30, no_progress_decisions=1)
    level_start = int(episodes(game_rules(no_progress_decisions=1))._player.emulator.ram(0)[FRAME_COUNTER])

    def starts(seed):
        player = episodes(rules, num_games=2, seed=seed)
        found = []
        for _ in range(20):
            assert player.at_start.all()
            counters = [int(player._player.emulator.ram(game)[FRAME_COUNTER]) for game in range(2)]
            found += [(counter - level_start) % 256 for counter in counters]
            _play(player, [[NOOP] * 2] * 2)
        return found

    first = starts(1)
    assert first == starts(1)
    assert first != starts(2)
    assert len(set(first)) > 10
    assert first[::2] != first[1::2]  # nor do the games of a batch begin alike
    assert all(0 <= frames <= 30 for frames in first)


@pytest.mark.parametrize("emulator", ["fast", "nes_py"])
def test_a_saved_moment_is_returned_to_exactly(episodes, emulator):
    rules = game_rules(emulator=emulator, noop_start_max_frames=30)
    playing, loaded = episodes(rules, num_games=2, seed=3), episodes(rules, num_games=2, seed=4)
    # One stands until he is cut, the other runs: at the saved moment one waits for his next episode.
    _play(playing, [[NOOP, action] for action in _random_actions(20, 1, seed=0)[:, 0]])
    state = json.loads(json.dumps(playing.state()))  # as a checkpoint keeps it
    assert loaded.fits(state)
    loaded.load(state)
    actions = _random_actions(30, 2, seed=1)
    actions[:, 0] = NOOP
    rows = _play(playing, actions)
    _assert_equal(rows, _play(loaded, actions))
    # Episodes that ended since then began anew with the same idle frames: the generator was restored too.
    assert (rows.marks[0] & Mark.FINAL).astype(bool).sum() == 2
    assert loaded.state()["rng"] == playing.state()["rng"]
    assert loaded.state()["episodes"] == playing.state()["episodes"]


def test_a_state_fits_the_same_emulator_level_and_number_of_games_only(episodes):
    state = episodes(num_games=2).state()
    assert episodes(num_games=2, seed=9).fits(state)
    assert not episodes(num_games=3).fits(state)
    assert not episodes(game_rules(levels=(Level(1, 2),)), num_games=2).fits(state)
    assert not episodes(game_rules(emulator="nes_py"), num_games=2).fits(state)


LEVELS = (Level(1, 1), Level(1, 2), Level(4, 4))


@pytest.mark.parametrize("emulator", ["fast", "nes_py"])
def test_every_episode_draws_one_of_the_levels(episodes, emulator):
    rules = game_rules(levels=LEVELS, emulator=emulator, no_progress_decisions=3, noop_start_max_frames=0)
    rows = _play(episodes(rules, num_games=2), np.full((160, 2), NOOP))
    firsts = [rows.frame[game, tick] for game, tick in zip(*np.nonzero(rows.marks & Mark.START), strict=True)]
    starts = [_first_picture(episodes, emulator, level) for level in LEVELS]
    drawn = [[np.array_equal(first, start) for start in starts].index(True) for first in firsts]
    counts = np.bincount(drawn, minlength=len(LEVELS))
    assert len(drawn) == 80  # of 3 decisions and a final row each
    assert (counts > 10).all()


def _first_picture(episodes, emulator, level):
    rules = game_rules(levels=(level,), emulator=emulator, noop_start_max_frames=0)
    pictures = np.empty((1, 1, 84, 84), np.uint8)
    episodes(rules).draw(pictures, 0)
    return pictures[0, 0]


@pytest.mark.parametrize("emulator", ["fast", "nes_py"])
def test_levels_that_were_drawn_continue_exactly_from_a_saved_state(episodes, emulator):
    rules = game_rules(levels=LEVELS, emulator=emulator, no_progress_decisions=10)
    one, other = episodes(rules, num_games=3, seed=1), episodes(rules, num_games=3, seed=2)
    actions = _random_actions(100, 3, seed=4)
    _play(one, actions[:50])
    other.load(json.loads(json.dumps(one.state())))
    _assert_equal(_play(one, actions[50:]), _play(other, actions[50:]))
