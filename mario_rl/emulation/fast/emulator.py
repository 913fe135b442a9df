"""Our emulator: a batch of games in one array of states, stepped by one compiled call that holds no GIL.

The frames, the rules of gym-super-mario-bros after each of them, and the reduced picture are all inside that call. With
several threads the games are divided among them; nothing is shared but the read-only cartridge.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from mario_rl.emulation import rules
from mario_rl.emulation.emulator import NO_RESTART, Outcomes
from mario_rl.emulation.fast.cartridge import Cartridge, insert_cartridge
from mario_rl.emulation.fast.colours import COLOUR_NUMBERS, GREYS, RGB
from mario_rl.emulation.fast.compiling import compiled
from mario_rl.emulation.fast.console import CONSOLE, CORE_WORDS, Console, power_on
from mario_rl.emulation.fast.frame import run_frame
from mario_rl.emulation.fast.greys import reduce_screen
from mario_rl.emulation.rom import find_rom, read_rom
from mario_rl.emulation.rules import NOOP, PRELEVEL_TIMER, Level
from mario_rl.experience import FrameArray

player_x = compiled(rules.player_x)
clock = compiled(rules.clock)
is_dying = compiled(rules.is_dying)
is_flag_reached = compiled(rules.is_flag_reached)
is_busy = compiled(rules.is_busy)
frame_reward = compiled(rules.frame_reward)
hasten_area_change = compiled(rules.hasten_area_change)



@compiled
def step_games(
    consoles: npt.NDArray[np.void],  # [games]
    memories: npt.NDArray[np.uint64],  # [games, words] the same memory
    level_start: npt.NDArray[np.void],  # [1]
    cartridge: Cartridge,  # [1]
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
    before = np.empty(CORE_WORDS, np.uint64)
    good = True
    for game in range(first, last):
        console = consoles[game]
        if restarts[game] == NO_RESTART:
            reward, done, flag = _play(console, memories[game], before, cartridge[0], buttons[game], num_frames)
        else:
            consoles[game] = level_start[0]
            _play(console, memories[game], before, cartridge[0], NOOP, restarts[game])
            reward, done, flag = 0, False, False
        outcomes.reward[game] = reward
        outcomes.done[game] = done
        outcomes.flag[game] = flag
        outcomes.x[game] = player_x(console.ram)
        reduce_screen(console.screen, pictures[game, tick])
        good = good and not console.strayed
    return good


@compiled
def _play(
    console: Console,
    memory: npt.NDArray[np.uint64],
    before: npt.NDArray[np.uint64],
    cartridge: Cartridge,
    buttons: int,
    num_frames: int,
) -> tuple[int, bool, bool]:
    """Hold the buttons for so many frames, or until the game is done: (raw reward, done, flag).

    Only the last frame is drawn. Which one that is turns out differently when Mario dies, or when a cut-scene follows;
    then the state before it is taken up again and the frame is run once more, with drawing.
    """
    ram = console.ram
    total = 0
    done = flag = False
    held, drawn = buttons, True
    for frame in range(num_frames):
        held, drawn = buttons, frame == num_frames - 1
        if not drawn:
            _copy_core(memory, before)
        run_frame(console, cartridge, buttons, drawn)
        x, time, dying = player_x(ram), clock(ram), is_dying(ram)
        total += frame_reward(x - console.last_x, time - console.last_time, dying)
        console.last_x, console.last_time = x, time
        flag = is_flag_reached(ram)
        done = dying or flag
        if done:
            break
        hasten_area_change(ram)
        while is_busy(ram):
            ram[PRELEVEL_TIMER] = 0
            _copy_core(memory, before)
            held, drawn = NOOP, False
            run_frame(console, cartridge, NOOP, False)
    if not drawn:
        _copy_core(before, memory)
        run_frame(console, cartridge, held, True)
    return total, done, flag


@compiled
def _copy_core(source: npt.NDArray[np.uint64], target: npt.NDArray[np.uint64]) -> None:
    for word in range(CORE_WORDS):  # a slice would be copied byte by byte
        target[word] = source[word]


@compiled
def advance_console(consoles: npt.NDArray[np.void], cartridge: Cartridge, buttons: int) -> None:
    """Run and draw one frame of the first console, without the rules."""
    run_frame(consoles[0], cartridge[0], buttons, True)


@compiled
def draw_games(consoles: npt.NDArray[np.void], pictures: FrameArray, tick: int) -> None:
    """Draw every game as it is now."""
    for game in range(len(consoles)):
        reduce_screen(consoles[game].screen, pictures[game, tick])


class FastConsole:
    """One console from power-on, without the game's rules; for comparing frame by frame."""

    def __init__(self, *, true_colours: bool = False) -> None:
        rom = read_rom(find_rom())
        self.cartridge = insert_cartridge(rom, COLOUR_NUMBERS if true_colours else GREYS)
        self.consoles = np.zeros(1, CONSOLE)
        power_on(self.consoles, int.from_bytes(rom.program[0x7FFC:0x7FFE], "little"))
        self.ram: npt.NDArray[np.uint8] = self.consoles["ram"][0]

    def advance(self, buttons: int) -> None:
        """Run one frame with these buttons held."""
        advance_console(self.consoles, self.cartridge, buttons)

    @property
    def rgb(self) -> npt.NDArray[np.uint8]:
        """The screen in colours; for a console made with `true_colours`."""  # [240, 256, 3]
        return RGB[self.consoles["screen"][0]]


