"""Pictures as a network wants them."""

import torch
from torch import Tensor

PICTURE_SCALE = 127.5  # half of a picture's range, and its middle


def scale_pictures(stacks: Tensor, out: Tensor | None = None) -> Tensor:
    """uint8 stacks as the network wants them: -1..1, channels last; into `out` where one is given.

    Centred, because the mean of a convolution's output is its weights times the mean of its input: with 0..1 every
    update moves that mean by a large part of its spread, and BatchNorm's running statistics are always behind.
    """
    if out is None:
        out = torch.empty(stacks.shape, device=stacks.device, memory_format=torch.channels_last)
    return out.copy_(stacks).sub_(PICTURE_SCALE).mul_(1 / PICTURE_SCALE)
