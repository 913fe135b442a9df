"""Flow control: the replay ratio, and who has to wait for it. Pure arithmetic, no clock, no thread.

Training is allowed while `trained <= ratio x collected`, collecting while `collected < trained / ratio + slack`; both
are counted from the end of the warm-up. The slack exceeds everything that can be collected but not yet committed, so
the two can never wait for each other.
"""

from dataclasses import dataclass
from typing import Any


@dataclass
class FlowControl:
    """Experiences are decisions whose rows lie in replay. Used by the main loop only."""

    replay_ratio: float  # 0: nobody waits
    warmup: int  # experiences before the first update
    slack: int  # experiences that collectors may be ahead
    begin_collected: int = 0  # the ratio counts from here ...
    begin_trained: int = 0  # ... and here

    def __post_init__(self) -> None:
        self.begin_collected = self.warmup

    def may_train(self, collected: int, trained: int) -> bool:
        """Whether the learner may go on."""
        if collected < self.begin_collected:
            return False
        return not self.replay_ratio or (
            trained - self.begin_trained <= self.replay_ratio * (collected - self.begin_collected)
        )

    def collection_limit(self, trained: int) -> int | None:
        """How far all collectors together may go; None: as far as they like."""
        if not self.replay_ratio:
            return None
        return self.begin_collected + int((trained - self.begin_trained) / self.replay_ratio) + self.slack

    def warm_up_again(self, collected: int, trained: int) -> None:
        """Replay is empty (a resume without it): fill it before training goes on."""
        self.begin_collected = collected + self.warmup
        self.begin_trained = trained

    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        return {
            "replay_ratio": self.replay_ratio,
            "begin_collected": self.begin_collected,
            "begin_trained": self.begin_trained,
        }

    def load_state(self, state: dict[str, Any], collected: int, trained: int) -> None:
        """From a checkpoint. A ratio that was changed counts from now on, or somebody would have to catch up first."""
        self.begin_collected, self.begin_trained = state["begin_collected"], state["begin_trained"]
        if state["replay_ratio"] != self.replay_ratio and collected >= self.begin_collected:
            self.begin_collected, self.begin_trained = collected, trained


def share_out(limit: int | None, written: list[int], written_before: int) -> list[int | None]:
    """How far each collector may go, so that all together stay within `limit`; None: as far as it likes.

    `written` is what each has written in this session, `written_before` what all wrote in earlier ones.
    """
    if limit is None:
        return [None] * len(written)
    left = max(0, limit - written_before - sum(written))
    return [mine + left // len(written) for mine in written]
