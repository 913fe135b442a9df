"""How to learn, and where the arithmetic runs."""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch

from mario_rl.ranges import Between, Positive


@dataclass(frozen=True)
class LearningRules:
    """How to learn; hardware is not among it."""

    batch_size: Annotated[int, Between(2, 65_536)]  # of a micro-batch
    gradient_accumulation_steps: Annotated[int, Between(1, 1024)]  # micro-batches an optimizer step
    training_steps_per_sample: Annotated[int, Between(1, 1024)]  # micro-batches a sample call
    learning_rate: Annotated[float, Between(1e-9, 1.0)]
    final_learning_rate: Annotated[float, Between(1e-9, 1.0)]
    learning_rate_decay_decisions: Annotated[int, Positive]
    adam_epsilon: Annotated[float, Between(1e-12, 1.0)]
    max_gradient_norm: Annotated[float, Between(1e-6, 1e6)]
    target_update: Literal["hard", "soft"]
    target_update_interval: Annotated[int, Positive]  # updates, for "hard"
    target_tau: Annotated[float, Between(1e-6, 1.0)]  # for "soft"
    weight_averaging: Annotated[float, Between(0.0, 1.0)]  # the share of all updates that the average looks back over

    @property
    def sample_size(self) -> int:
        """Experiences that one sample call draws."""
        return self.batch_size * self.training_steps_per_sample

    @property
    def samples_per_round(self) -> int:
        """Sample calls of one round, which makes whole updates."""
        return max(1, self.gradient_accumulation_steps // self.training_steps_per_sample)

    def conflicts(self) -> list[str]:
        """Sample calls and updates that do not fit into each other."""
        steps, accumulation = self.training_steps_per_sample, self.gradient_accumulation_steps
        if steps % accumulation == 0 or accumulation % steps == 0:
            return []
        return [
            f"TRAINING_STEPS_PER_SAMPLE = {steps} and GRADIENT_ACCUMULATION_STEPS = {accumulation}: "
            "one must divide the other; set both to the same number."
        ]


class Execution(NamedTuple):
    """Where and how the arithmetic runs."""

    device: torch.device
    autocast_dtype: torch.dtype | None = None
    compile_mode: str | None = None
    num_gpus: int = 0
