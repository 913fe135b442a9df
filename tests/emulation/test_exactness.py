"""The fast emulator against nes-py: every byte of RAM and every pixel of every frame.

Levels are entered as gym-super-mario-bros does, with writes into RAM, and then played by raw buttons: no rule skips a
cut-scene here. `SCRIPTS` are recordings that reach flags, pipes, water, castles and Bowser.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest

from mario_rl.emulation import rules
from mario_rl.emulation.fast.colours import RGB
from mario_rl.emulation.fast.emulator import FastConsole
from mario_rl.emulation.fast.reducing import reduce_screen
from mario_rl.emulation.greys import grey_levels
from mario_rl.emulation.nes_py import NesPyConsole
from mario_rl.emulation.rules import Level
from tests.emulation.games import Games

LEVELS = [Level(world, stage) for world in range(1, 9) for stage in range(1, 5)]
# By level: the buttons of every eighth frame, as hexadecimal bytes. They clear the level; 2-2 ends at its last pipe.
SCRIPTS = json.loads((Path(__file__).parent / "scripts.json").read_text())
FRAMES_A_BUTTON = 8
BUTTONS = (0x80, 0x80, 0x81, 0x82, 0x83, 0x83, 0x01, 0x40, 0x41, 0x00, 0x20, 0x10, 0x08)
_COLOURS = RGB.astype(np.uint32) @ np.array([0x10000, 0x100, 1], np.uint32)  # as nes-py keeps them: 0x00RRGGBB
START_PRESSES = 8  # frames between two presses that lead from the title screen into the game


class Pair:
    """Both emulators, kept in step; every frame is compared."""

    def __init__(self):
        self.ours, self.theirs = FastConsole(true_colours=True), NesPyConsole()
        self._their_colours = self.theirs.screen_bgrx.view(np.uint32)[:, :, 0]
        self.num_frames = 0

    def advance(self, buttons):
        self.ours.advance(buttons)
        self.theirs.advance(buttons)
        self.num_frames += 1
        if not np.array_equal(self.ours.ram, self.theirs.ram):
            differing = np.flatnonzero(self.ours.ram != self.theirs.ram)
            pytest.fail(f"frame {self.num_frames}: RAM differs at {[hex(address) for address in differing[:8]]}")
        if not np.array_equal(_COLOURS[self.ours.screen], self._their_colours):
            lines, columns = np.nonzero(_COLOURS[self.ours.screen] != self._their_colours)
            pytest.fail(f"frame {self.num_frames}: {len(lines)} pixels differ, the first at {lines[0]}, {columns[0]}")
        assert not self.ours.consoles["strayed"][0]

    def enter(self, level):
        rules.skip_start_screen(_BothRams(self.ours.ram, self.theirs.ram), self.advance, level)

    def close(self):
        self.theirs.close()


class _BothRams:
    """Reads ours, which is compared with theirs anyway, and writes both."""

    def __init__(self, ours, theirs):
        self._ours, self._theirs = ours, theirs

    def __getitem__(self, address):
        return int(self._ours[address])

    def __setitem__(self, address, value):
        self._ours[address] = self._theirs[address] = value


@pytest.fixture
def pair():
    pair = Pair()
    yield pair
    pair.close()


def _play_at_random(pair, num_frames, seed):
    rng = np.random.default_rng(seed)
    while num_frames > 0:
        held = int(rng.integers(1, 24))
        buttons = int(rng.choice(BUTTONS))
        for _ in range(min(held, num_frames)):
            pair.advance(buttons)
        num_frames -= held


def _play_script(pair, name, frames_after):
    """Play a recording; it must still do what it was recorded for."""
    cleared = furthest = 0
    for buttons in bytes.fromhex(SCRIPTS[name]):
        for _ in range(FRAMES_A_BUTTON):
            pair.advance(buttons)
            cleared |= rules.is_flag_reached(pair.ours.ram.data)
            furthest = max(furthest, rules.player_x(pair.ours.ram.data))
    assert cleared or (name == "2-2" and furthest > 3_000)
    for _ in range(frames_after):
        pair.advance(0)


def test_from_power_on(pair):
    """The title screen, its demonstration after a while, and a game begun from it."""
    for _ in range(700):
        pair.advance(0)
    for frame in range(100):
        pair.advance(rules.START if frame % START_PRESSES == 0 else 0)
    _play_at_random(pair, 1200, seed=1)


def _play_level(level):
    pair = Pair()
    pair.enter(level)
    _play_at_random(pair, 320, seed=level.world * 4 + level.stage)
    pair.close()


@pytest.mark.parametrize("world", range(1, 9))
def test_each_level(world):
    """Two levels at a time: neither emulator holds the GIL while it runs a frame."""
    levels = [level for level in LEVELS if level.world == world]
    with ThreadPoolExecutor(2) as threads:
        for level, played in [(level, threads.submit(_play_level, level)) for level in levels]:
            assert played.exception() is None, f"{level.world}-{level.stage}: {played.exception()}"


def _compare_decisions(level, num_decisions, seed):
    """As in training: four frames a step, of which ours draws only the last, with the rules, deaths and restarts."""
    rng = np.random.default_rng(seed)
    ours, theirs = Games("fast", level), Games("nes_py", level)
    try:
        held = 0
        for decision in range(num_decisions):
            if rng.random() < 0.3:
                held = int(rng.choice(BUTTONS))
            if ours.outcomes.done[0] or rng.random() < 0.01:
                idle_frames = int(rng.integers(31))
                ours.restart(idle_frames)
                theirs.restart(idle_frames)
            else:
                delays = [int(rng.integers(5))] if decision % 2 else None  # buttons that come late
                ours.play(held, num_frames=4, delays=delays)
                theirs.play(held, num_frames=4, delays=delays)
            assert ours.outcome() == theirs.outcome(), f"{level}, decision {decision}"
            assert ours.outcomes.cell[0] == theirs.outcomes.cell[0], f"{level}, decision {decision}"
            assert ours.ram() == theirs.ram(), f"{level}, decision {decision}"
            difference = np.abs(ours.pictures.astype(int) - theirs.pictures.astype(int))
            assert difference.max() <= 1, f"{level}, decision {decision}"
    finally:
        theirs.emulator.close()


@pytest.mark.parametrize("world", range(1, 9))
def test_decisions_of_four_frames_in_each_level(world):
    for level in LEVELS:
        if level.world == world:
            _compare_decisions(level, 25, seed=world)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: f"{level.world}-{level.stage}")
def test_decisions_of_four_frames_in_each_level_for_long(level):
    _compare_decisions(level, 1_000, seed=3)


def test_a_cleared_level_and_the_way_into_the_next(pair):
    pair.enter(Level(1, 1))
    _play_script(pair, "1-1", frames_after=700)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_flags_pipes_water_castles_and_bowser(pair, name):
    pair.enter(Level(*map(int, name.split("-"))))
    _play_script(pair, name, frames_after=1500)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: f"{level.world}-{level.stage}")
def test_each_level_for_long(pair, level, seed):
    pair.enter(level)
    _play_at_random(pair, 7700, seed)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_end_of_a_frame_passes_through_the_whole_picture(pair):
    """The end of a frame moves by 1.5 dots a frame: after 60,000 of them it has been everywhere."""
    lines = set()
    for _ in range(61_000):
        pair.advance(0)
        console = pair.ours.consoles[0]
        lines.add(int(console["dot"] - console["picture_start"]) // 341)
    assert lines == set(range(262))


@pytest.mark.parametrize("saved_after", [1, 300])
def test_a_copied_state_continues_identically(saved_after):
    console = FastConsole()
    rng = np.random.default_rng(0)
    buttons = rng.choice(BUTTONS, size=saved_after + 300)
    for button in buttons[:saved_after]:
        console.advance(button)
    saved = console.consoles.copy()
    ends = []
    for _ in range(2):
        console.consoles[:] = saved
        for button in buttons[saved_after:]:
            console.advance(button)
        ends.append((console.consoles.tobytes(), console.screen.tobytes()))
    assert ends[0] == ends[1]


def test_the_reduced_picture_is_that_of_opencv():
    rng = np.random.default_rng(0)
    tiles = np.kron(rng.integers(0, 256, (30, 32)), np.ones((8, 8))).astype(np.uint8)
    noise = rng.integers(0, 256, (240, 256)).astype(np.uint8)
    for screen in (tiles, noise, np.full_like(noise, 255), np.zeros_like(noise)):
        reduced = np.empty((84, 84), np.uint8)
        reduce_screen(screen, reduced)
        opencv = cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)
        assert np.abs(reduced.astype(int) - opencv.astype(int)).max() <= 1


def test_a_frame_drawn_in_greys_equals_the_coloured_one_turned_grey(pair):
    grey = FastConsole()
    for frame in range(200):
        buttons = rules.START if 100 < frame < 110 else 0
        grey.advance(buttons)
        pair.advance(buttons)
    assert np.array_equal(grey.screen, grey_levels(pair.theirs.screen_bgrx[..., 2::-1]))
