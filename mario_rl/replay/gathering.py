"""Gathering the pictures of a batch: from single frames in replay to stacks, in the layout the network wants.

A convolution on a CPU, and a GPU's tensor cores, want the four pictures of a stack interleaved pixel by pixel
("channels last"). Doing that while gathering costs nothing, doing it later costs a sixth of an update
(docs/experiments.md).
"""

import numpy as np
import numpy.typing as npt
import torch

from mario_rl.experience import FRAME_SIZE, STACK_SIZE

try:
    from mario_rl.machine.compiling import compiled
except (ImportError, OSError):  # no numba, or no folder for what it compiles
    _is_compiled = False
else:
    _is_compiled = True

assert STACK_SIZE == 4, "a pixel of four pictures is one 32-bit word"


def empty_stacks(count: int, pinned: bool = False) -> torch.Tensor:
    """Room for `count` pairs of stacks; in memory the four pictures of a stack are interleaved."""  # [B, 2, 4, 84, 84]
    memory = torch.zeros(count, 2, FRAME_SIZE, FRAME_SIZE, STACK_SIZE, dtype=torch.uint8, pin_memory=pinned)
    return memory.permute(0, 1, 4, 2, 3)


def gather_stacks(
    frames: torch.Tensor, places: npt.NDArray[np.int64], shifts: npt.NDArray[np.int64], out: torch.Tensor
) -> None:
    """Copy frames to where `empty_stacks` wants them, each stack shifted by its pixels. Holds no GIL.

    Pixels count along the rows, so 84 of them are one row up, and one is one column to the left. What comes in at the
    border is the end of the next row; at the picture's end, its last pixel.
    """
    # frames: [rows, 84 * 84], places: [B, 2, 4] rows, shifts: [B, 2] pixels, out: [B, 2, 4, 84, 84]
    interleaved = out.permute(0, 1, 3, 4, 2).view(-1, FRAME_SIZE * FRAME_SIZE, STACK_SIZE)
    places = places.reshape(-1, STACK_SIZE)
    if _is_compiled:
        _interleave(frames.numpy(), places, shifts.reshape(-1), interleaved.numpy().view(np.uint32)[..., 0])
        return
    last = FRAME_SIZE * FRAME_SIZE - 1
    pixels = torch.from_numpy(np.clip(np.arange(last + 1) + shifts.reshape(-1, 1), 0, last))
    for picture in range(STACK_SIZE):
        interleaved[:, :, picture] = frames[torch.from_numpy(places[:, picture])].gather(1, pixels)


def _interleave(
    frames: npt.NDArray[np.uint8],
    places: npt.NDArray[np.int64],  # [stacks, 4]
    shifts: npt.NDArray[np.int64],  # [stacks]
    out: npt.NDArray[np.uint32],  # [stacks, 84 * 84]
) -> None:
    for stack in range(len(places)):
        shift = shifts[stack]
        pixels = out[stack]
        begin, end = max(0, -shift), min(len(pixels), len(pixels) - shift)  # where there is something to copy
        first = frames[places[stack, 0], begin + shift : end + shift]
        second = frames[places[stack, 1], begin + shift : end + shift]
        third = frames[places[stack, 2], begin + shift : end + shift]
        fourth = frames[places[stack, 3], begin + shift : end + shift]
        inside = pixels[begin:end]
        for pixel in range(len(inside)):
            low = np.uint32(first[pixel]) | np.uint32(second[pixel]) << np.uint32(8)
            high = np.uint32(third[pixel]) | np.uint32(fourth[pixel]) << np.uint32(8)
            inside[pixel] = low | high << np.uint32(16)
        pixels[:begin] = pixels[begin]
        pixels[end:] = pixels[end - 1]


if _is_compiled:
    _interleave = compiled(_interleave)
