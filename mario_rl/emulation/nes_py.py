"""nes-py behind the Emulator protocol: the reference that the fast emulator is compared with.

Only nes-py's console is used, never the gym environment on top of it: that one computes a dozen properties and an info
dict a frame, and the rules need fifteen bytes of RAM. nes-py has one place to keep a state and no way to store it, so a
saved game is its buttons since the level's first frame, which are played again; and a game has one console for each
level that it has played.
"""

import contextlib
import io
import json
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from mario_rl.emulation import rules
from mario_rl.emulation.emulator import NO_RESTART, SCREEN_HEIGHT, SCREEN_WIDTH, Outcomes
from mario_rl.emulation.greys import RED_SHARE
from mario_rl.emulation.rom import find_rom
from mario_rl.emulation.rules import NOOP, Level
from mario_rl.experience import FRAME_SIZE, FrameArray


class NesPyConsole:
    """One NES with the game inserted, as at power-on."""

    def __init__(self) -> None:
        # gym 0.26 prints a notice about its own end of life on import, which tells a user of this project nothing.
        with contextlib.redirect_stderr(io.StringIO()):
            import nes_py
        self._console: Any = nes_py.NESEnv(str(find_rom()))
        self._console.reset()
        self.advance = self._console._frame_advance  # one frame with these buttons held
        self.backup = self._console._backup
        self.restore = self._console._restore
        self.ram: npt.NDArray[np.uint8] = self._console.ram  # live
        # nes-py shows its picture as a reversed view of BGRx memory. OpenCV wants that memory itself, which saves a
        # 184 KB copy a picture.
        reversed_view = self._console.screen[:, :, ::-1]
        assert reversed_view.strides == (SCREEN_WIDTH * 4, 4, 1), "nes-py has changed its picture layout"
        self.screen_bgrx = np.lib.stride_tricks.as_strided(
            reversed_view, shape=(SCREEN_HEIGHT, SCREEN_WIDTH, 4), strides=(SCREEN_WIDTH * 4, 4, 1)
        )

    def close(self) -> None:
        """Free the console. nes-py does not free it on garbage collection."""
        self._console.close()


class _Game:
    """A level that is restarted, played frame by frame, and ends by death or flag."""

    def __init__(self, level: Level) -> None:
        self._consoles: dict[Level, NesPyConsole] = {}  # each with its level's start in its one place for a state
        self.next_level = level
        self.log: list[tuple[int, int]] = []  # (buttons, frames) since the level's first frame
        self.restart(0)

    def restart(self, idle_frames: int) -> None:
        self.level = self.next_level
        if self.level not in self._consoles:
            self._consoles[self.level] = _begin_level(self.level)
        self.console = self._consoles[self.level]
        # A memoryview hands out plain ints, twice as fast as NumPy scalars.
        self.ram = self.console.ram.data
        self.console.restore()
        self.log.clear()
        self._last_x, self._last_time = rules.player_x(self.ram), rules.clock(self.ram)
        if idle_frames:
            self.play(NOOP, idle_frames)

    def play(self, buttons: int, num_frames: int) -> tuple[int, bool, bool]:
        """(raw reward, done, flag)"""
        self.log.append((buttons, num_frames))
        ram, advance = self.ram, self.console.advance
        total = 0
        for _ in range(num_frames):
            advance(buttons)
            x, time, dying = rules.player_x(ram), rules.clock(ram), rules.is_dying(ram)
            total += rules.frame_reward(x - self._last_x, time - self._last_time, dying)
            self._last_x, self._last_time = x, time
            flag = rules.is_flag_reached(ram)
            if dying or flag:
                return total, True, flag
            rules.hasten_area_change(ram)
            while rules.is_busy(ram):
                ram[rules.PRELEVEL_TIMER] = 0
                advance(NOOP)
        return total, False, False

    def play_late(self, earlier: int, delay: int, buttons: int, num_frames: int) -> tuple[int, bool, bool]:
        """Hold the earlier buttons for `delay` of the frames: (raw reward, done, flag)"""
        first, done, flag = self.play(earlier, delay) if delay else (0, False, False)
        if done or delay == num_frames:
            return first, done, flag
        reward, done, flag = self.play(buttons, num_frames - delay)
        return first + reward, done, flag

    def close(self) -> None:
        self.ram.release()
        for console in self._consoles.values():
            console.close()


