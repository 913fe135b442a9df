"""What the agent sees, in words; and what it sees besides the screen: whether it is holding A and B.

A jump begins only when A goes down. Mario in front of a wall with A held stands still, and so he does without: the
screen is the same, but in one case he must let go first. Without this, a greedy policy stands there forever.
"""

import numpy as np
import numpy.typing as npt

from mario_rl.environment.actions import A, B
from mario_rl.experience import FrameArray

# Models and checkpoints tell it: a policy is of no use with pictures that were drawn in another way.
OBSERVATION = "4 pictures of 84 x 84 pixels, grey with a dark sky, -1 to 1, held buttons in the corner"

BLOCK = 8  # pixels: one window of the first convolution. The corner shows nothing that ever changes.
# White for a button that is held and black for one that is not: A's block, and B's beside it.
_CORNERS = np.zeros(((A | B) + 1, BLOCK, 2 * BLOCK), np.uint8)  # [buttons, 8, 16]
for _buttons in (A, B, A | B):
    _CORNERS[_buttons, :, :BLOCK] = 255 if _buttons & A else 0
    _CORNERS[_buttons, :, BLOCK:] = 255 if _buttons & B else 0


def show_buttons(pictures: FrameArray, buttons: npt.NDArray[np.uint8]) -> None:
    """Paint into the corner of every picture which of A and B are held."""
    # pictures: [games, 84, 84], buttons: [games]
    pictures[:, :BLOCK, : 2 * BLOCK] = _CORNERS[buttons & (A | B)]
