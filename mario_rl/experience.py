"""The one table of fields, shapes and types that crosses the process boundary.

Every emulator leaves one row a tick. A row is normally an *experience*: the picture the agent saw, the action it took
and the training reward that followed. The last picture of an episode gets a row of its own, marked FINAL: no action
follows it, but a truncated episode bootstraps from it. Rings, replay and checkpoints are all laid out from this table.
"""

from enum import IntFlag
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FRAME_SIZE = 84  # pixels: pictures are 84 x 84 grey
STACK_SIZE = 4  # pictures the network sees at once

NO_CELL = -1  # nowhere on a map

FrameArray = npt.NDArray[np.uint8]


class Mark(IntFlag):
    """What a row is. Marks are bits, so that a sampler reads all of them with one gather."""

    START = 1  # first picture of an episode: no stack reaches back across it
    TERMINATED = 2  # the game ended the episode here: nothing follows, no bootstrap
    TRUNCATED = 4  # we cut the episode here: the value of the FINAL picture still counts
    FINAL = 8  # the picture after the last action; never drawn as a state
    PRACTICE = 32  # with FINAL: the episode began in the middle of the level and says nothing about the whole of it
    BREAK = 16  # rows before this one are missing: practice begins, or replay found a drop, a restart or a resume


class Field(NamedTuple):
    """One column of the table."""

    name: str
    dtype: type[np.generic]
    shape: tuple[int, ...]


class Rows(NamedTuple):
    """Arrays of the table's columns, with any leading shape: [envs, decisions] in a ring's slot."""

    frame: FrameArray  # [..., 84, 84] picture before the action
    action: npt.NDArray[np.uint8]  # [...]
    reward: npt.NDArray[np.float32]  # [...] training reward that followed the action
    marks: npt.NDArray[np.uint8]  # [...] bits of Mark
    # Filled on FINAL rows only: what the console tells about the finished episode.
    episode_reward: npt.NDArray[np.float32]  # [...] sum of the raw reward
    episode_distance: npt.NDArray[np.int32]  # [...] furthest x reached
    episode_decisions: npt.NDArray[np.int32]  # [...]
    episode_cleared: npt.NDArray[np.uint8]  # [...] 1 when the flag was reached
    # For the map. Replay does not keep it.
    cell: npt.NDArray[np.int64]  # [...] where Mario was in the picture; NO_CELL after a death


FIELDS = (
    Field("frame", np.uint8, (FRAME_SIZE, FRAME_SIZE)),
    Field("action", np.uint8, ()),
    Field("reward", np.float32, ()),
    Field("marks", np.uint8, ()),
    Field("episode_reward", np.float32, ()),
    Field("episode_distance", np.int32, ()),
    Field("episode_decisions", np.int32, ()),
    Field("episode_cleared", np.uint8, ()),
    Field("cell", np.int64, ()),
)
assert tuple(field.name for field in FIELDS) == Rows._fields

BYTES_PER_ROW = sum(np.dtype(field.dtype).itemsize * int(np.prod(field.shape)) for field in FIELDS)


class EpisodeSummary(NamedTuple):
    """A finished episode, as read off its FINAL row."""

    reward: float  # raw: the sum of gym-super-mario-bros' rewards
    distance: int  # furthest x, in pixels
    decisions: int
    cleared: bool


def finished_episodes(rows: Rows) -> list[EpisodeSummary]:
    """The episodes whose FINAL rows are among these; practice does not count."""
    final = (rows.marks & (Mark.FINAL | Mark.PRACTICE)) == Mark.FINAL
    return [
        EpisodeSummary(float(reward), int(distance), int(decisions), bool(cleared))
        for reward, distance, decisions, cleared in zip(
            rows.episode_reward[final],
            rows.episode_distance[final],
            rows.episode_decisions[final],
            rows.episode_cleared[final],
            strict=True,
        )
    ]
