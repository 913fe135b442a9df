"""How colours become the grey levels that the agent sees.

By the eye's weights Mario and his enemies are about as bright as the sky behind them: red and brown against blue. So
blue is made dark, but only as far as it outweighs red and green: the teal of everything that lives underground, where
nothing is red, stays bright on black.
"""

import numpy as np
import numpy.typing as npt

RED_SHARE = 0.8  # of red against green: Mario differs from what is white or light green


def grey_levels(rgb: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Grey levels of colours."""  # [..., 3] -> [...]
    red, green, blue = np.moveaxis(rgb.astype(np.int16), -1, 0)
    warm = np.maximum(np.rint(RED_SHARE * red).astype(np.int16), green)
    levels: npt.NDArray[np.uint8] = np.clip(warm - np.maximum(blue - warm, 0), 0, 255).astype(np.uint8)
    return levels
