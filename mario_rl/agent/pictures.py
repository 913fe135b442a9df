"""Pictures as a network wants them."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

try:
    from mario_rl.machine.compiling import compiled
except (ImportError, OSError):  # no numba, or no folder for what it compiles
    _is_compiled = False
else:
    _is_compiled = True

PICTURE_SCALE = 127.5  # half of a picture's range, and its middle


def scale_pictures(stacks: Tensor, out: Tensor | None = None) -> Tensor:
    """uint8 stacks as the network wants them: -1..1, channels last; into `out` where one is given.

    Centred, because the mean of a convolution's output is its weights times the mean of its input: with 0..1 every
    update moves that mean by a large part of its spread, and BatchNorm's running statistics are always behind.
    """
    if out is None:
        out = torch.empty(stacks.shape, device=stacks.device, memory_format=torch.channels_last)
    source, target = _interleaved(stacks), _interleaved(out)
    if not _is_compiled or source is None or target is None:
        return _scaled(out.copy_(stacks)) if out.dtype is torch.float32 else out.copy_(_scaled(stacks.float()))
    # Three passes over memory in one: a twentieth of an update.
    table = _scaled(torch.arange(256.0)).to(out.dtype)
    _look_up(source.numpy(), table.view(_BITS[out.dtype]).numpy(), target.view(_BITS[out.dtype]).numpy())
    return out


_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}  # NumPy knows no bfloat16


def _scaled(pixels: Tensor) -> Tensor:
    return pixels.sub_(PICTURE_SCALE).mul_(1 / PICTURE_SCALE)


def _interleaved(stacks: Tensor) -> Tensor | None:
    """Each stack as a row of memory, if its pictures are interleaved, and in main memory."""  # [B, 84 * 84 * 4]
    rows = stacks.permute(0, 2, 3, 1)
    is_row = rows.stride()[1:] == (rows.shape[2] * rows.shape[3], rows.shape[3], 1)
    return rows.flatten(1) if is_row and stacks.device.type == "cpu" else None


def _look_up(pixels: npt.NDArray[np.uint8], table: npt.NDArray[np.generic], out: npt.NDArray[np.generic]) -> None:
    for row in range(len(pixels)):
        source, target = pixels[row], out[row]
        for number in range(len(source)):
            target[number] = table[source[number]]


if _is_compiled:
    _look_up = compiled(_look_up)
