"""Our emulator: a batch of games in one array of states, stepped by one compiled call that holds no GIL.

The frames, the rules of gym-super-mario-bros after each of them, and the reduced picture are all inside that call. With
several threads the games are divided among them; nothing is shared but the read-only cartridge.
"""

import functools
import hashlib
from collections.abc import Sequence
from itertools import pairwise
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import numpy as np
import numpy.typing as npt

from mario_rl.emulation import rules
from mario_rl.emulation.emulator import NO_RESTART, Outcomes
from mario_rl.emulation.fast.canvas import CANVAS, Canvas
from mario_rl.emulation.fast.cartridge import Cartridge, insert_cartridge
from mario_rl.emulation.fast.colours import COLOUR_NUMBERS, GREYS
from mario_rl.emulation.fast.console import CONSOLE, Console, power_on
from mario_rl.emulation.fast.frame import run_frame
from mario_rl.emulation.fast.reducing import reduce_screen
from mario_rl.emulation.rom import find_rom, read_rom
from mario_rl.emulation.rules import FLAG_CELL, NOOP, PRELEVEL_TIMER, Level
from mario_rl.experience import FRAME_SIZE, FrameArray
from mario_rl.machine.compiling import compiled

GAMES_PER_PART = 4  # as good as 16 with two threads, and better than 64: the faster thread plays more of them
SAVED_GAME = np.dtype([("console", CONSOLE), ("picture", np.uint8, (FRAME_SIZE, FRAME_SIZE))])
STRAYED = 'the game did something that the fast emulator does not know; set EMULATOR = "nes_py"'

player_x = compiled(rules.player_x)
distance = compiled(rules.distance)
cell = compiled(rules.cell)
clock = compiled(rules.clock)
is_dying = compiled(rules.is_dying)
is_flag_reached = compiled(rules.is_flag_reached)
is_busy = compiled(rules.is_busy)
frame_reward = compiled(rules.frame_reward)
hasten_area_change = compiled(rules.hasten_area_change)


@compiled
def step_games(
    consoles: npt.NDArray[np.void],  # [games]
    latest: FrameArray,  # [games, 84, 84] the picture of each
    level_starts: npt.NDArray[np.void],  # [games]
    start_pictures: FrameArray,  # [games, 84, 84]
    cartridge: Cartridge,  # [1]
    canvas: Canvas,  # [1] this thread's own
    earlier: npt.NDArray[np.uint8],
    delays: npt.NDArray[np.int32],
    buttons: npt.NDArray[np.uint8],
    num_frames: int,
    restarts: npt.NDArray[np.int32],
    pictures: FrameArray,
    tick: int,
    outcomes: Outcomes,
    first: int,
    last: int,
) -> bool:
    """Step games [first, last); False when one of them did what is not emulated."""
    before = np.empty(1, CONSOLE)
    good = True
    for game in range(first, last):
        reward, done, flag = 0, False, False
        if restarts[game] == NO_RESTART:
            reward, done, flag = play_frames(
                consoles,
                game,
                before,
                cartridge[0],
                canvas[0],
                earlier[game],
                delays[game],
                buttons[game],
                num_frames,
                True,
            )
            reduce_screen(canvas[0].screen, latest[game])
        elif restarts[game] == 0:
            consoles[game] = level_starts[game]
            _copy_picture(start_pictures[game], latest[game])
        else:
            consoles[game] = level_starts[game]
            play_frames(consoles, game, before, cartridge[0], canvas[0], NOOP, 0, NOOP, restarts[game], True)
            reduce_screen(canvas[0].screen, latest[game])
        outcomes.reward[game] = reward
        outcomes.done[game] = done
        outcomes.flag[game] = flag
        outcomes.x[game] = distance(consoles[game].ram)
        outcomes.cell[game] = FLAG_CELL if flag else cell(consoles[game].ram)
        _copy_picture(latest[game], pictures[game, tick])
        good = good and not consoles[game].strayed
    return good


@compiled
def _copy_picture(source: FrameArray, target: FrameArray) -> None:
    # Loops, because numba copies a slice byte by byte; and no slices of rows, because each would count references, and
    # two threads that count in the same place slow each other down.
    for y in range(FRAME_SIZE):
        for x in range(FRAME_SIZE):
            target[y, x] = source[y, x]


