"""Practice: some episodes start shortly before a recent death instead of at their level's beginning.

The further into the level, the less often an agent gets there; and what it must learn next is where it dies. Each game
leaves a trail of saved moments. When it dies, one of them goes into the pool that keeps its level's latest deaths, and
episodes that practise this level begin at a moment drawn from it: so the places that kill most are practised most.
"""

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.emulator import Emulator
from mario_rl.experience import FrameArray

SPACING = 4  # ticks between two saved moments
TRAIL_LENGTH = 16  # saved moments a game
# How long before its end an episode is taken up again, in decisions: a fall alone takes some ten.
SHORTEST_LEAD, LONGEST_LEAD = 12, 48
POOL_SIZE = 64  # the latest deaths of a level
_NOWHERE = -1


class Practice:
    """The trails and pools of one collector's games. The emulator must be able to save single games."""

    def __init__(self, emulator: Emulator, num_levels: int, share: float, rng: np.random.Generator) -> None:
        assert emulator.game_type is not None
        self._emulator = emulator
        self._share = share
        self._rng = rng
        num_games = emulator.num_games
        self._trail = np.zeros((num_games, TRAIL_LENGTH), emulator.game_type)
        self._trail_decisions = np.full((num_games, TRAIL_LENGTH), _NOWHERE)  # when each moment was
        self._trail_held = np.zeros((num_games, TRAIL_LENGTH), np.uint8)  # buttons
        self._num_ticks = 0
        self._pools = np.zeros((num_levels, POOL_SIZE), emulator.game_type)
        self._pools_held = np.zeros((num_levels, POOL_SIZE), np.uint8)
        self._num_deaths = np.zeros(num_levels, np.int64)

    def follow(
        self, num_decisions: npt.NDArray[np.int32], held: npt.NDArray[np.uint8], playing: npt.NDArray[np.bool_]
    ) -> None:
        """Save all games that are being played, when their moment has come."""
        self._num_ticks += 1
        if self._num_ticks % SPACING == 0:
            games, place = np.flatnonzero(playing), self._num_ticks // SPACING % TRAIL_LENGTH
            self._trail[games, place] = self._emulator.save_games(games)
            self._trail_decisions[games, place] = num_decisions[games]
            self._trail_held[games, place] = held[games]

    def note_deaths(
        self, num_decisions: npt.NDArray[np.int32], levels: npt.NDArray[np.int64], died: npt.NDArray[np.bool_]
    ) -> None:
        """Put a moment from before each of these deaths into its level's pool."""
        for game in np.flatnonzero(died):
            leads = num_decisions[game] - self._trail_decisions[game]
            is_candidate = (leads >= SHORTEST_LEAD) & (leads <= LONGEST_LEAD) & (self._trail_decisions[game] >= 0)
            candidates = np.flatnonzero(is_candidate)
            if len(candidates):
                level, moment = levels[game], self._rng.choice(candidates)
                place = level, self._num_deaths[level] % POOL_SIZE
                self._pools[place], self._pools_held[place] = self._trail[game, moment], self._trail_held[game, moment]
                self._num_deaths[level] += 1

    def begin(
        self,
        restarting: npt.NDArray[np.bool_],
        levels: npt.NDArray[np.int64],
        held: npt.NDArray[np.uint8],
        pictures: FrameArray,
        tick: int,
    ) -> npt.NDArray[np.bool_]:
        """Of the games that begin an episode of these levels, which practise: put to where they begin, and drawn.

        `held` gets the buttons that they held there.
        """
        self._trail_decisions[restarting] = _NOWHERE
        practises = restarting & (self._rng.random(len(restarting)) < self._share) & (self._num_deaths[levels] > 0)
        for game in np.flatnonzero(practises):
            level = levels[game]
            moment = level, self._rng.integers(min(self._num_deaths[level], POOL_SIZE))
            self._emulator.load_game(int(game), self._pools[moment], pictures, tick)
            held[game] = self._pools_held[moment]
        return practises

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "trail": base64.b64encode(self._trail.tobytes()).decode(),
            "trail_decisions": self._trail_decisions.tolist(),
            "trail_held": self._trail_held.tolist(),
            "pools": base64.b64encode(self._pools.tobytes()).decode(),
            "pools_held": self._pools_held.tolist(),
            "num_ticks": self._num_ticks,
            "num_deaths": self._num_deaths.tolist(),
            "rng": self._rng.bit_generator.state,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        for name, array in (("trail", self._trail), ("pools", self._pools)):
            array[:] = np.frombuffer(base64.b64decode(state[name]), array.dtype).reshape(array.shape)
        self._trail_decisions[:] = state["trail_decisions"]
        self._trail_held[:], self._pools_held[:] = state["trail_held"], state["pools_held"]
        self._num_ticks = state["num_ticks"]
        self._num_deaths[:] = state["num_deaths"]
        self._rng.bit_generator.state = state["rng"]
