"""Practice: some episodes start shortly before a recent death instead of at their level's beginning.

The further into the level, the less often an agent gets there; and what it must learn next is where it dies. Each game
leaves a trail of saved moments. When it dies, one of them goes into the pool of its level, and episodes that practise
this level begin at a moment drawn from it: so the places that kill most are practised most. Most of the pool keeps the
latest deaths. The rest keeps the last death in each part of the level, or places that were mastered would be forgotten.

A state is four pictures, so an episode that begins in the middle needs the three before. It begins three decisions
earlier, and repeats what was done then: its *lead*. With a `Rescue`, a share of these episodes have a longer lead: one
that gets past the death.
"""

import base64
from typing import Any

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.emulator import Emulator
from mario_rl.environment.rescue import LONGEST as LONGEST_RESCUE
from mario_rl.environment.rescue import Rescue
from mario_rl.experience import STACK_SIZE, FrameArray

SPACING = 4  # ticks between two saved moments
TRAIL_LENGTH = 16  # saved moments a game
LEAD_IN = STACK_SIZE - 1  # decisions that are repeated
# How long before its end an episode is taken up again, in decisions: a fall alone takes some ten.
SHORTEST_LEAD, LONGEST_LEAD = 12 + LEAD_IN, 48 + LEAD_IN
LATEST = 64  # deaths of a level
PLACES = 64  # parts of a level whose last death is kept
PLACE_PIXELS = 128  # half a screen; beyond 64 of them, in no level, they would begin anew
POOL_SIZE = LATEST + PLACES
PLACES_SHARE = 0.1  # of practice begins before one of these. With a quarter, 1-3 was learned far more slowly
HISTORY = 64  # decisions whose actions are kept: more than the longest lead
assert HISTORY > LONGEST_LEAD
_NOWHERE = -1


