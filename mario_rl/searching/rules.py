"""What a user may say about the search."""

from dataclasses import dataclass
from typing import Annotated

from mario_rl.environment.actions import ActionSet
from mario_rl.ranges import Between


@dataclass(frozen=True)
class SearchRules:
    """How long a level is searched, and with which actions where those of the run do not suffice."""

    search_minutes: Annotated[float, Between(0.01, 10_000.0)]  # of a level, at most
    fallback_actions: ActionSet  # the same as the run's: none