def _begin_level(level: Level) -> NesPyConsole:
    console = NesPyConsole()
    rules.skip_start_screen(console.ram.data, console.advance, level)
    console.backup()
    return console


class NesPyEmulator:
    """A batch of nes-py consoles, played one after the other."""

    def __init__(self, levels: Sequence[Level]) -> None:
        self.num_games = len(levels)
        self.outcomes = Outcomes.empty(self.num_games)
        self._games = [_Game(level) for level in levels]
        self._earlier = np.zeros(self.num_games, np.uint8)  # buttons of the last step

    def reset(self) -> None:
        """Put every game back to the level's first frame."""
        for game in self._games:
            game.restart(0)

    def set_level(self, game: int, level: Level) -> None:
        """Have a game play this level from its next restart on."""
        self._games[game].next_level = level

    def step(
        self,
        buttons: npt.NDArray[np.uint8],
        num_frames: int,
        restarts: npt.NDArray[np.int32],
        pictures: FrameArray,
        tick: int,
        delays: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """Play or restart every game, then draw it at `tick`."""
        outcomes = self.outcomes
        for number, game in enumerate(self._games):
            if restarts[number] == NO_RESTART:
                delay = 0 if delays is None else int(delays[number])
                result = game.play_late(int(self._earlier[number]), delay, int(buttons[number]), num_frames)
            else:
                game.restart(int(restarts[number]))
                result = (0, False, False)
            outcomes.reward[number], outcomes.done[number], outcomes.flag[number] = result
            outcomes.x[number] = rules.distance(game.ram)
            outcomes.cell[number] = rules.FLAG_CELL if outcomes.flag[number] else rules.cell(game.ram)
        self._earlier[:] = buttons
        self.draw(pictures, tick)

    def draw(self, pictures: FrameArray, tick: int) -> None:
        """Draw every game as it is now, grey and resized."""
        for game, picture in zip(self._games, pictures[:, tick], strict=True):
            # `greys.grey_levels` with fewer passes over the screen; differences below 0 are 0.
            blue, green, red, _ = cv2.split(game.console.screen_bgrx)
            warm = cv2.max(cv2.convertScaleAbs(red, alpha=RED_SHARE), green)
            grey = cv2.subtract(warm, cv2.subtract(blue, warm))
            cv2.resize(grey, (FRAME_SIZE, FRAME_SIZE), dst=picture, interpolation=cv2.INTER_AREA)

    def ram(self, game: int) -> npt.NDArray[np.uint8]:
        """A game's memory, live."""
        return self._games[game].console.ram

    @property
    def state_format(self) -> str:
        """Levels and buttons."""
        return "nes_py, levels"

    def state(self) -> bytes:
        """Every game's level, and its buttons since that level's first frame."""
        return json.dumps([(game.level, game.log) for game in self._games]).encode()

    def load_state(self, state: bytes) -> None:
        """Play the saved buttons again; the game is deterministic."""
        for game, (level, log) in zip(self._games, json.loads(state), strict=True):
            game.next_level = Level(*level)
            game.restart(0)
            for buttons, num_frames in log:
                game.play(buttons, num_frames)

    @property
    def game_type(self) -> None:
        """nes-py has one saved state a console, which is the level's start."""
        return None

    def save_games(self, games: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        """Not possible."""
        raise NotImplementedError

    def load_game(self, game: int, saved: np.void, pictures: FrameArray, tick: int) -> None:
        """Not possible."""
        raise NotImplementedError

    def close(self) -> None:
        """Free the consoles."""
        for game in self._games:
            game.close()
