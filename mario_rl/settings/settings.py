"""All settings of a run: the parts' own rule classes, put together.

A part declares its settings as annotated fields of a frozen rule class, and receives that class whole. Here the classes
are listed. For the user all names are flat and in capitals: `play.frame_skip` is FRAME_SKIP.
"""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from mario_rl.accounts.flow import FlowRules
from mario_rl.agent.exploration import ExplorationRules
from mario_rl.agent.network import NetworkRules, NetworkShape, network_shape
from mario_rl.collecting.rules import CollectingRules
from mario_rl.environment.task import PlayRules, TaskRules
from mario_rl.learning.rules import LearningRules
from mario_rl.ranges import Between
from mario_rl.replay.prioritized import PriorityRules
from mario_rl.replay.sampler import SamplingRules
from mario_rl.replay.streams import ReplayRules
from mario_rl.searching.rules import SearchRules
from mario_rl.settings.hardware_rules import HardwareRules
from mario_rl.telemetry.locks import LockRules
from mario_rl.training.limits import LimitRules
from mario_rl.training.recovery import RecoveryRules
from mario_rl.training.saving import SavingRules
from mario_rl.training.schedule import ScheduleRules


@dataclass(frozen=True)
class RunRules:
    """What belongs to no part."""

    seed: Annotated[int, Between(0, 2**63 - 1)]


@dataclass(frozen=True)
class Settings:
    """Every setting, checked, by the part that uses it."""

    play: PlayRules
    task: TaskRules
    search: SearchRules
    collecting: CollectingRules
    exploration: ExplorationRules
    replay: ReplayRules
    flow: FlowRules
    priorities: PriorityRules
    sampling: SamplingRules
    learning: LearningRules
    recovery: RecoveryRules
    network: NetworkRules
    hardware: HardwareRules
    schedule: ScheduleRules
    limits: LimitRules
    saving: SavingRules
    locks: LockRules
    run: RunRules

    @property
    def network_shape(self) -> NetworkShape:
        """The network that these settings ask for."""
        return network_shape(self.network, self.play, self.task, self.sampling.gamma)

    def flat(self) -> dict[str, Any]:
        """All values by the names that the user writes."""
        parts = (getattr(self, field.name) for field in dataclasses.fields(self))
        return {field.name.upper(): getattr(part, field.name) for part in parts for field in dataclasses.fields(part)}

    def changed(self, **changes: Any) -> "Settings":
        """The same with some values changed, given by the names that the user writes."""
        return assemble(self.flat() | changes)


PARTS: dict[str, type[Any]] = {field.name: field.type for field in dataclasses.fields(Settings)}  # type: ignore[misc]
HINTS: dict[str, Any] = {
    name.upper(): hint for part in PARTS.values() for name, hint in get_type_hints(part, include_extras=True).items()
}
NAMES = list(HINTS)


def assemble(values: dict[str, Any]) -> Settings:
    """Settings of values that were checked."""
    return Settings(**{name: make_part(part, values) for name, part in PARTS.items()})


def make_part(part: type[Any], values: dict[str, Any]) -> Any:
    """A rule class with its values; those that are missing are missing in it, too (`checking.py` looks at such)."""
    made = object.__new__(part)
    for field in dataclasses.fields(part):
        if field.name.upper() in values:
            object.__setattr__(made, field.name, values[field.name.upper()])
    return made
