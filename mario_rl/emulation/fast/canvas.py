"""What a frame is drawn on. It is no part of a console's state: a frame that is drawn paints every pixel of it.

So one canvas serves all games that are played one after the other, and stays in the processor's cache. Each thread has
its own.
"""

from typing import Any, TypeAlias

import numpy as np

from mario_rl.emulation.emulator import SCREEN_HEIGHT, SCREEN_WIDTH

TILES_PER_LINE = 33  # 32, and one more when a line begins inside a tile

# A record of CANVAS. To numba it is a typed record; mypy cannot see its fields.
Canvas: TypeAlias = Any

CANVAS = np.dtype(
    [
        ("drawing", np.int64),  # whether the frame in hand will be looked at
        ("screen", np.uint8, (SCREEN_HEIGHT, SCREEN_WIDTH)),  # in inks (see picture.py)
        # Looked up once for many lines, until something changes.
        ("prepared", np.int64),  # whether what follows is up to date
        ("palette_words", np.uint64, 16),
        ("line_sprites", np.uint8, (SCREEN_HEIGHT, 8)),
        ("num_line_sprites", np.uint8, SCREEN_HEIGHT),
        ("fetched_row", np.int64),  # where the row of tiles below begins; -1: there is none
        ("tile_patterns", np.int64, TILES_PER_LINE),
        ("row_pixels", np.uint64, (8, TILES_PER_LINE)),  # the tiles' eight lines, before sprites
    ],
    align=True,
)
