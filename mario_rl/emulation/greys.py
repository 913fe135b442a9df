"""How colours become the grey levels that the agent sees.

By the eye's weights (0.299, 0.587, 0.114) Mario and his enemies are about as bright as the sky behind them: red and
brown against blue. These weights make blue dark and red bright, so that what moves stands out, above ground and below.
"""

import numpy as np
import numpy.typing as npt

GREY_WEIGHTS = (0.7, 0.45, -0.15)  # of red, green and blue; what falls below 0 is black


def grey_levels(rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Grey levels of colours."""  # [..., 3] -> [...]
    levels: npt.NDArray[np.uint8] = np.rint(np.clip(rgb @ np.array(GREY_WEIGHTS), 0, 255)).astype(np.uint8)
    return levels
