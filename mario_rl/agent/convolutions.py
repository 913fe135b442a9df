"""The trunk that ships: three convolutions, each with BatchNorm and a ReLU."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from mario_rl.agent.pictures import PICTURE_SCALE
from mario_rl.experience import FRAME_SIZE, STACK_SIZE

# kernel, stride of the three convolutions: 84 -> 20 -> 9 -> 7 pixels
_CONVOLUTIONS = ((8, 4), (4, 2), (3, 1))
# How far each batch moves BatchNorm's running statistics. The weights change with every update, so averages over many
# batches belong to weights of the past, while one batch's own statistics are good to one percent: follow them quickly.
# With torch's 0.1, acting and target networks have twice the error of the network in training (docs/experiments.md).
_STATISTICS_MOMENTUM = 0.5


class BatchNormConvolutions(nn.Sequential):
    """Scaled pictures -> features. BatchNorm's shift stands in for the convolutions' biases."""

    def __init__(self, channels: tuple[int, int, int]) -> None:
        layers: list[nn.Module] = []
        size, inputs = FRAME_SIZE, STACK_SIZE
        for outputs, (kernel, stride) in zip(channels, _CONVOLUTIONS, strict=True):
            layers += [
                nn.Conv2d(inputs, outputs, kernel, stride, bias=False),
                nn.BatchNorm2d(outputs, momentum=_STATISTICS_MOMENTUM),
                nn.ReLU(inplace=True),
            ]
            size, inputs = (size - kernel) // stride + 1, outputs
        super().__init__(*layers)
        self.num_features = inputs * size * size

    def frozen(self) -> Callable[[Tensor], Tensor]:
        """The trunk as it is now, for acting: what eval mode multiplies and adds is folded into the convolutions.

        Scaling and BatchNorm are fixed there; without them there are five passes over memory less, which count in a
        batch as small as a collector's.
        """
        layers = list(self)
        folded = [
            _fold(convolution, norm, sees_pictures=convolution is layers[0])
            for convolution, norm in zip(layers[0::3], layers[1::3], strict=True)
        ]

        def features(stacks: Tensor) -> Tensor:
            result = stacks.to(torch.float32)
            for weight, bias, stride in folded:
                result = functional.conv2d(result, weight, bias, stride).relu_()
            return result

        return features


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
