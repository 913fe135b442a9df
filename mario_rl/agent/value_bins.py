"""Values as histograms: the network learns how likely each range of returns is, and a value is the histogram's mean.

A regression with Huber's loss settles near the median: of a jump that fails one time in five it hardly notices the
failures. Squares find the mean, but one surprise moves them as much as a hundred ordinary errors. A classification into
bins finds the mean as well, and no sample pulls harder than another (docs/method.md). The target of a single sample is
spread over its neighbouring bins by a narrow bell curve, so that close values look alike.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

_SPREAD = 0.75  # standard deviation of the bell curve, in bins


class ValueBins(nn.Module):
    """Bins of equal width between two values. It holds nothing that is trained or saved."""

    edges: Tensor  # [bins + 1]
    centres: Tensor  # [bins]

    def __init__(self, low: float, high: float, count: int) -> None:
        super().__init__()
        edges = torch.linspace(low, high, count + 1)
        self.register_buffer("edges", edges, persistent=False)
        self.register_buffer("centres", (edges[:-1] + edges[1:]) / 2, persistent=False)
        self._spread = _SPREAD * (high - low) / count

    def mean(self, outputs: Tensor) -> Tensor:
        """The values that histograms stand for."""  # [..., bins] logits -> [...]
        return (outputs.softmax(dim=-1) * self.centres).sum(dim=-1)

    def first_guess(self) -> Tensor:
        """Where the output layer's bias begins: a bell curve around 0. Without it, the middle of all bins."""  # [bins]
        return -(self.centres**2) / 2

    def targets(self, next_outputs: Tensor, returns: Tensor, discounts: Tensor) -> Tensor:
        """What the actions taken were worth, given the histograms that follow."""  # [B, bins], [B], [B] -> [B]
        return returns + discounts * self.mean(next_outputs)

    def target_values(self, targets: Tensor) -> Tensor:
        """Targets as plain values."""  # [B] -> [B]
        return targets

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How far histograms are from their targets: the cross-entropy."""  # [B, bins], [B] -> [B]
        return functional.cross_entropy(outputs, self.histogram(targets), reduction="none")

    def histogram(self, values: Tensor) -> Tensor:
        """What histograms of single values should be; those outside count as the nearest inside."""  # [B] -> [B, bins]
        inside = values.clamp(self.edges[0], self.edges[-1])
        below = torch.erf((self.edges - inside[:, None]) / (math.sqrt(2) * self._spread))  # at each edge
        return below.diff(dim=1) / (below[:, -1:] - below[:, :1])
