"""Where the main loop is; it continues across a resume."""

from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor

from mario_rl.evaluation.results import Score
from mario_rl.experience import EpisodeSummary
from mario_rl.saved_part import check_counts, check_like
from mario_rl.telemetry.metrics import Metrics


@dataclass
class Progress:
    """Counters of the main loop alone."""

    epoch: int = 0
    num_episodes: int = 0  # that belong to finished epochs
    published_epoch: int = 0
    published_decisions: int = 0
    training_seconds: float = 0.0  # of earlier sessions
    best_distance: int = 0  # of a single episode
    num_clears: int = 0
    evaluated_decisions: int = 0  # when an evaluation was last asked for
    evaluations: list[Score] = field(default_factory=list)  # in their order; the largest is the best policy's
    has_unsaved_best: bool = False  # the last of them was the best so far, and no checkpoint followed yet

    def add_epoch(self, episodes: list[EpisodeSummary]) -> None:
        """An epoch is over, which these episodes make up."""
        self.epoch += 1
        self.num_episodes += len(episodes)
        self.best_distance = max(self.best_distance, *(episode.distance for episode in episodes))
        self.num_clears += sum(episode.cleared for episode in episodes)

    def add_evaluation(self, score: Score) -> bool:
        """Keep an evaluation's score; whether it is the best so far."""
        is_best = all(score > earlier for earlier in self.evaluations)
        self.evaluations.append(score)
        self.has_unsaved_best |= is_best
        return is_best

    def metrics(self) -> Metrics:
        """Since the run's beginning."""
        return {
            "run/epoch": self.epoch,
            "run/clears": self.num_clears,
            "episodes/best_distance": self.best_distance,
        }

    def state(self) -> dict[str, Any]:
        """For a checkpoint, after which no best policy is unsaved."""
        return vars(self) | {"evaluations": [list(score) for score in self.evaluations], "has_unsaved_best": False}

    def tensors(self) -> dict[str, Tensor]:
        """None."""
        return {}

    def check(self, state: Any, tensors: dict[str, Tensor]) -> None:
        """Counts, and scores of three figures."""
        evaluations = [[0.0, 0.0, 0.0] for _ in state.get("evaluations", [])]
        check_like(state, vars(Progress()) | {"evaluations": evaluations}, "progress")
        check_counts(state, "progress")

    def load(self, state: Any, tensors: dict[str, Tensor]) -> list[str]:
        """Go on from there. A checkpoint of another version may hold more or less."""
        for entry in fields(self):
            if entry.name in state:
                setattr(self, entry.name, state[entry.name])
        self.evaluations = [Score(*figures) for figures in self.evaluations]
        return []