@compiled
def play_frames(
    consoles: npt.NDArray[np.void],
    game: int,
    before: npt.NDArray[np.void],
    cartridge: Cartridge,
    canvas: Canvas,
    earlier: int,
    delay: int,
    buttons: int,
    num_frames: int,
    drawing: bool,
) -> tuple[int, bool, bool]:
    """Hold the buttons for `num_frames`, or until the game is done: (raw reward, done, flag).

    For the first `delay` of them, the earlier ones are held instead.

    Only the last frame is drawn, if any. Which one that is turns out differently when Mario dies, or when a cut-scene
    follows; then the state before it is taken up again and the frame is run once more, with drawing.
    """
    console: Console = consoles[game]
    ram = console.ram
    total = 0
    done = flag = False
    held, drawn = buttons, drawing
    for frame in range(num_frames):
        held, drawn = earlier if frame < delay else buttons, drawing and frame == num_frames - 1
        if drawing and not drawn:
            before[0] = console
        run_frame(console, cartridge, canvas, held, drawn)
        x, time, dying = player_x(ram), clock(ram), is_dying(ram)
        total += frame_reward(x - console.last_x, time - console.last_time, dying)
        console.last_x, console.last_time = x, time
        flag = is_flag_reached(ram)
        done = dying or flag
        if done:
            break
        hasten_area_change(ram)
        while is_busy(ram) and not console.strayed:
            ram[PRELEVEL_TIMER] = 0
            if drawing:
                before[0] = console
            held, drawn = NOOP, False
            run_frame(console, cartridge, canvas, NOOP, False)
    if drawing and not drawn:
        x, time = console.last_x, console.last_time
        consoles[game] = before[0]
        run_frame(console, cartridge, canvas, held, True)
        console.last_x, console.last_time = x, time
    return total, done, flag


@compiled
def advance_console(consoles: npt.NDArray[np.void], cartridge: Cartridge, canvas: Canvas, buttons: int) -> None:
    """Run and draw one frame of the first console, without the rules."""
    run_frame(consoles[0], cartridge[0], canvas[0], buttons, True)


class FastConsole:
    """One console from power-on, without the game's rules."""

    def __init__(self, *, true_colours: bool = False) -> None:
        rom = read_rom(find_rom())
        self.cartridge = insert_cartridge(rom, COLOUR_NUMBERS if true_colours else GREYS)
        self.canvas = np.zeros(1, CANVAS)
        self.consoles = np.zeros(1, CONSOLE)
        power_on(self.consoles, int.from_bytes(rom.program[0x7FFC:0x7FFE], "little"))
        # Both are live. The screen holds grey levels or, with `true_colours`, the colours' numbers.
        self.ram: npt.NDArray[np.uint8] = self.consoles["ram"][0]
        self.screen: npt.NDArray[np.uint8] = self.canvas["screen"][0]

    def advance(self, buttons: int) -> None:
        """Run one frame with these buttons held."""
        advance_console(self.consoles, self.cartridge, self.canvas, buttons)
        if self.consoles["strayed"][0]:
            raise RuntimeError(STRAYED)


@functools.cache
def _begin_level(level: Level) -> tuple[npt.NDArray[np.void], FrameArray]:
    """The console at a level's first frame, and its picture."""  # [1], [84, 84]
    console = FastConsole()
    rules.skip_start_screen(console.ram.data, console.advance, level)
    console.consoles["last_x"], console.consoles["last_time"] = player_x(console.ram), clock(console.ram)
    picture = np.empty((FRAME_SIZE, FRAME_SIZE), np.uint8)
    reduce_screen(console.screen, picture)
    return console.consoles, picture


