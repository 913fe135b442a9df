"""The last four pictures of every game, as the network wants them: interleaved pixel by pixel ("channels last").

A pixel of four pictures is one 32-bit word with the oldest in its lowest byte, so a new picture is a shift of words.
Four separate pictures are faster to push but must be interleaved whenever the network is asked, which took five times
as long as both together take now.
"""

import numpy as np
import numpy.typing as npt
import torch

from mario_rl.experience import FRAME_SIZE, STACK_SIZE, FrameArray

assert STACK_SIZE == 4, "a pixel of four pictures is one 32-bit word"
_BITS, _EVERYWHERE = 8, 0x01010101


class PictureStacks:
    """One stack a game."""

    def __init__(self, num_games: int) -> None:
        self._words = np.zeros((num_games, FRAME_SIZE, FRAME_SIZE), "<u4")

    def push(self, pictures: FrameArray, begins: npt.NDArray[np.bool_]) -> None:
        """Put the newest pictures on the stacks; an episode's first fills its whole stack."""
        # pictures: [games, 84, 84], begins: [games]
        newest = pictures.astype("<u4")
        self._words >>= _BITS
        self._words |= newest << _BITS * (STACK_SIZE - 1)
        if begins.any():
            self._words[begins] = newest[begins] * _EVERYWHERE

    def pictures(self, games: npt.NDArray[np.int64] | slice = slice(None)) -> torch.Tensor:
        """The stacks of some games; with a slice they are live."""  # [games, 4, 84, 84] channels last
        words = self._words[games]
        interleaved = words.view(np.uint8).reshape(len(words), FRAME_SIZE, FRAME_SIZE, STACK_SIZE)
        return torch.from_numpy(interleaved).permute(0, 3, 1, 2)
