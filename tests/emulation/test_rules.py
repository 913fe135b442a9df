"""Both emulators against gym-super-mario-bros, and against themselves, with the same buttons."""

import contextlib
import functools
import io
from typing import NamedTuple

import cv2
import numpy as np
import pytest

from mario_rl.emulation import rules
from mario_rl.emulation.emulator import NO_RESTART
from mario_rl.emulation.greys import grey_levels
from mario_rl.emulation.rules import CHANGE_AREA_TIMER, PLAYER_STATE
from mario_rl.environment.actions import RIGHT, A, B
from tests.emulation.games import WINNING_BUTTONS, Games, random_buttons

EMULATORS = ("fast", "nes_py")
# How far a grey may lie from OpenCV's: the fast emulator reduces its picture by sums of its own.
TOLERANCE = {"fast": 1, "nes_py": 0}

both_emulators = pytest.mark.parametrize("emulator", EMULATORS)


@pytest.fixture
def games():
    made = []

    def make(*arguments, **named):
        made.append(Games(*arguments, **named))
        return made[-1]

    yield make
    for one in made:
        one.emulator.close()


class Moment(NamedTuple):
    """What the original showed after a frame, cut-scenes skipped."""

    reward: float
    done: bool
    flag: bool
    x: int
    time: int
    ram: bytes
    picture: np.ndarray  # [84, 84]


class Write(NamedTuple):
    """A byte that is written into RAM before a frame."""

    frame: int
    address: int
    value: int


def _grey(screen):
    return cv2.resize(grey_levels(screen), (84, 84), interpolation=cv2.INTER_AREA)


def test_what_moves_is_brighter_than_what_is_behind_it():
    colours = [(104, 136, 252), (0, 0, 0), (248, 56, 0), (252, 160, 68), (172, 124, 0), (228, 92, 16), (0, 136, 136)]
    levels = grey_levels(np.array([*colours, (0, 168, 0)], np.uint8)).tolist()
    sky, black, clothes, skin, hair, goomba, teal_goomba, pipe = levels
    assert min(clothes, skin, hair, goomba, pipe) > sky + 100  # the eye's: 107, 177, 124, 124 and 99 against 140
    assert teal_goomba > black + 100


def _distance(picture, other):
    return np.abs(picture.astype(int) - other.astype(int)).max()


@functools.lru_cache(maxsize=1)  # both emulators are compared with it, one after the other
def _original(level, buttons, write=None):
    """What gym-super-mario-bros does with these buttons: its RAM at the start, and a moment for every frame."""
    with contextlib.redirect_stderr(io.StringIO()):  # gym's notice
        from gym_super_mario_bros import SuperMarioBrosEnv
    env = SuperMarioBrosEnv(target=level)
    env.reset()
    start, moments = env.ram.tobytes(), []
    for frame, pressed in enumerate(buttons):
        if write is not None and write.frame == frame:
            env.ram[write.address] = write.value
        outcome = env.step(pressed)
        reward, done, info = outcome[1], any(outcome[2:-1]), outcome[-1]
        x, time = int(env._x_position), int(env._time)  # after the cut-scenes, unlike those of `info`
        picture = _grey(np.ascontiguousarray(env.screen))
        moments.append(Moment(reward, done, bool(info["flag_get"]), x, time, env.ram.tobytes(), picture))
        if done:
            env.reset()
    env.close()
    return start, moments


def _compare(games, emulator, level, buttons, write=None):
    """Drive a game frame by frame as the original was; how many episodes ended, and how many by a flag."""
    start, moments = _original(level, buttons, write)
    ours = games(emulator, level)
    ram = memoryview(ours.emulator.ram(0))  # plain ints
    assert ours.ram() == start
    for frame, (pressed, moment) in enumerate(zip(buttons, moments, strict=True)):
        if write is not None and write.frame == frame:
            ram[write.address] = write.value
        ours.play(pressed)
        assert ours.outcome() == (moment.reward, moment.done, moment.flag, moment.x), f"frame {frame}"
        assert rules.clock(ram) == moment.time, f"frame {frame}"
        # Every byte of RAM: the cut-scene writes and skipped frames are the same too.
        assert ours.ram() == moment.ram, f"frame {frame}"
        assert _distance(ours.pictures[0], moment.picture) <= TOLERANCE[emulator], f"frame {frame}"
        if moment.done:
            ours.restart(0)
    return sum(moment.done for moment in moments), sum(moment.flag for moment in moments)


