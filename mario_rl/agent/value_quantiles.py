"""Values as quantiles: the network learns what the return exceeds with probability 1 - 1/2n, 1 - 3/2n, ... 1/2n.

The other way to learn a whole distribution (VALUE_HEAD = "quantiles"). It needs no range of values, because quantiles
lie wherever the returns do. The target of a sample is the whole distribution that follows it, so a risk several
decisions ahead is seen as a risk and not only as its mean.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional


class ValueQuantiles(nn.Module):
    """Quantiles in the middle of n equally likely parts. It holds nothing that is trained or saved."""

    levels: Tensor  # [quantiles] the share of returns that lie below each

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("levels", (torch.arange(count) + 0.5) / count, persistent=False)

    def mean(self, outputs: Tensor) -> Tensor:
        """The values that quantiles stand for."""  # [..., quantiles] -> [...]
        return outputs.mean(dim=-1)

    def first_guess(self) -> Tensor:
        """Where the output layer's bias begins."""  # [quantiles]
        return torch.zeros_like(self.levels)

    def targets(self, next_outputs: Tensor, returns: Tensor, discounts: Tensor) -> Tensor:
        """What may follow, seen from the actions taken."""  # [B, quantiles], [B], [B] -> [B, quantiles]
        return returns[:, None] + discounts[:, None] * next_outputs

    def target_values(self, targets: Tensor) -> Tensor:
        """Targets as plain values."""  # [B, quantiles] -> [B]
        return targets.mean(dim=1)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Quantile regression: of an error, a share of `level` counts when too low, and the rest when too high."""
        # [B, quantiles], [B, quantiles] -> [B]; every output is compared with every target
        errors = targets[:, None, :] - outputs[:, :, None]
        sides = (self.levels[:, None] - (errors < 0).to(errors.dtype)).abs()
        sizes = functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")
        return (sides * sizes).mean(dim=2).sum(dim=1)
