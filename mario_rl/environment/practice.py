"""Practice: some episodes start shortly before a recent death instead of at their level's beginning.

The further into the level, the less often an agent gets there; and what it must learn next is where it dies. Each game
leaves a trail of saved moments. When it dies, one of them goes into the pool of its level, and episodes that practise
this level begin at a moment drawn from it: so the places that kill most are practised most. A part of the pool keeps
the latest deaths, and another a fair sample of all deaths so far, or places that were mastered would be forgotten.

A state is four pictures, so an episode that begins in the middle needs the three before. It begins three decisions
earlier, and repeats what was done then: its *lead*.
"""

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.emulator import Emulator
from mario_rl.experience import STACK_SIZE, FrameArray

SPACING = 4  # ticks between two saved moments
TRAIL_LENGTH = 16  # saved moments a game
# How long before its end an episode is taken up again, in decisions: a fall alone takes some ten.
SHORTEST_LEAD, LONGEST_LEAD = 12, 48
LATEST = 64  # deaths of a level
POOL_SIZE = 2 * LATEST  # with as many of all deaths
ALL_SHARE = 0.25  # of practice begins before one of all deaths
LEAD_IN = STACK_SIZE - 1  # decisions that are repeated
HISTORY = 64  # decisions whose actions are kept: more than the longest lead
assert HISTORY > LONGEST_LEAD
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
        self._actions = np.zeros((num_games, HISTORY), np.int64)  # of the last decisions, each at its number % HISTORY
        self._num_ticks = 0
        self._lead = np.zeros((num_games, LEAD_IN), np.int64)  # actions with which the present episode begins ...
        self._num_led = np.full(num_games, LEAD_IN)  # ... and how many of them were played
        self._pools = np.zeros((num_levels, POOL_SIZE), emulator.game_type)
        self._pools_held = np.zeros((num_levels, POOL_SIZE), np.uint8)
        self._pools_lead = np.zeros((num_levels, POOL_SIZE, LEAD_IN), np.int64)
        self._num_deaths = np.zeros(num_levels, np.int64)

    def lead(self, actions: npt.NDArray[np.int64], playing: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """What the games do that are being played: at the beginning of practice, what was done there before."""
        leads = playing & (self._num_led < LEAD_IN)
        if not leads.any():
            return actions
        led = actions.copy()
        led[leads] = self._lead[leads, self._num_led[leads]]
        self._num_led[leads] += 1
        return led

    def follow(
        self,
        num_decisions: npt.NDArray[np.int32],
        actions: npt.NDArray[np.int64],
        held: npt.NDArray[np.uint8],
        playing: npt.NDArray[np.bool_],
    ) -> None:
        """Note the actions, and save all games that are being played, when their moment has come."""
        self._num_ticks += 1
        self._actions[np.arange(len(actions)), num_decisions % HISTORY] = actions
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
                self._keep(levels[game], game, self._rng.choice(candidates))

    def _keep(self, level: np.int64, game: np.int64, moment: np.int64) -> None:
        """Put a moment of a game's trail into the pool."""
        earlier = self._num_deaths[level]
        # Reservoir sampling: in the end each death is among the second half with the same chance.
        place = earlier if earlier < LATEST else self._rng.integers(earlier + 1)
        repeated = self._trail_decisions[game, moment] + 1 + np.arange(LEAD_IN)
        for entry in (earlier % LATEST, LATEST + place):
            if entry < POOL_SIZE:
                self._pools[level, entry] = self._trail[game, moment]
                self._pools_held[level, entry] = self._trail_held[game, moment]
                self._pools_lead[level, entry] = self._actions[game, repeated % HISTORY]
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
        self._num_led[restarting] = LEAD_IN
        practises = restarting & (self._rng.random(len(restarting)) < self._share) & (self._num_deaths[levels] > 0)
        for game in np.flatnonzero(practises):
            level = levels[game]
            entry = self._rng.integers(min(self._num_deaths[level], LATEST))
            if self._rng.random() < ALL_SHARE:
                entry += LATEST
            self._emulator.load_game(int(game), self._pools[level, entry], pictures, tick)
            held[game] = self._pools_held[level, entry]
            self._lead[game], self._num_led[game] = self._pools_lead[level, entry], 0
        return practises

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "trail": base64.b64encode(self._trail.tobytes()).decode(),
            "trail_decisions": self._trail_decisions.tolist(),
            "trail_held": self._trail_held.tolist(),
            "actions": self._actions.tolist(),
            "lead": self._lead.tolist(),
            "num_led": self._num_led.tolist(),
            "pools": base64.b64encode(self._pools.tobytes()).decode(),
            "pools_held": self._pools_held.tolist(),
            "pools_lead": self._pools_lead.tolist(),
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
        self._actions[:], self._pools_lead[:] = state["actions"], state["pools_lead"]
        self._lead[:], self._num_led[:] = state["lead"], state["num_led"]
        self._num_ticks = state["num_ticks"]
        self._num_deaths[:] = state["num_deaths"]
        self._rng.bit_generator.state = state["rng"]
