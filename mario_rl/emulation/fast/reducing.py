"""A screen of grey levels, reduced to 84 x 84 by area, within 1 of OpenCV's INTER_AREA. Compiled.

240 lines become 84 and 256 columns become 84: in units of 1/7 line, a line is 7 high and a result 20; in units of 1/21
column, a column is 21 wide and a result 64. Every weight is a whole number, so the sums are exact.
"""

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.emulator import SCREEN_HEIGHT, SCREEN_WIDTH
from mario_rl.experience import FRAME_SIZE
from mario_rl.machine.compiling import compiled

LINE, TALL = 7, 20
COLUMN, WIDE = 21, 64
assert LINE * SCREEN_HEIGHT == TALL * FRAME_SIZE
assert COLUMN * SCREEN_WIDTH == WIDE * FRAME_SIZE

# 64 columns make 21 results: result k of such a block begins k units inside column 3 k, and covers parts of four.
BLOCK_COLUMNS, BLOCK_RESULTS, STRIDE = 64, 21, 3
assert WIDE == STRIDE * COLUMN + 1


@compiled
def reduce_screen(screen: npt.NDArray[np.uint8], picture: npt.NDArray[np.uint8]) -> None:
    """Write the screen, reduced, into `picture`."""  # [240, 256] -> [84, 84]
    sums = np.empty(SCREEN_WIDTH, np.uint16)
    row = np.empty(FRAME_SIZE, np.uint8)
    for y in range(FRAME_SIZE):
        _sum_lines(screen, y, sums)
        _sum_columns(sums, row)
        for x in range(FRAME_SIZE):
            picture[y, x] = row[x]


@compiled
def _sum_lines(screen: npt.NDArray[np.uint8], y: int, sums: npt.NDArray[np.uint16]) -> None:
    """The lines that row `y` of the results covers, summed by weight."""
    top, bottom = y * TALL, (y + 1) * TALL
    sums[:] = 0
    for line in range(top // LINE, (bottom - 1) // LINE + 1):
        weight = np.uint16(min(bottom, (line + 1) * LINE) - max(top, line * LINE))
        for x in range(SCREEN_WIDTH):
            sums[x] += np.uint16(weight * screen[line, x])


@compiled
def _sum_columns(sums: npt.NDArray[np.uint16], row: npt.NDArray[np.uint8]) -> None:
    """Four columns a result, of weights 21 - k, 21, 21 and 1 + k, which make 64."""
    # In float32, whose sums are exact up to 2 ** 24: numba would make 64-bit integers of smaller ones.
    # Half a unit more than half keeps sums off the border between two results, where rounding `scale` could tip them.
    scale, half = np.float32(1 / (TALL * WIDE)), np.float32(TALL * WIDE / 2 + 0.5)
    for block in range(SCREEN_WIDTH // BLOCK_COLUMNS):
        columns = sums[block * BLOCK_COLUMNS :]
        results = row[block * BLOCK_RESULTS :]
        for k in range(BLOCK_RESULTS):
            one, two = np.float32(columns[STRIDE * k]), np.float32(columns[STRIDE * k + 1])
            three, four = np.float32(columns[STRIDE * k + 2]), np.float32(columns[STRIDE * k + 3])
            total = np.float32(COLUMN) * (one + two + three) + four + np.float32(k) * (four - one)
            results[k] = np.uint8(np.int32((total + half) * scale))