@both_emulators
def test_1_1_is_equal_to_the_original_until_the_flag_and_beyond(games, emulator):
    endings, flags = _compare(games, emulator, (1, 1), WINNING_BUTTONS + random_buttons(600, seed=1))
    assert flags == 1
    assert endings >= 2  # and at least one death


# Underground with a pipe intro, an athletic level, a castle with Bowser's world, water, and an extra-area world.
@both_emulators
@pytest.mark.parametrize("level", [(1, 2), (1, 3), (2, 2), (8, 4)])
def test_other_levels_are_equal_to_the_original(games, emulator, level):
    _compare(games, emulator, level, random_buttons(320, seed=sum(level)))


@both_emulators
@pytest.mark.parametrize(("address", "value"), [(PLAYER_STATE, 0x03), (CHANGE_AREA_TIMER, 90)])
def test_cut_scenes_are_skipped_as_in_the_original(games, emulator, address, value):
    buttons = (RIGHT,) * 20 + random_buttons(150, seed=3)
    _compare(games, emulator, (1, 1), buttons, Write(20, address, value))  # down a pipe; an area is being changed


@pytest.mark.long
@both_emulators
@pytest.mark.parametrize("level", [(world, stage) for world in range(1, 9) for stage in range(1, 5)])
def test_every_level_is_equal_to_the_original(games, emulator, level):
    _compare(games, emulator, level, random_buttons(3_000, seed=sum(level)))


@both_emulators
def test_the_picture_is_the_grey_resized_screen(games, emulator):
    ours = games(emulator)
    reference = ours if emulator == "nes_py" else games("nes_py")
    for one in {ours, reference}:
        one.play(RIGHT, num_frames=40)
    screen = np.ascontiguousarray(reference.emulator._games[0].console._console.screen)
    assert _distance(ours.pictures[0], _grey(screen)) <= TOLERANCE[emulator]
    assert ours.pictures.std() > 10


@both_emulators
def test_a_step_is_the_sum_of_its_frames_and_stops_at_the_end(games, emulator):
    one_by_one, at_once = games(emulator), games(emulator)
    rng = np.random.default_rng(5)
    ended = False
    for _ in range(400):
        buttons = int(rng.choice([RIGHT | B, RIGHT | A | B, RIGHT]))
        total = 0.0
        for _ in range(4):
            one_by_one.play(buttons)
            reward, ended, flag, x = one_by_one.outcome()
            total += reward
            if ended:
                break
        at_once.play(buttons, num_frames=4)
        assert at_once.outcome() == (total, ended, flag, x)
        assert at_once.ram() == one_by_one.ram()
        assert np.array_equal(at_once.pictures, one_by_one.pictures)
        if ended:
            break
    assert ended


def test_a_step_that_ends_early_by_death_shows_its_last_frame(games):
    one_by_one, at_once, reference = games("fast"), games("fast"), games("nes_py")
    while not one_by_one.outcomes.done[0]:
        one_by_one.play(RIGHT)  # into the first Goomba
    for one in (at_once, reference):
        one.play(RIGHT, num_frames=500)
        assert one.outcomes.done[0]
        assert not one.outcomes.flag[0]
        assert one.ram() == one_by_one.ram()
    assert np.array_equal(at_once.pictures, one_by_one.pictures)
    assert _distance(at_once.pictures, reference.pictures) <= TOLERANCE["fast"]


def test_a_step_that_ends_in_a_cut_scene_shows_its_last_frame(games):
    ours, reference = games("fast"), games("nes_py")
    for one in (ours, reference):
        one.play(RIGHT, num_frames=20)
        before = one.pictures.copy()
        one.emulator.ram(0)[PLAYER_STATE] = 0x03  # down a pipe
        one.play(0)
        assert _distance(one.pictures, before) > 10
    assert ours.ram() == reference.ram()
    assert _distance(ours.pictures, reference.pictures) <= TOLERANCE["fast"]


