"""The rules of gym-super-mario-bros 7.4.0 about one frame: reward, end of the episode, and writes that skip cut-scenes.

They apply after *every* frame, not once a decision: a clamp or a timer write that comes three frames late gives another
game. They are plain Python functions over the game's RAM. Those about a frame call no other of them, so that the fast
emulator can compile them as they are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

Ram: TypeAlias = Any  # 2 KB, indexed: a memoryview, or an array in compiled code

NOOP, START = 0x00, 0x08  # joypad bytes

# RAM addresses, as the game's community has named them.
PLAYER_STATE = 0x000E
ENEMY_TYPES = 0x0016  # five of them
FLOAT_STATE = 0x001D
X_PAGE, X_IN_PAGE = 0x006D, 0x0086
Y_VIEWPORT, Y_IN_VIEWPORT = 0x00B5, 0x00CE
AREA_DATA = 0x00E7  # two bytes: where in the ROM the area's objects are described
LAID_OUT_PAGE = 0x0725  # up to which page the game has laid out the level, mostly the one behind Mario's
LOOP_COMMAND = 0x0745  # not 0 while a maze is about to decide whether it sends Mario back
LOOP_COUNTERS = 0x06D9  # two of them: how far Mario has come in a maze that sends him back, and how much was right
CHANGE_AREA_TIMER = 0x06DE
STAGE, WORLD, AREA = 0x075C, 0x075F, 0x0760
GAME_MODE = 0x0770
PRELEVEL_TIMER = 0x07A0
TIME_DIGITS = 0x07F8

STATE_DEAD, STATE_DYING = 0x06, 0x0B
BOWSER, FLAGPOLE = 0x2D, 0x31
SLIDING_DOWN_THE_POLE = 3
END_OF_WORLD = 2

MAX_X_STEP = 5  # pixels a frame; anything larger is a teleport and earns nothing
DEATH_PENALTY = -25
REWARD_LIMIT = 15  # a frame's reward is clipped to +-15
# These worlds have a hidden pre-stage area after their first stage, so later stages have a higher area number.
WORLDS_WITH_EXTRA_AREA = frozenset((1, 2, 4, 7))


FLAG_CELL = 0  # no place in any level has this number
AREA_UNIT, LEVEL_UNIT = 2**28, 2**44  # what is left of a cell's number after a division by these is its area, its level


class Level(NamedTuple):
    """Where a game begins."""

    world: int  # 1-8
    stage: int  # 1-4

    def __str__(self) -> str:
        return f"{self.world}-{self.stage}"


def player_x(ram: Ram) -> int:
    """Mario's distance from the level's start, in pixels, as gym-super-mario-bros counts it."""
    return ram[X_PAGE] * 256 + ram[X_IN_PAGE]


def distance(ram: Ram) -> int:
    """Mario's distance from the level's start; below zero where a maze has put him back to before it."""
    return (ram[X_PAGE] * 256 + ram[X_IN_PAGE] + 0x8000) % 0x10000 - 0x8000


def cell(ram: Ram) -> int:
    """The place where Mario is, as one number: level, area, position in a maze, and 16 x 16 pixels of the area.

    An area is told by where its description lies. The area's number (0x0750) would be wrong: that is where the next
    pipe leads. A place in a maze counts as often as its loops can be told apart: the way on is another each time. And
    it counts anew where Mario can be before, while and after the maze decides whether it sends him back: else a wrong
    passage would look as if it led on.
    """
    level = (ram[WORLD] & 7) * 4 + (ram[STAGE] & 3) + 1
    area = ram[AREA_DATA + 1] * 256 + ram[AREA_DATA]
    undecided = 64 if ram[LOOP_COMMAND] else 0
    pages_ahead = (ram[LAID_OUT_PAGE] + 3 - ram[X_PAGE]) & 3
    loop = undecided + (ram[LOOP_COUNTERS] & 3) * 16 + pages_ahead * 4 + (ram[LOOP_COUNTERS + 1] & 3)
    x = ram[X_PAGE] * 16 + ram[X_IN_PAGE] // 16
    y = (ram[Y_VIEWPORT] & 15) * 16 + ram[Y_IN_VIEWPORT] // 16
    return (((level * 65536 + area) * 256 + loop) * 4096 + x) * 256 + y


def clock(ram: Ram) -> int:
    """The game's clock."""
    return ram[TIME_DIGITS] * 100 + ram[TIME_DIGITS + 1] * 10 + ram[TIME_DIGITS + 2]


def is_dying(ram: Ram) -> bool:
    """Whether Mario has lost this life: hit, fallen, or already gone."""
    state = ram[PLAYER_STATE]
    return state == STATE_DYING or state == STATE_DEAD or ram[Y_VIEWPORT] > 1


def is_flag_reached(ram: Ram) -> bool:
    """Whether the level is cleared."""
    if ram[GAME_MODE] == END_OF_WORLD:
        return True
    # Sliding counts only with a flagpole or Bowser about: a vine sets the same float state.
    if ram[FLOAT_STATE] == SLIDING_DOWN_THE_POLE:
        for enemy in range(ENEMY_TYPES, ENEMY_TYPES + 5):
            if ram[enemy] == BOWSER or ram[enemy] == FLAGPOLE:
                return True
    return False


def is_busy(ram: Ram) -> bool:
    """Whether Mario does not listen to the joypad: pipes, vines, automatic walks, loading, the end of a world."""
    state = ram[PLAYER_STATE]
    return state <= 0x05 or state == 0x07 or ram[GAME_MODE] == END_OF_WORLD


def frame_reward(x_step: int, time_step: int, dying: bool) -> int:
    """The raw reward of one frame."""
    reward = x_step if -MAX_X_STEP <= x_step <= MAX_X_STEP else 0
    reward += min(time_step, 0)  # the clock only falls; a rise is a restart
    if dying:
        reward += DEATH_PENALTY
    return max(-REWARD_LIMIT, min(REWARD_LIMIT, reward))


def hasten_area_change(ram: Ram) -> None:
    """Let a pipe or a vine lead on at once."""
    if 1 < ram[CHANGE_AREA_TIMER] < 255:
        ram[CHANGE_AREA_TIMER] = 1


def skip_start_screen(ram: Ram, advance: Callable[[int], None], level: Level) -> None:
    """From power-on: press start until the chosen level runs, then until its clock has ticked once."""
    area = level.stage + 1 if level.world in WORLDS_WITH_EXTRA_AREA and level.stage >= 2 else level.stage
    advance(START)
    advance(NOOP)
    while clock(ram) == 0:
        advance(START)
        ram[WORLD], ram[STAGE], ram[AREA] = level.world - 1, level.stage - 1, area - 1
        advance(NOOP)
        ram[PRELEVEL_TIMER] = 0
    last_time = clock(ram)
    while clock(ram) >= last_time:
        last_time = clock(ram)
        advance(START)
        advance(NOOP)
