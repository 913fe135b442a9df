"""What the rest of the project knows about emulators: a batch of games, stepped together.

Two implement it: `fast` (ours, compiled) and `nes_py` (the reference). Both play by the rules of `rules.py`.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.rules import Level
from mario_rl.experience import FrameArray

EmulatorName = Literal["fast", "nes_py"]

SCREEN_HEIGHT, SCREEN_WIDTH = 240, 256
NO_RESTART = -1


class Outcomes(NamedTuple):
    """What a step did to each game. The arrays belong to the emulator and are overwritten by the next step."""

    reward: npt.NDArray[np.float32]  # [games] raw, summed over the frames
    x: npt.NDArray[np.int32]  # [games] Mario's distance from the level's start
    done: npt.NDArray[np.bool_]  # [games] dead, or at the flag
    flag: npt.NDArray[np.bool_]  # [games]
    cell: npt.NDArray[np.int64]  # [games] where Mario is now, by `rules.cell`; FLAG_CELL at the flag

    @classmethod
    def empty(cls, num_games: int) -> "Outcomes":
        """Room for `num_games` games."""
        return cls(
            np.zeros(num_games, np.float32),
            np.zeros(num_games, np.int32),
            np.zeros(num_games, np.bool_),
            np.zeros(num_games, np.bool_),
            np.zeros(num_games, np.int64),
        )


class Emulator(Protocol):
    """A batch of games. One owner; not thread-safe."""

    num_games: int
    outcomes: Outcomes

    def reset(self) -> None:
        """Put every game back to its level's first frame."""

    def set_level(self, game: int, level: Level) -> None:
        """Have a game play this level from its next restart on."""

    def step(
        self,
        buttons: npt.NDArray[np.uint8],  # [games] joypad bytes
        num_frames: int,
        restarts: npt.NDArray[np.int32],  # [games] NO_RESTART, or how many idle frames the next episode begins with
        pictures: FrameArray,  # [games, ticks, 84, 84]
        tick: int,
        delays: npt.NDArray[np.int32] | None = None,  # [games] frames for which the buttons before are still held
    ) -> None:
        """Play each game for `num_frames`, or until it is done; or restart it. Then draw it at `tick`."""

    def draw(self, pictures: FrameArray, tick: int) -> None:
        """Draw every game as it is now."""  # [games, ticks, 84, 84]

    def ram(self, game: int) -> npt.NDArray[np.uint8]:
        """A game's memory, live."""  # [2048]

    @property
    def state_format(self) -> str:
        """What a state must have been saved with to be loaded."""

    def state(self) -> bytes:
        """All games, such that `load_state` continues them exactly."""

    def load_state(self, state: bytes) -> None:
        """Continue from a saved state of the same emulator with as many games."""

    @property
    def game_type(self) -> "np.dtype[np.void] | None":
        """A single saved game, as an array's element; None where single games cannot be saved."""

    def save_games(self, games: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
        """These games as they are now."""  # [len(games)] of game_type

    def load_game(self, game: int, saved: np.void, pictures: FrameArray, tick: int) -> None:
        """Put a game to a saved moment of any game, with its x in `outcomes`, and draw it at `tick`."""

    def close(self) -> None:
        """Free everything."""


def make_emulator(name: EmulatorName, levels: Sequence[Level], num_threads: int = 1) -> Emulator:
    """A game of each of these levels to begin with.

    Emulators are told apart here only; numba is not imported unless it is needed.
    """
    if name == "fast":
        from mario_rl.emulation.fast.emulator import FastEmulator

        return FastEmulator(levels, num_threads)
    from mario_rl.emulation.nes_py import NesPyEmulator

    return NesPyEmulator(levels)  # nes-py holds the GIL: further threads would only wait
