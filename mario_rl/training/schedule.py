"""How often the main loop does what it does now and then."""

from dataclasses import dataclass
from typing import Annotated

from mario_rl.ranges import Between, Positive


@dataclass(frozen=True)
class ScheduleRules:
    """In epochs, or in decisions of the whole run."""

    episodes_per_epoch: Annotated[int, Positive]
    model_update_frequency: Annotated[int, Positive]  # epochs between two publications ...
    publish_max_decisions: Annotated[int, Positive]  # ... or decisions, whichever comes first
    evaluation_decisions: Annotated[int, Between(0, 10**9)]  # between two evaluations; 0: none
    checkpoint_epochs: Annotated[int, Positive]
    cache_clear_epochs: Annotated[int, Between(0, 10**9)]  # 0: never
