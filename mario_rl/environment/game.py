"""One level of Super Mario Bros on one emulator, with the per-frame rules of gym-super-mario-bros 7.4.0.

Those rules (reward, end of episode, and the RAM writes that skip cut-scenes) apply after *every* frame, not once a
decision: a clamp or a timer write that comes three frames late gives another game. `tests/environment/test_game.py`
drives this class and the original with the same buttons and compares them.
"""

from typing import NamedTuple

from mario_rl.emulation.nes_py import NesPyEmulator
from mario_rl.environment.actions import NOOP, START

# RAM addresses, as the game's community has named them.
PLAYER_STATE = 0x000E
ENEMY_TYPES = slice(0x0016, 0x001B)
FLOAT_STATE = 0x001D
X_PAGE, X_IN_PAGE = 0x006D, 0x0086
Y_VIEWPORT = 0x00B5
CHANGE_AREA_TIMER = 0x06DE
STAGE, WORLD, AREA = 0x075C, 0x075F, 0x0760
GAME_MODE = 0x0770
PRELEVEL_TIMER = 0x07A0
TIME_DIGITS = 0x07F8

STATE_DEAD, STATE_DYING = 0x06, 0x0B
# Pipes, vines, automatic walks, loading: Mario does not listen to the joypad.
BUSY_STATES = frozenset((0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x07))
BOWSER, FLAGPOLE = 0x2D, 0x31
SLIDING_DOWN_THE_POLE = 3
END_OF_WORLD = 2

MAX_X_STEP = 5  # pixels a frame; anything larger is a teleport and earns nothing
DEATH_PENALTY = -25
REWARD_LIMIT = 15  # a frame's reward is clipped to +-15
# These worlds have a hidden pre-stage area after their first stage, so later stages have a higher area number.
WORLDS_WITH_EXTRA_AREA = frozenset((1, 2, 4, 7))


class FrameResult(NamedTuple):
    """What one frame, or several held with the same buttons, did."""

    reward: float  # raw, summed over the frames
    done: bool  # dead, or at the flag
    flag: bool


class MarioGame:
    """A level that is restarted, played frame by frame, and ends by death or flag."""

    def __init__(self, world: int, stage: int) -> None:
        self._emulator = NesPyEmulator()
        self._ram = self._emulator.ram
        self._world, self._stage = world, stage
        self._area = stage + 1 if world in WORLDS_WITH_EXTRA_AREA and stage >= 2 else stage
        self._last_x = 0
        self._last_time = 0
        self._skip_start_screen()
        self._emulator.backup()
        self.draw = self._emulator.draw
        self.restart()

    @property
    def x(self) -> int:
        """Mario's distance from the level's start, in pixels."""
        return self._ram[X_PAGE] * 256 + self._ram[X_IN_PAGE]

    @property
    def time(self) -> int:
        """The game's clock."""
        hundreds, tens, ones = self._ram[TIME_DIGITS : TIME_DIGITS + 3]
        return hundreds * 100 + tens * 10 + ones

    def restart(self) -> None:
        """Back to the level's first frame."""
        self._emulator.restore()
        self._last_x = self.x
        self._last_time = self.time

    def play(self, buttons: int, num_frames: int) -> FrameResult:
        """Hold the buttons for so many frames, or until the episode is over."""
        ram, advance = self._ram, self._emulator.advance
        total = 0
        for _ in range(num_frames):
            advance(buttons)
            dying = ram[PLAYER_STATE] == STATE_DYING or ram[Y_VIEWPORT] > 1 or ram[PLAYER_STATE] == STATE_DEAD
            total += self._frame_reward(dying)
            flag = self._flag_reached()
            if dying or flag:
                return FrameResult(float(total), True, flag)
            self._skip_cut_scenes()
        return FrameResult(float(total), False, False)

    def close(self) -> None:
        """Free the emulator."""
        self._ram = memoryview(b"")
        self._emulator.close()

    def _frame_reward(self, dying: bool) -> int:
        x, time = self.x, self.time
        x_step = x - self._last_x
        time_step = time - self._last_time
        self._last_x, self._last_time = x, time
        reward = x_step if -MAX_X_STEP <= x_step <= MAX_X_STEP else 0
        reward += min(time_step, 0)  # the clock only falls; a rise is a restart
        if dying:
            reward += DEATH_PENALTY
        return max(-REWARD_LIMIT, min(REWARD_LIMIT, reward))

    def _flag_reached(self) -> bool:
        ram = self._ram
        if ram[GAME_MODE] == END_OF_WORLD:
            return True
        # Sliding counts only with a flagpole or Bowser about: a vine sets the same float state.
        if ram[FLOAT_STATE] != SLIDING_DOWN_THE_POLE:
            return False
        return any(enemy in (BOWSER, FLAGPOLE) for enemy in ram[ENEMY_TYPES])

    def _skip_cut_scenes(self) -> None:
        ram, advance = self._ram, self._emulator.advance
        if 1 < ram[CHANGE_AREA_TIMER] < 255:
            ram[CHANGE_AREA_TIMER] = 1
        while ram[PLAYER_STATE] in BUSY_STATES or ram[GAME_MODE] == END_OF_WORLD:
            ram[PRELEVEL_TIMER] = 0
            advance(NOOP)

    def _skip_start_screen(self) -> None:
        """Press start until the chosen level runs, then until its clock has ticked once."""
        ram, advance = self._ram, self._emulator.advance
        advance(START)
        advance(NOOP)
        while self.time == 0:
            advance(START)
            ram[WORLD], ram[STAGE], ram[AREA] = self._world - 1, self._stage - 1, self._area - 1
            advance(NOOP)
            ram[PRELEVEL_TIMER] = 0
        last_time = self.time
        while self.time >= last_time:
            last_time = self.time
            advance(START)
            advance(NOOP)
