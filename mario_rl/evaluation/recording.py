"""Films of a policy, or of what a search found: one episode in colour.

Two games run side by side on the same buttons. A fast emulator, as in training, gives the grey pictures on which the
network decides, and says when the episode is over; a console in colour is played frame by frame for the film.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mario_rl.agent.acting import ActingNetwork
from mario_rl.agent.network import QNetwork
from mario_rl.emulation import rules
from mario_rl.emulation.emulator import NO_RESTART
from mario_rl.emulation.fast.colours import RGB
from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ACTION_SETS, DOWN, LEFT, NOOP, RIGHT, UP, A, B
from mario_rl.environment.player import Player
from mario_rl.environment.stacks import PictureStacks
from mario_rl.environment.task import PlayRules
from mario_rl.evaluation.films import FRAMES_PER_SECOND, FilmError, Picture, open_film
from mario_rl.experience import FRAME_SIZE

# The film goes on after the episode: until the flag is down, or until one has seen what Mario died of.
FRAMES_AFTER_FLAG = 2 * FRAMES_PER_SECOND
FRAMES_AFTER_FAILURE = 42  # 0.7 s
MAX_SCALE = 8

# The console's colours, and ours for the joypad.
_BOX, _DIM, _LIT, _RED = range(len(RGB), len(RGB) + 4)
PALETTE = np.vstack([RGB, np.array([(16, 16, 24), (76, 76, 88), (252, 252, 252), (248, 56, 0)], np.uint8)])

# A letter for each button's pixels, c for the middle of the cross.
_JOYPAD = """
....UUU............................
....UUU..........BBBBB......AAAAA..
....UUU.........BBBBBBB....AAAAAAA.
....UUU........BBB..BBBB..AAAA.AAAA
LLLLcccRRRR....BBB.B.BBB..AAA.A.AAA
LLLLcccRRRR....BBB..BBBB..AAA...AAA
LLLLcccRRRR....BBB.B.BBB..AAA.A.AAA
....DDD........BBB..BBBB..AAA.A.AAA
....DDD.........BBBBBBB....AAAAAAA.
....DDD..........BBBBB......AAAAA..
....DDD............................
"""
_PARTS = np.array([list(row) for row in _JOYPAD.split()])  # [11, 35]
_BUTTONS = {LEFT: "L", RIGHT: "R", UP: "U", DOWN: "D", A: "A", B: "B"}

_CHARACTERS = "0123456789.-Q"
_GLYPHS = """
.###. ..#.. .###. .###. ...#. ##### .###. ##### .###. .###. ..... ..... .###.
#...# .##.. #...# #...# ..##. #.... #.... ....# #...# #...# ..... ..... #...#
#..## ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...# ..... ..... #...#
#.#.# ..#.. ..##. ..##. #..#. ....# ####. ..#.. .###. .#### ..... .###. #...#
##..# ..#.. .#... ....# ##### ....# #...# .#... #...# ....# ..... ..... #.#.#
#...# ..#.. #.... #...# ...#. #...# #...# .#... #...# ....# .##.. ..... #..#.
.###. .###. ##### .###. ...#. .###. .###. .#... .###. .###. .##.. ..... .##.#
"""
_GLYPH_HEIGHT, _GLYPH_WIDTH, _GLYPH_STEP = 7, 5, 6
_PIXELS = np.array([list(row) for row in _GLYPHS.strip().split("\n")]) == "#"

# Over the ground, where it hides least.
_BOX_AREA = slice(221, 236), slice(4, 92)
_PARTS_AREA = slice(2, 13), slice(2, 37)
_TEXT_TOP, _TEXT_LEFT = 4, 44


class Recorded(NamedTuple):
    """The episode that a film shows."""

    cleared: bool
    distance: int  # furthest x
    decisions: int
    frames: int  # of the game, with the idle ones and those after the end; a GIF shows every second


def record(
    network: QNetwork, play: PlayRules, level: Level, out: Path, *, idle_frames: int = 0, scale: int = 2
) -> Recorded:
    """Film one greedy episode; `network` is on the CPU and in eval mode."""
    assert not network.training, "BatchNorm would normalise by a batch of one"
    return film_shots(play_greedily(network, play, level, idle_frames), level, out, scale)


def record_buttons(play: PlayRules, level: Level, out: Path, idle_frames: int, buttons: list[int]) -> Recorded:
    """Film an episode whose buttons are known, one entry a decision."""
    patient = replace(play, no_progress_decisions=len(buttons) + 1)  # random play may stand about for long
    return film_shots(play_buttons(patient, level, idle_frames, buttons), level, out)


def film_shots(shots: "Iterable[Shot]", level: Level, out: Path, scale: int = 2) -> Recorded:
    """Film an episode of this level."""
    if not 1 <= scale <= MAX_SCALE:
        raise FilmError(f"A film cannot be {scale} times the game's size: give a scale from 1 to {MAX_SCALE}.")
    with open_film(out, PALETTE, scale) as film:
        game = ColourGame(level)
        num_frames = 0
        for shot in shots:
            for screen in game.play(shot.buttons, shot.num_frames):
                film.add(with_joypad(screen, shot.buttons, shot.value))
                num_frames += 1
        for _ in range(FRAMES_AFTER_FLAG if shot.cleared else FRAMES_AFTER_FAILURE):
            film.add(with_joypad(game.advance(NOOP), NOOP, None))
            num_frames += 1
    return Recorded(shot.cleared, shot.distance, shot.num_decisions, num_frames)


class Shot(NamedTuple):
    """Buttons that were held, and how the episode stands after them."""

    buttons: int
    num_frames: int  # at most; fewer where the episode ends
    value: float | None  # what the network expected; None where it was not asked
    ram: npt.NDArray[np.uint8]  # [2048] live
    cleared: bool
    distance: int
    num_decisions: int


# An action for the newest picture [1, 84, 84], and what the network expects of it.
Decide = Callable[[Player, npt.NDArray[np.uint8]], tuple[int, float | None]]


def play_greedily(network: QNetwork, play: PlayRules, level: Level, idle_frames: int) -> Iterator[Shot]:
    """One episode as evaluation plays it: the idle start, then a shot a decision."""
    acting, stacks = ActingNetwork(network), PictureStacks(1)

    def decide(player: Player, picture: npt.NDArray[np.uint8]) -> tuple[int, float | None]:
        stacks.push(picture, player.at_start)
        return acting.best_action(stacks.pictures())

    yield from _play(play, level, idle_frames, decide)


def play_buttons(play: PlayRules, level: Level, idle_frames: int, buttons: list[int]) -> Iterator[Shot]:
    """One episode whose buttons are known: the idle start, then a shot a decision."""
    actions = [ACTION_SETS[play.actions].index(held) for held in buttons]

    def decide(player: Player, _picture: npt.NDArray[np.uint8]) -> tuple[int, float | None]:
        return actions[min(int(player.num_decisions[0]), len(actions) - 1)], None

    yield from _play(play, level, idle_frames, decide)


def _play(play: PlayRules, level: Level, idle_frames: int, decide: "Decide") -> Iterator[Shot]:
    pictures = np.empty((1, 1, FRAME_SIZE, FRAME_SIZE), np.uint8)
    with closing(Player(play, [level])) as player:

        def shoot(action: int, restart: int, num_frames: int, value: float | None) -> tuple[Shot, bool]:
            """A tick, and whether the episode is over."""
            result = player.tick(np.array([action]), np.array([restart], np.int32), pictures, 0)
            figures = bool(player.cleared[0]), int(player.distances[0]), int(player.num_decisions[0])
            shot = Shot(int(player.held[0]), num_frames, value, player.emulator.ram(0), *figures)
            return shot, bool(result.over[0])

        shot, is_over = shoot(0, idle_frames, idle_frames, None)
        yield shot
        while not is_over:
            action, value = decide(player, pictures[:, 0])
            shot, is_over = shoot(action, NO_RESTART, play.frame_skip, value)
            yield shot


class ColourGame:
    """A game in colour by the emulators' rules, of which every single frame can be seen."""

    def __init__(self, level: Level) -> None:
        from mario_rl.emulation.fast.emulator import FastConsole  # numba's import takes half a second

        self._console = FastConsole(true_colours=True)
        self.ram = self._console.ram  # live
        rules.skip_start_screen(self.ram.data, self._console.advance, level)

    def advance(self, buttons: int) -> Picture:
        """One frame without the rules; the next one overwrites its picture."""
        self._console.advance(buttons)
        return self._console.screen

    def play(self, buttons: int, num_frames: int) -> Iterator[Picture]:
        """The frames of an emulator's step with these arguments, cut-scenes included."""
        ram = self.ram.data
        for _ in range(num_frames):
            yield self.advance(buttons)
            if rules.is_dying(ram) or rules.is_flag_reached(ram):
                return
            rules.hasten_area_change(ram)
            while rules.is_busy(ram):
                ram[rules.PRELEVEL_TIMER] = 0
                yield self.advance(NOOP)


def with_joypad(screen: Picture, buttons: int, value: float | None) -> Picture:
    """A copy of the screen with a joypad in its corner, held buttons lit, and beside it the value."""
    picture = screen.copy()
    box = picture[_BOX_AREA]
    box[:] = _BOX
    joypad = box[_PARTS_AREA]
    joypad[_PARTS != "."] = _DIM
    for button, letter in _BUTTONS.items():
        if buttons & button:
            joypad[np.char.equal(_PARTS, letter)] = _RED if button in (A, B) else _LIT
    text = "" if value is None else f"Q {value:.1f}"
    for place, character in enumerate(text):
        if character in _CHARACTERS:
            first, left = _CHARACTERS.index(character) * _GLYPH_STEP, _TEXT_LEFT + place * _GLYPH_STEP
            target = box[_TEXT_TOP : _TEXT_TOP + _GLYPH_HEIGHT, left : left + _GLYPH_WIDTH]
            target[_PIXELS[:, first : first + _GLYPH_WIDTH][:, : target.shape[1]]] = _LIT
    return picture
