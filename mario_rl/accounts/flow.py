"""Flow control: the replay ratio, and who has to wait for it. Pure arithmetic, no clock, no thread.

Training is allowed while `trained <= ratio x collected`, collecting while `collected < trained / ratio + slack`; both
are counted from the end of the warm-up. The slack exceeds everything that can be collected but not yet committed, so
the two can never wait for each other.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from mario_rl.ranges import Between, Positive
from mario_rl.saved_part import check_counts, check_like


@dataclass(frozen=True)
class FlowRules:
    """How often each experience is used."""

    warmup_experiences: Annotated[int, Positive]  # before the first update
    replay_ratio: Annotated[float, Between(0.0, 1e3)]  # 0: neither side waits for the other


def slack_for(commit_size: int, chunk_experiences: int, num_collectors: int) -> int:
    """How far collectors may be ahead: more than can be collected but not committed, or both sides could wait.

    That is a batch which does not make a commit yet, and two chunks of every collector: one in its ring, and one that
    it was filling when its grant was used up.
    """
    return commit_size + 2 * num_collectors * chunk_experiences


@dataclass
class FlowControl:
    """Experiences are decisions whose rows lie in replay. Used by the main loop only."""

    rules: FlowRules
    slack: int  # experiences that collectors may be ahead
    begin_collected: int = 0  # the ratio counts from here ...
    begin_trained: int = 0  # ... and here

    def __post_init__(self) -> None:
        self.begin_collected = self.rules.warmup_experiences

    def may_train(self, collected: int, trained: int) -> bool:
        """Whether the learner may go on."""
        if collected < self.begin_collected:
            return False
        ratio = self.rules.replay_ratio
        return not ratio or trained - self.begin_trained <= ratio * (collected - self.begin_collected)

    def collection_limit(self, trained: int) -> int | None:
        """How far all collectors together may go; None: as far as they like."""
        if not self.rules.replay_ratio:
            return None
        return self.begin_collected + int((trained - self.begin_trained) / self.rules.replay_ratio) + self.slack

    def warm_up_again(self, collected: int, trained: int) -> None:
        """Replay is empty (a resume without it): fill it before training goes on."""
        self.begin_collected = collected + self.rules.warmup_experiences
        self.begin_trained = trained

    def state(self) -> dict[str, Any]:
        """For checkpoints."""
        return {
            "replay_ratio": self.rules.replay_ratio,
            "begin_collected": self.begin_collected,
            "begin_trained": self.begin_trained,
        }

    def tensors(self) -> dict[str, Tensor]:
        """None."""
        return {}

    def check(self, state: Any, tensors: dict[str, Tensor]) -> None:
        """Counts, and a number."""
        check_like(state, self.state(), "flow")
        check_counts(state, "flow")

    def load(self, state: Any, tensors: dict[str, Tensor]) -> list[str]:
        """From a checkpoint; `follow_new_ratio` comes next, once the counters are known."""
        self.begin_collected, self.begin_trained = state["begin_collected"], state["begin_trained"]
        self._saved_ratio = state["replay_ratio"]
        return []

    def follow_new_ratio(self, collected: int, trained: int) -> None:
        """A ratio that was changed for a resume counts from now on, or one side would have to catch up first."""
        if self._saved_ratio != self.rules.replay_ratio and collected >= self.begin_collected:
            self.begin_collected, self.begin_trained = collected, trained


def share_out(limit: int | None, written: list[int], written_before: int) -> list[int | None]:
    """How far each collector may go, so that all together stay within `limit`; None: as far as it likes.

    `written` is what each has written in this session, `written_before` what all wrote in earlier ones.
    """
    if limit is None:
        return [None] * len(written)
    left = max(0, limit - written_before - sum(written))
    return [mine + left // len(written) for mine in written]
