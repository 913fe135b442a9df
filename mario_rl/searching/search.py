"""The search for a level's flag: round after round of wanders from the archive. One thread, with helpers.

In a round, saved games are drawn, each is played on at random for a while, and then everything is written down, in one
fixed order: the result depends on the seed, not on the number of threads.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.fast.canvas import CANVAS
from mario_rl.emulation.fast.console import CONSOLE
from mario_rl.emulation.fast.emulator import STRAYED, FastConsole, FastEmulator
from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ACTION_SETS, action_bounds
from mario_rl.environment.task import PlayRules
from mario_rl.environment.wandering import wander
from mario_rl.experience import FRAME_SIZE
from mario_rl.mapping.graph import FAR, FLAG_PLACE, CellGraph
from mario_rl.searching.archive import NO_WANDER, Archive

WANDERS_PER_ROUND = 128
WANDERS_PER_PART = 8  # that a thread plays at once: whichever is faster plays more of them
SHORTEST, LONGEST = 16, 48  # decisions of a wander, drawn evenly: long ones get past long falls, short ones try more
# The longest hold of a wander's actions, drawn evenly. A high jump needs its button for half a second, eight decisions;
# a stroke in water is a button that goes down, so there it should change as often as it can.
MAX_HOLDS = (1, 2, 4, 8)
RIGHT_PROBABILITY = 0.7  # that an action holds "right"


class SearchFigures(NamedTuple):
    """How far a search has come."""

    decisions: int
    cells: int
    edges: int
    furthest_x: int
    start_distance: int | None  # from the furthest of the level's starts to the flag, in cells; None: no way is known


class LevelSearch:
    """A search in one level; call `play_round` until it has found enough."""

    def __init__(self, play: PlayRules, level: Level, seed: int, num_starts: int, num_threads: int) -> None:
        self.level = level
        self.actions = play.actions
        self.graph = CellGraph()
        self.num_decisions = 0
        self._num_wanders = 0
        self._frame_skip = play.frame_skip
        self._rng = np.random.default_rng(seed)
        self._archive = Archive()
        self._joypad = np.array(ACTION_SETS[play.actions], np.uint8)
        self._bounds = action_bounds(play.actions, RIGHT_PROBABILITY)
        self._cartridge = FastConsole().cartridge
        self._pool = ThreadPoolExecutor(num_threads)
        self._own = threading.local()
        self._start_games, self._start_places = self._add_starts(level, num_starts)
        # How wanders came about, round after round, to find the way to a saved game again.
        self._origins: list[npt.NDArray[np.int64]] = []  # [wanders, 2]
        self._buttons: list[npt.NDArray[np.uint8]] = []  # [wanders, longest]
        self._wish = {
            "level": str(level),
            "actions": play.actions,
            "frame_skip": play.frame_skip,
            "seed": seed,
            "num_starts": num_starts,
        }

    def _add_starts(self, level: Level, num_starts: int) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
        """The games with which this level begins, and the places of their cells."""
        with closing(FastEmulator([level] * num_starts)) as emulator:
            pictures = np.empty((num_starts, 1, FRAME_SIZE, FRAME_SIZE), np.uint8)
            idle_frames = np.arange(num_starts, dtype=np.int32)
            emulator.step(np.zeros(num_starts, np.uint8), 1, idle_frames, pictures, 0)
            games = emulator.save_games(np.arange(num_starts))["console"].copy()
            places = np.array([self.graph.place_of(int(number)) for number in emulator.outcomes.cell])
        self._archive.make_room(self.graph.num_cells)
        for number, place in enumerate(places):
            self._archive.add_start(place, games[number : number + 1], number)
        return games, places

    @property
    def figures(self) -> SearchFigures:
        """As of now."""
        distances = self.graph.distances()[self._start_places]
        known = distances[distances != FAR]
        start_distance = int(known.max()) if len(known) else None
        graph = self.graph
        furthest_x = int(furthest(graph.cells))
        return SearchFigures(self.num_decisions, graph.num_cells, graph.num_edges, furthest_x, start_distance)

    def play_round(self) -> None:
        """Play some wanders and write down where they led."""
        rng, count = self._rng, WANDERS_PER_ROUND
        games, origins = self._archive.draw(self._weights(), count, rng)
        seeds = rng.integers(2**63, size=count, dtype=np.uint64)
        num_decisions = rng.integers(SHORTEST, LONGEST + 1, size=count)
        max_hold = rng.choice(MAX_HOLDS, size=count)
        buttons = np.zeros((count, LONGEST), np.uint8)
        walks = np.zeros((count, 1 + LONGEST), np.int64)
        moments = np.empty((count, LONGEST), CONSOLE)
        lengths = np.zeros(count, np.int64)
        chances = (seeds, num_decisions, max_hold, self._joypad, self._bounds, self._frame_skip)

        def play(first: int) -> bool:
            if not hasattr(self._own, "canvas"):
                self._own.canvas = np.zeros(1, CANVAS)
            last = min(first + WANDERS_PER_PART, count)
            results = (buttons, walks, moments, lengths)
            return wander(games, self._cartridge, self._own.canvas, *chances, *results, first, last)

        if not all(self._pool.map(play, range(0, count, WANDERS_PER_PART))):
            raise RuntimeError(STRAYED)
        places = self.graph.add_walks(walks, lengths + 1)
        self._archive.make_room(self.graph.num_cells)
        self._archive.add_wanders(self._num_wanders, places[:, 1:], lengths, moments, rng)
        self._num_wanders += count
        self._origins.append(origins)
        self._buttons.append(buttons)
        self.num_decisions += int(np.minimum(lengths + 1, num_decisions).sum())

    def _weights(self) -> npt.NDArray[np.float64]:
        """How likely a wander begins at each cell: the less often it was visited, the more."""
        visits = self._archive.visits[: self.graph.num_cells]
        weights: npt.NDArray[np.float64] = 1 / np.sqrt(np.maximum(visits, 1))
        weights[visits == 0] = 0.0
        weights[FLAG_PLACE] = 0.0
        return weights

    def way_to_flag(self) -> tuple[int, list[int]] | None:
        """Idle frames and then the buttons of each decision that lead to the flag; None where it was not found."""
        origin = self._archive.any_origin(FLAG_PLACE)
        if origin is None:
            return None
        parts: list[list[int]] = []
        wander_number, decisions = origin
        while wander_number != NO_WANDER:
            round_number, place = divmod(wander_number, WANDERS_PER_ROUND)
            parts.append(self._buttons[round_number][place, :decisions].tolist())
            wander_number, decisions = (int(number) for number in self._origins[round_number][place])
        return decisions, [buttons for part in reversed(parts) for buttons in part]

    @property
    def facts(self) -> dict[str, Any]:
        """What a file keeps as JSON."""
        return self._wish | {"decisions": self.num_decisions, "rng": self._rng.bit_generator.state}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What a file keeps as arrays."""
        count = self.graph.num_cells
        own: dict[str, npt.NDArray[Any]] = {
            "cells": self.graph.cells,
            "edges": self.graph.edges,
            "wander_origins": np.array(self._origins, np.int64).reshape(-1, WANDERS_PER_ROUND, 2),
            "buttons": np.array(self._buttons, np.uint8).reshape(-1, WANDERS_PER_ROUND, LONGEST),
        }
        return own | self._archive.arrays(count)

    def load(self, facts: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Go on with a saved search; ValueError where it is none of this level, seed and actions."""
        if any(facts[name] != value for name, value in self._wish.items()):
            raise ValueError("another search")
        ours = self.arrays()
        for name, array in ours.items():
            if arrays[name].dtype != array.dtype or arrays[name].shape[1:] != array.shape[1:]:
                raise ValueError(name)
        cells, edges = arrays["cells"], arrays["edges"]
        rounds, wanders = len(arrays["buttons"]), len(arrays["buttons"]) * WANDERS_PER_ROUND
        if len(set(cells.tolist())) != len(cells) or len(cells) < len(ours["cells"]):
            raise ValueError("cells")
        if edges.size and not (edges.min() >= 0 and edges.max() < len(cells)):
            raise ValueError("edges")
        if any((arrays[name][..., 0] >= wanders).any() for name in ("wander_origins", "origins")):
            raise ValueError("origins")
        if len(arrays["wander_origins"]) != rounds or len(arrays["visits"]) != len(cells):
            raise ValueError("lengths")
        self._rng.bit_generator.state = facts["rng"]
        self.graph.replace(cells, edges)
        self._archive.load(arrays)
        self.num_decisions, self._num_wanders = facts["decisions"], wanders
        self._origins, self._buttons = list(arrays["wander_origins"]), list(arrays["buttons"])

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def furthest(cells: npt.NDArray[np.int64]) -> np.int64:
    """The largest x of some cells; a maze may put Mario to before its start, where x has gone round."""
    columns = (cells >> 8) & 0xFFF
    largest: np.int64 = 16 * np.where(columns < 0x800, columns, 0).max()
    return largest