class Practice:
    """The trails and pools of one collector's games. The emulator must be able to save single games."""

    def __init__(
        self,
        emulator: Emulator,
        num_levels: int,
        share: float,
        rng: np.random.Generator,
        rescue: Rescue | None = None,
        rescue_share: float = 0.0,
    ) -> None:
        assert emulator.game_type is not None
        self._rescue = rescue
        self._rescue_share = rescue_share
        self._emulator = emulator
        self._share = share
        self._rng = rng
        num_games = emulator.num_games
        self._trail = np.zeros((num_games, TRAIL_LENGTH), emulator.game_type)
        self._trail_decisions = np.full((num_games, TRAIL_LENGTH), _NOWHERE)  # when each moment was
        self._trail_held = np.zeros((num_games, TRAIL_LENGTH), np.uint8)  # buttons
        self._actions = np.zeros((num_games, HISTORY), np.int64)  # of the last decisions, each at its number % HISTORY
        self._num_ticks = 0
        self._lead = np.zeros((num_games, LONGEST_RESCUE), np.int64)  # actions with which the present episode begins,
        self._lead_length = np.zeros(num_games, np.int64)  # how many there are,
        self._num_led = np.zeros(num_games, np.int64)  # and how many of them were played
        self._pools = np.zeros((num_levels, POOL_SIZE), emulator.game_type)
        self._pools_held = np.zeros((num_levels, POOL_SIZE), np.uint8)
        self._pools_lead = np.zeros((num_levels, POOL_SIZE, LEAD_IN), np.int64)
        self._pools_end = np.zeros((num_levels, POOL_SIZE), np.int64)  # the last cell on the map before the death
        self._num_deaths = np.zeros(num_levels, np.int64)
        self._has_killed = np.zeros((num_levels, PLACES), np.bool_)

    def lead(self, actions: npt.NDArray[np.int64], playing: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """What the games do that are being played: at the beginning of practice, what was done there before."""
        leads = playing & (self._num_led < self._lead_length)
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
        self,
        num_decisions: npt.NDArray[np.int32],
        levels: npt.NDArray[np.int64],
        died: npt.NDArray[np.bool_],
        x: npt.NDArray[np.int32],
        cells: npt.NDArray[np.int64],
    ) -> None:
        """Put a moment from before each of these deaths into its pool. `cells`: where Mario died, by the map."""
        for game in np.flatnonzero(died):
            leads = num_decisions[game] - self._trail_decisions[game]
            is_candidate = (leads >= SHORTEST_LEAD) & (leads <= LONGEST_LEAD) & (self._trail_decisions[game] >= 0)
            candidates = np.flatnonzero(is_candidate)
            if len(candidates):
                place = int(x[game]) // PLACE_PIXELS % PLACES
                self._keep(levels[game], game, self._rng.choice(candidates), place, cells[game])

    def _keep(self, level: np.int64, game: np.int64, moment: np.int64, place: int, cell: np.int64) -> None:
        """Put a moment of a game's trail into the pool: among the latest deaths, and as its place's last one."""
        repeated = self._trail_decisions[game, moment] + 1 + np.arange(LEAD_IN)
        for entry in (self._num_deaths[level] % LATEST, LATEST + place):
            self._pools[level, entry] = self._trail[game, moment]
            self._pools_held[level, entry] = self._trail_held[game, moment]
            self._pools_lead[level, entry] = self._actions[game, repeated % HISTORY]
            self._pools_end[level, entry] = cell
        self._num_deaths[level] += 1
        self._has_killed[level, place] = True

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
        self._num_led[restarting] = self._lead_length[restarting] = 0
        practises = restarting & (self._rng.random(len(restarting)) < self._share) & (self._num_deaths[levels] > 0)
        for game in np.flatnonzero(practises):
            level = levels[game]
            entry = self._rng.integers(min(self._num_deaths[level], LATEST))
            if self._rng.random() < PLACES_SHARE:
                entry = LATEST + self._rng.choice(np.flatnonzero(self._has_killed[level]))
            self._emulator.load_game(int(game), self._pools[level, entry], pictures, tick)
            held[game] = self._pools_held[level, entry]
            lead = self._choose_lead(level, entry)
            self._lead[game, : len(lead)], self._lead_length[game] = lead, len(lead)
        return practises

    def _choose_lead(self, level: np.int64, entry: np.int64) -> npt.NDArray[np.int64]:
        """What was done there before, or what gets past the death."""
        if self._rescue is not None and self._rng.random() < self._rescue_share:
            actions = self._rescue.find(self._pools["console"][level, entry], self._pools_end[level, entry])
            if actions is not None and len(actions) >= LEAD_IN:
                return actions
        lead: npt.NDArray[np.int64] = self._pools_lead[level, entry]
        return lead

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "trail": base64.b64encode(self._trail.tobytes()).decode(),
            "trail_decisions": self._trail_decisions.tolist(),
            "trail_held": self._trail_held.tolist(),
            "actions": self._actions.tolist(),
            "lead": self._lead.tolist(),
            "lead_length": self._lead_length.tolist(),
            "num_led": self._num_led.tolist(),
            "pools": base64.b64encode(self._pools.tobytes()).decode(),
            "pools_held": self._pools_held.tolist(),
            "pools_lead": self._pools_lead.tolist(),
            "pools_end": self._pools_end.tolist(),
            "num_ticks": self._num_ticks,
            "num_deaths": self._num_deaths.tolist(),
            "has_killed": self._has_killed.tolist(),
            "rng": self._rng.bit_generator.state,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        for name, array in (("trail", self._trail), ("pools", self._pools)):
            array[:] = np.frombuffer(base64.b64decode(state[name]), array.dtype).reshape(array.shape)
        self._trail_decisions[:] = state["trail_decisions"]
        self._trail_held[:], self._pools_held[:] = state["trail_held"], state["pools_held"]
        self._actions[:], self._pools_lead[:] = state["actions"], state["pools_lead"]
        self._pools_end[:] = state["pools_end"]
        self._lead[:], self._lead_length[:] = state["lead"], state["lead_length"]
        self._num_led[:] = state["num_led"]
        self._num_ticks = state["num_ticks"]
        self._num_deaths[:] = state["num_deaths"]
        self._has_killed[:] = state["has_killed"]
        self._rng.bit_generator.state = state["rng"]