class FastEmulator:
    """A batch of games, each of whatever level it was given."""

    def __init__(self, levels: Sequence[Level], num_threads: int = 1) -> None:
        self.num_games = num_games = len(levels)
        self.outcomes = Outcomes.empty(num_games)
        self._cartridge = FastConsole().cartridge
        self._level_starts = np.empty(num_games, CONSOLE)
        self._start_pictures = np.empty((num_games, FRAME_SIZE, FRAME_SIZE), np.uint8)
        for game, level in enumerate(levels):
            self.set_level(game, level)
        self._consoles = np.empty(num_games, CONSOLE)
        self._latest = np.empty((num_games, FRAME_SIZE, FRAME_SIZE), np.uint8)
        self._earlier = np.zeros(num_games, np.uint8)  # buttons of the last step
        self._on_time = np.zeros(num_games, np.int32)
        self.reset()
        # Games are divided into small parts, so that whichever thread is faster plays more of them.
        num_threads = min(num_threads, num_games)
        num_parts = 1 if num_threads == 1 else max(num_threads, num_games // GAMES_PER_PART)
        self._parts = list(pairwise(np.linspace(0, num_games, num_parts + 1).astype(int).tolist()))
        self._unplayed: SimpleQueue[tuple[int, int]] = SimpleQueue()
        self._calls: SimpleQueue[tuple[tuple[Any, ...], tuple[Any, ...]] | None] = SimpleQueue()
        self._results: SimpleQueue[bool | BaseException] = SimpleQueue()
        self._canvas = np.zeros(1, CANVAS)
        self._threads = [Thread(target=self._answer_calls, daemon=True) for _ in range(num_threads - 1)]
        for thread in self._threads:
            thread.start()

    def reset(self) -> None:
        """Put every game back to its level's first frame."""
        self._consoles[:] = self._level_starts
        self._latest[:] = self._start_pictures

    def set_level(self, game: int, level: Level) -> None:
        """Have a game play this level from its next restart on."""
        self._level_starts[game : game + 1], self._start_pictures[game] = _begin_level(level)

    def step(
        self,
        buttons: npt.NDArray[np.uint8],
        num_frames: int,
        restarts: npt.NDArray[np.int32],
        pictures: FrameArray,
        tick: int,
        delays: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """Play or restart every game, then draw it at `tick`: one compiled call, or one a thread."""
        games = (self._consoles, self._latest, self._level_starts, self._start_pictures, self._cartridge)
        held = (self._earlier, self._on_time if delays is None else delays, buttons)
        call = (games, (*held, num_frames, restarts, pictures, tick, self.outcomes))
        for part in self._parts:
            self._unplayed.put(part)
        for _ in self._threads:
            self._calls.put(call)
        try:
            good = self._play_parts(*call, self._canvas)
        finally:
            results = [self._results.get() for _ in self._threads]
        for result in results:
            if isinstance(result, BaseException):
                raise result
        if not (good and all(results)):
            raise RuntimeError(STRAYED)
        self._earlier[:] = buttons

    def draw(self, pictures: FrameArray, tick: int) -> None:
        """Draw every game as it is now."""
        pictures[:, tick] = self._latest

    def ram(self, game: int) -> npt.NDArray[np.uint8]:
        """A game's memory, live."""
        memory: npt.NDArray[np.uint8] = self._consoles["ram"][game]
        return memory

    @property
    def state_format(self) -> str:
        """Changes whenever a state's fields do."""
        return f"fast {hashlib.sha256(repr(CONSOLE.descr).encode()).hexdigest()[:16]}"

    def state(self) -> bytes:
        """All games, as they lie in memory, and their pictures."""
        return self._consoles.tobytes() + self._latest.tobytes()

    def load_state(self, state: bytes) -> None:
        """Continue from a saved state."""
        consoles, latest = state[: self._consoles.nbytes], state[self._consoles.nbytes :]
        self._consoles[:] = np.frombuffer(consoles, CONSOLE)
        self._latest[:] = np.frombuffer(latest, np.uint8).reshape(self._latest.shape)

    @property
    def game_type(self) -> "np.dtype[np.void]":
        """A console and its picture."""
        return SAVED_GAME

    def save_games(self, games: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        """These games as they are now."""
        saved = np.empty(len(games), SAVED_GAME)
        saved["console"], saved["picture"] = self._consoles[games], self._latest[games]
        return saved

    def load_game(self, game: int, saved: np.void, pictures: FrameArray, tick: int) -> None:
        """Put a game to a saved moment."""
        self._consoles[game], self._latest[game] = saved["console"], saved["picture"]
        self.outcomes.x[game], self.outcomes.cell[game] = distance(self.ram(game)), cell(self.ram(game))
        pictures[game, tick] = saved["picture"]

    def close(self) -> None:
        """End the threads."""
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()

    def _play_parts(self, games: tuple[Any, ...], task: tuple[Any, ...], canvas: Canvas) -> bool:
        """Play part after part until none is left."""
        step: Any = step_games
        good = True
        while True:
            try:
                first, last = self._unplayed.get_nowait()
            except Empty:
                return good
            good = step(*games, canvas, *task, first, last) and good

    def _answer_calls(self) -> None:
        """A further thread's life. A pool of futures would take 0.1 ms longer to hand over a step."""
        canvas = np.zeros(1, CANVAS)
        while (call := self._calls.get()) is not None:
            try:
                self._results.put(self._play_parts(*call, canvas))
            except BaseException as error:  # the thread that waits for the result must not wait forever
                self._results.put(error)
