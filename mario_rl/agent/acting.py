"""What collectors and tests ask: which action is the best one?

In eval mode, scaling pictures and BatchNorm are fixed multiplications and additions, so they are folded into the
convolutions beforehand: five passes over memory less, for a batch so small that they count (docs/architecture.md).
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from mario_rl.agent.network import PICTURE_SCALE, QNetwork


class ActingNetwork:
    """The greedy policy of a Q-network, as it was when `refresh` was last called."""

    def __init__(self, network: QNetwork) -> None:
        self._network = network
        self.refresh()

    def refresh(self) -> None:
        """Take over the network's present weights and statistics."""
        layers = list(self._network.features)  # each convolution is followed by its BatchNorm and a ReLU
        convolutions, norms = layers[0::3], layers[1::3]
        self._convolutions = [
            _fold(convolution, norm, sees_pictures=convolution is layers[0])
            for convolution, norm in zip(convolutions, norms, strict=True)
        ]

    @torch.inference_mode()
    def best_actions(self, stacks: Tensor) -> npt.NDArray[np.int64]:
        """What a greedy policy does."""  # [B, 4, 84, 84] uint8 -> [B]
        features = stacks.to(torch.float32)
        for weight, bias, stride in self._convolutions:
            features = functional.conv2d(features, weight, bias, stride).relu_()
        best: npt.NDArray[np.int64] = self._network.values(features.flatten(1)).argmax(dim=1).numpy()
        return best


@torch.no_grad()
def _fold(convolution: nn.Module, norm: nn.Module, *, sees_pictures: bool) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Weights, biases and stride of a convolution that does what scaling, this convolution and this BatchNorm do."""
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    weight, bias = convolution.weight, -norm.running_mean
    if sees_pictures:  # which are scaled: (x - scale) / scale
        weight, bias = weight / PICTURE_SCALE, bias - weight.sum(dim=(1, 2, 3))
    factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    folded = (weight * factor[:, None, None, None]).contiguous(memory_format=torch.channels_last)
    return folded, bias * factor + norm.bias, convolution.stride
