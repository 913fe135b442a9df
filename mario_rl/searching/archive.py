"""The archive of a search: saved games for every cell that was found, how often it was visited, and how it was reached.

A cell keeps a few games, drawn evenly from all visits, because a place alone says nothing about enemies and speed. How
each was reached is kept as a chain: the wander that saved it, and the saved game which that wander began with.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.fast.console import CONSOLE
from mario_rl.machine.compiling import compiled

GAMES_PER_CELL = 4
NO_WANDER = -1  # a level's start was reached by no wander


class Origin(NamedTuple):
    """How a saved game was reached: after this many decisions of a wander; or it is a start, of so many idle frames."""

    wander: int
    decisions: int


class Archive:
    """Games by the places of their cells in the graph."""

    def __init__(self) -> None:
        self.visits = np.zeros(0, np.int64)  # [cells]
        self._games = np.zeros((0, GAMES_PER_CELL), CONSOLE)
        self._origins = np.zeros((0, GAMES_PER_CELL, 2), np.int64)

    def make_room(self, num_cells: int) -> None:
        """For this many cells."""
        if num_cells > len(self.visits):
            length = max(2 * len(self.visits), num_cells, 1024)
            self.visits = _longer(self.visits, length)
            self._games = _longer(self._games, length)
            self._origins = _longer(self._origins, length)

    def add_start(self, place: int, game: npt.NDArray[np.void], idle_frames: int) -> None:
        """A game at the level's start."""  # [1]
        slot = int(self.visits[place]) % GAMES_PER_CELL
        self._games[place, slot] = game[0]
        self._origins[place, slot] = NO_WANDER, idle_frames
        self.visits[place] += 1

    def add_wanders(
        self,
        first_wander: int,
        places: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int64],
        moments: npt.NDArray[np.void],
        rng: np.random.Generator,
    ) -> None:
        """Count the visits of some wanders, and keep a few of their games."""  # [wanders, longest]
        draws = rng.random(places.shape)
        _add_wanders(first_wander, places, lengths, moments, draws, self.visits, self._games, self._origins)

    def arrays(self, num_cells: int) -> dict[str, npt.NDArray[Any]]:
        """Everything that is known of the first `num_cells` cells."""
        # Games as bytes: a file would forget that their fields are aligned, for which compiled code was made.
        games = self._games[:num_cells].view(np.uint8).reshape(num_cells, GAMES_PER_CELL, CONSOLE.itemsize)
        return {"visits": self.visits[:num_cells], "games": games, "origins": self._origins[:num_cells]}

    def load(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Hold this instead, as `arrays` gave it."""
        self.visits, self._origins = arrays["visits"].copy(), arrays["origins"].copy()
        self._games = np.zeros((len(self.visits), GAMES_PER_CELL), CONSOLE)
        self._games.view(np.uint8).reshape(arrays["games"].shape)[:] = arrays["games"]

    def any_origin(self, place: int) -> Origin | None:
        """How some game of this cell was reached; None where there is none."""
        return Origin(*map(int, self._origins[place, 0])) if self.visits[place] else None

    def draw(
        self, weights: npt.NDArray[np.float64], count: int, rng: np.random.Generator
    ) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
        """Saved games of cells drawn by their weights, and their origins."""  # [cells] -> [count], [count, 2]
        places = np.searchsorted(np.cumsum(weights), rng.random(count) * weights.sum(), side="right")
        places = np.minimum(places, len(weights) - 1)
        slots = rng.integers(np.minimum(self.visits[places], GAMES_PER_CELL))
        return self._games[places, slots], self._origins[places, slots]


def _longer(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    longer = np.zeros((length, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


@compiled
def _add_wanders(
    first_wander: int,
    places: npt.NDArray[np.int32],
    lengths: npt.NDArray[np.int64],
    moments: npt.NDArray[np.void],
    draws: npt.NDArray[np.float64],
    visits: npt.NDArray[np.int64],
    games: npt.NDArray[np.void],
    origins: npt.NDArray[np.int64],
) -> None:
    for wander in range(len(places)):
        for decision in range(lengths[wander]):
            place = places[wander, decision]
            # Reservoir sampling: in the end each visit is kept with the same chance.
            slot = visits[place]
            visits[place] += 1
            if slot >= GAMES_PER_CELL:
                slot = np.int64(draws[wander, decision] * visits[place])
            if slot < GAMES_PER_CELL:
                games[place, slot] = moments[wander, decision]
                origins[place, slot, 0] = first_wander + wander
                origins[place, slot, 1] = decision + 1