class FastEmulator:
    """A batch of games of one level."""

    def __init__(self, level: Level, num_games: int, num_threads: int = 1) -> None:
        self.num_games = num_games
        self.outcomes = Outcomes.empty(num_games)
        console = FastConsole()
        rules.skip_start_screen(memoryview(console.ram), console.advance, level)
        console.consoles["last_x"], console.consoles["last_time"] = player_x(console.ram), clock(console.ram)
        self._cartridge = console.cartridge
        self._level_start = console.consoles
        self._consoles = np.repeat(console.consoles, num_games)
        self._memories = self._consoles.view(np.uint64).reshape(num_games, CONSOLE.itemsize // 8)
        bounds = np.linspace(0, num_games, min(num_threads, num_games) + 1).astype(int).tolist()
        self._parts = list(zip(bounds[:-1], bounds[1:], strict=True))
        self._threads = ThreadPoolExecutor(len(self._parts)) if len(self._parts) > 1 else None

    def reset(self) -> None:
        """Put every game back to the level's first frame."""
        self._consoles[:] = self._level_start

    def step(
        self,
        buttons: npt.NDArray[np.uint8],
        num_frames: int,
        restarts: npt.NDArray[np.int32],
        pictures: FrameArray,
        tick: int,
    ) -> None:
        """Play or restart every game, then draw it at `tick`: one compiled call, or one a thread."""
        arguments = (
            self._consoles, self._memories, self._level_start, self._cartridge,
            buttons, num_frames, restarts, pictures, tick, self.outcomes,
        )  # fmt: skip
        if self._threads is None:
            good = step_games(*arguments, 0, self.num_games)
        else:
            parts = [self._threads.submit(step_games, *arguments, first, last) for first, last in self._parts]
            good = all([part.result() for part in parts])
        if not good:
            raise RuntimeError('the game did something that the fast emulator does not know; set EMULATOR = "nes_py"')

    def draw(self, pictures: FrameArray, tick: int) -> None:
        """Draw every game as it is now."""
        draw_games(self._consoles, pictures, tick)

    def ram(self, game: int) -> npt.NDArray[np.uint8]:
        """A game's memory, live."""
        memory: npt.NDArray[np.uint8] = self._consoles["ram"][game]
        return memory

    def state(self) -> bytes:
        """All games, as they lie in memory."""
        return self._consoles.tobytes()

    def load_state(self, state: bytes) -> None:
        """Continue from a saved state."""
        self._consoles[:] = np.frombuffer(state, CONSOLE)

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.shutdown()