@both_emulators
def test_a_restart_with_idle_frames_is_a_restart_after_which_idle_frames_are_played(games, emulator):
    ours = games(emulator)
    start = ours.ram(), ours.pictures.copy()
    for _ in range(30):
        ours.play(0)
    idle = ours.ram(), ours.pictures.copy()
    ours.play(RIGHT, num_frames=60)
    for idle_frames, (ram, pictures) in ((30, idle), (0, start), (30, idle)):
        ours.restart(idle_frames)
        assert ours.outcome() == (0.0, False, False, 40)
        assert ours.ram() == ram
        assert np.array_equal(ours.pictures, pictures)
    # The clock went on while idling (the clock's tick costs 1); none of it is charged to the first decision.
    ours.play(0)
    assert ours.outcomes.reward[0] == 0


@both_emulators
def test_a_reset_puts_every_game_back_to_the_levels_first_frame(games, emulator):
    ours = games(emulator, num_games=2)
    start, pictures = ours.ram(), ours.pictures.copy()
    ours.play(RIGHT, RIGHT | A, num_frames=30)
    ours.emulator.reset()
    ours.draw()
    assert ours.ram(0) == ours.ram(1) == start
    assert np.array_equal(ours.pictures, pictures)


@both_emulators
def test_a_step_draws_at_its_tick_and_nowhere_else(games, emulator):
    ours = games(emulator)
    pictures = np.full((1, 3, 84, 84), 0xAB, np.uint8)
    ours.emulator.step(np.full(1, RIGHT, np.uint8), 4, np.full(1, NO_RESTART, np.int32), pictures, 1)
    ours.draw()
    assert np.array_equal(pictures[:, 1], ours.pictures)
    assert (pictures[:, ::2] == 0xAB).all()


def _play_side_by_side(together, alone, num_steps, num_frames):
    """The same buttons for a batch and for single games, which restart when they are done; how many did."""
    num_games = len(alone)
    buttons = [random_buttons(num_steps, seed) for seed in range(num_games)]
    restarts, num_restarts = [NO_RESTART] * num_games, 0
    for pressed in zip(*buttons, strict=True):
        together.step(pressed, restarts, num_frames)
        for game, one in enumerate(alone):
            one.step(pressed[game : game + 1], restarts[game : game + 1], num_frames)
            assert together.outcome(game) == one.outcome()
            assert together.ram(game) == one.ram()
            assert np.array_equal(together.pictures[game], one.pictures[0])
        restarts = [7 * game if done else NO_RESTART for game, done in enumerate(together.outcomes.done)]
        num_restarts += together.outcomes.done.sum()
    return num_restarts


@pytest.mark.parametrize("num_threads", [1, 2, 8])
def test_games_of_a_batch_are_equal_to_games_alone(games, num_threads):
    together = games("fast", num_games=5, num_threads=num_threads)
    alone = [games("fast") for _ in range(5)]
    assert _play_side_by_side(together, alone, num_steps=300, num_frames=4) >= 3


def test_nes_py_games_in_one_process_do_not_disturb_each_other(games):
    _play_side_by_side(games("nes_py", num_games=2), [games("nes_py") for _ in range(2)], num_steps=20, num_frames=4)


@both_emulators
def test_a_loaded_state_continues_as_the_saved_one(games, emulator):
    saved, loaded = games(emulator, num_games=2), games(emulator, num_games=2)
    saved.restart(0, 11)
    jumps = iter(random_buttons(300, seed=3))
    while not saved.outcomes.done.any():
        saved.play(RIGHT, next(jumps), num_frames=4)
    assert saved.outcomes.done.tolist() == [True, False]  # one has died and waits for its restart, one is on its way
    loaded.play(A, RIGHT, num_frames=9)  # elsewhere
    loaded.emulator.load_state(saved.emulator.state())
    loaded.draw()
    assert [loaded.ram(game) for game in range(2)] == [saved.ram(game) for game in range(2)]
    assert np.array_equal(loaded.pictures, saved.pictures)
    for restart in [3] + [NO_RESTART] * 20:
        pressed = RIGHT | A, next(jumps)
        for one in (saved, loaded):
            one.step(pressed, [restart, NO_RESTART], num_frames=4)
        for game in range(2):
            assert loaded.outcome(game) == saved.outcome(game)
            assert loaded.ram(game) == saved.ram(game)
        assert np.array_equal(loaded.pictures, saved.pictures)
        assert loaded.emulator.state() == saved.emulator.state()
