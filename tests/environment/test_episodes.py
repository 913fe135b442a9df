import numpy as np
import pytest

from mario_rl.environment.actions import ACTION_SETS
from mario_rl.environment.episodes import Episodes, TaskRules
from mario_rl.experience import Mark
from tests.environment.test_game import RUN_AND_JUMP

RULES = TaskRules(
    world=1,
    stage=1,
    actions="simple",
    frame_skip=4,
    noop_start_max_frames=0,
    no_progress_decisions=20,
    reward_scale=0.5,
    flag_bonus=3.0,
)
NOOP, RUN, RUN_AND_JUMP_ACTION = 0, 3, 4  # of SIMPLE_MOVEMENT


@pytest.fixture
def episodes():
    made = []

    def make(rules=RULES, seed=0):
        made.append(Episodes(rules, np.random.default_rng(seed)))
        return made[-1]

    yield make
    for one in made:
        one.close()


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
    standing = episodes()
    results = [standing.decide(NOOP) for _ in range(20)]
    assert [result.marks for result in results] == [Mark(0)] * 19 + [Mark.TRUNCATED]
    assert standing.over
    assert not standing.summary.cleared


def test_death_is_terminated(episodes):
    running = episodes()
    while not running.over:
        result = running.decide(RUN)  # into the first Goomba
    assert result.marks == Mark.TERMINATED
    assert result.reward < 0
    assert 0 < running.summary.distance < 400


def test_the_flag_is_terminated_with_a_bonus_and_the_training_reward_is_the_scaled_raw_reward(episodes):
    winning = episodes()
    plan = [RUN_AND_JUMP_ACTION if turn % 2 else RUN for turn, length in enumerate(RUN_AND_JUMP) for _ in range(length)]
    results = [winning.decide(action) for action in plan]
    assert results[-1].marks == Mark.TERMINATED
    assert winning.summary.cleared
    assert winning.summary.distance > 3_100
    assert winning.summary.decisions == len(plan)
    assert sum(result.reward for result in results) == pytest.approx(winning.summary.reward * 0.5 + 3.0)


def test_starts_differ_and_follow_the_seed(episodes):
    rules = RULES._replace(noop_start_max_frames=30)
    one, same, other = episodes(rules, seed=1), episodes(rules, seed=1), episodes(rules, seed=2)

    def starts(player):
        found = []
        for _ in range(6):
            player.begin()
            found.append(player.state()["noop_frames"])
        return found

    first = starts(one)
    assert first == starts(same)
    assert first != starts(other)
    assert len(set(first)) > 1
    assert all(0 <= frames <= 30 for frames in first)


def test_a_saved_moment_is_returned_to_exactly(episodes):
    rules = RULES._replace(noop_start_max_frames=30)
    playing, loaded = episodes(rules, seed=3), episodes(rules, seed=4)
    rng = np.random.default_rng(0)
    for _ in range(25):
        playing.decide(int(rng.choice([RUN, RUN_AND_JUMP_ACTION])))
    loaded.load_state(playing.state())
    assert loaded.summary == playing.summary
    pictures = np.zeros((2, 84, 84), np.uint8)
    for _ in range(10):
        action = int(rng.choice([RUN, RUN_AND_JUMP_ACTION]))
        assert playing.decide(action) == loaded.decide(action)
        playing.draw(pictures[0])
        loaded.draw(pictures[1])
        assert np.array_equal(pictures[0], pictures[1])
        if playing.over:
            playing.begin()
            loaded.begin()  # the generator was restored too
            assert playing.state()["noop_frames"] == loaded.state()["noop_frames"]
