"""Our per-frame rules against the original, with the same buttons, on the real emulator."""

import contextlib
import io

import numpy as np
import pytest

from mario_rl.environment.actions import DOWN, LEFT, RIGHT, A, B
from mario_rl.environment.game import CHANGE_AREA_TIMER, PLAYER_STATE, MarioGame

# Decisions of four frames that clear 1-1: run so many, jump so many, run, jump, ... always to the right.
RUN_AND_JUMP = (
    2,
    3,
    4,
    3,
    7,
    9,
    7,
    8,
    3,
    3,
    7,
    2,
    6,
    4,
    2,
    1,
    2,
    6,
    1,
    7,
    8,
    8,
    8,
    5,
    4,
    6,
    7,
    17,
    3,
    8,
    6,
    4,
    5,
    3,
    1,
    2,
    7,
    2,
    7,
    2,
    4,
    8,
    2,
    4,
    8,
    3,
    5,
    5,
    2,
    4,
    1,
    9,
    1,
    2,
    7,
    2,
    4,
    5,
    4,
    3,
    2,
    7,
    4,
    3,
    2,
    4,
    4,
    4,
    4,
    2,
)
WINNING_BUTTONS = [
    RIGHT | B | (A if turn % 2 else 0) for turn, length in enumerate(RUN_AND_JUMP) for _ in range(4 * length)
]


def _original(world, stage):
    with contextlib.redirect_stderr(io.StringIO()):  # gym's notice
        from gym_super_mario_bros import SuperMarioBrosEnv
    env = SuperMarioBrosEnv(target=(world, stage))
    env.reset()
    return env


def _random_buttons(num_frames, seed):
    rng = np.random.default_rng(seed)
    choices = [RIGHT, RIGHT | A, RIGHT | B, RIGHT | A | B, RIGHT | A | B, A, LEFT, DOWN, 0]
    return np.repeat(rng.choice(choices, size=num_frames // 10 + 1), 10)[:num_frames].tolist()


def _compare(original, game, buttons):
    """Drive both frame by frame; how many episodes ended, and whether a flag was reached."""
    endings, flags = 0, 0
    assert bytes(game._ram) == original.ram.tobytes()
    for frame, pressed in enumerate(buttons):
        outcome = original.step(pressed)
        reward, done, info = outcome[1], any(outcome[2:-1]), outcome[-1]
        ours = game.play(pressed, 1)
        assert (ours.reward, ours.done, ours.flag) == (reward, done, bool(info["flag_get"])), f"frame {frame}"
        assert (game._last_x, game._last_time) == (info["x_pos"], info["time"]), f"frame {frame}"
        # Every byte of RAM: the cut-scene writes and skipped frames are the same too.
        assert bytes(game._ram) == original.ram.tobytes(), f"frame {frame}"
        if done:
            endings, flags = endings + 1, flags + ours.flag
            original.reset()
            game.restart()
    return endings, flags


def test_1_1_is_equal_to_the_original_until_the_flag_and_beyond():
    game, original = MarioGame(1, 1), _original(1, 1)
    endings, flags = _compare(original, game, WINNING_BUTTONS + _random_buttons(600, seed=1))
    assert flags == 1
    assert endings >= 2  # and at least one death
    game.close()
    original.close()


# Underground with a pipe intro, an athletic level, a castle with Bowser's world, water, and an extra-area world.
@pytest.mark.parametrize("level", [(1, 2), (1, 3), (2, 2), (8, 4)])
def test_other_levels_are_equal_to_the_original(level):
    game, original = MarioGame(*level), _original(*level)
    _compare(original, game, _random_buttons(320, seed=sum(level)))
    game.close()
    original.close()


@pytest.mark.parametrize(("address", "value"), [(PLAYER_STATE, 0x03), (CHANGE_AREA_TIMER, 90)])
def test_cut_scenes_are_skipped_as_in_the_original(address, value):
    game, original = MarioGame(1, 1), _original(1, 1)
    _compare(original, game, [RIGHT] * 20)
    game._ram[address] = original.ram[address] = value  # Mario goes down a pipe; an area is being changed
    _compare(original, game, _random_buttons(150, seed=3))
    game.close()
    original.close()


@pytest.mark.long
@pytest.mark.parametrize("level", [(world, stage) for world in range(1, 9) for stage in range(1, 5)])
def test_every_level_is_equal_to_the_original(level):
    game, original = MarioGame(*level), _original(*level)
    _compare(original, game, _random_buttons(3_000, seed=sum(level)))
    game.close()
    original.close()


def test_a_decision_is_the_sum_of_its_frames_and_stops_at_the_end():
    one_by_one, at_once = MarioGame(1, 1), MarioGame(1, 1)
    rng = np.random.default_rng(5)
    ended = False
    for _ in range(400):
        buttons = int(rng.choice([RIGHT | B, RIGHT | A | B, RIGHT]))
        reward, frames = 0.0, 0
        while frames < 4 and not ended:
            result = one_by_one.play(buttons, 1)
            reward, frames, ended = reward + result.reward, frames + 1, result.done
        together = at_once.play(buttons, 4)
        assert (together.reward, together.done) == (reward, ended)
        assert bytes(one_by_one._ram) == bytes(at_once._ram)
        if ended:
            break
    assert ended
    one_by_one.close()
    at_once.close()


def test_games_in_one_process_do_not_disturb_each_other():
    alone, together, other = MarioGame(1, 1), MarioGame(1, 1), MarioGame(1, 1)
    for buttons in _random_buttons(120, seed=9):
        alone.play(buttons, 1)
    for buttons in _random_buttons(120, seed=9):
        together.play(buttons, 1)
        other.play(LEFT | A, 1)
    assert bytes(alone._ram) == bytes(together._ram)
    for game in (alone, together, other):
        game.close()


def test_the_picture_is_the_grey_resized_screen():
    import cv2

    game = MarioGame(1, 1)
    game.play(RIGHT, 40)
    frame = np.zeros((84, 84), np.uint8)
    game.draw(frame)
    screen = np.ascontiguousarray(game._emulator._console.screen)
    expected = cv2.resize(cv2.cvtColor(screen, cv2.COLOR_RGB2GRAY), (84, 84), interpolation=cv2.INTER_AREA)
    assert np.array_equal(frame, expected)
    assert frame.std() > 10
    game.close()
