"""The rules of the task: how a game is played at all, and what training makes of it."""

from dataclasses import dataclass
from typing import Annotated, Literal

from mario_rl.emulation.emulator import EmulatorName
from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ActionSet
from mario_rl.ranges import Between, Positive, Probability

Progress = Literal["map", "x"]
Levels = tuple[tuple[int, int], ...]  # pairs of world and stage


@dataclass(frozen=True)
class PlayRules:
    """How a game is played: in training, in evaluation and with a model. The player of episodes needs no more."""

    actions: ActionSet
    emulator: EmulatorName
    frame_skip: Annotated[int, Between(1, 16)]  # frames an action is held
    no_progress_decisions: Annotated[int, Positive]  # without a new furthest x, after which an episode is cut


@dataclass(frozen=True)
class TaskRules:
    """What is trained: levels, where their episodes begin, and what they earn."""

    world: Annotated[int, Between(1, 8)]
    stage: Annotated[int, Between(1, 4)]
    levels: Levels  # instead of the one above, where there are any
    progress: Progress  # what is rewarded: coming nearer to the flag on the map, or running to the right
    map_reward: Annotated[float, Between(0.0, 1e3)]  # for a cell nearer to the flag
    noop_start_max_frames: Annotated[int, Between(0, 200)]  # an episode starts after 0 to this many idle frames
    reward_scale: Annotated[float, Between(1e-6, 1e3)]
    flag_bonus: Annotated[float, Between(-1e3, 1e3)]
    practice_share: Annotated[float, Probability]  # of the episodes; the others begin at the level's start
    rescue_share: Annotated[float, Probability]  # of practice, which follows a way past the death; with a map

    @property
    def levels_played(self) -> tuple[Level, ...]:
        """LEVELS, or the one level that WORLD and STAGE name. Every episode draws one of them."""
        return tuple(Level(*pair) for pair in self.levels) or (Level(self.world, self.stage),)
