"""What the agent sees besides the screen: whether it is holding A and B.

A jump begins only when A goes down. Mario in front of a wall with A held stands still, and so he does without: the
screen is the same, but in one case he must let go first. Without this, a greedy policy stands there forever.
"""

import numpy as np
import numpy.typing as npt

from mario_rl.environment.actions import A, B
from mario_rl.experience import FrameArray

BLOCK = 8  # pixels: one window of the first convolution. The corner shows nothing that ever changes.


def show_buttons(pictures: FrameArray, buttons: npt.NDArray[np.uint8]) -> None:
    """Paint a white block for a button that is held and a black one for one that is not: A, and B beside it."""
    # pictures: [games, 84, 84], buttons: [games]
    for place, button in enumerate((A, B)):
        block = pictures[:, :BLOCK, place * BLOCK : (place + 1) * BLOCK]
        block[:] = np.where(buttons & button, np.uint8(255), np.uint8(0))[:, None, None]
