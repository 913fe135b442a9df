"""Replay as blocks of bytes, and back: what a checkpoint keeps of it. Compressed with zstd; no pickle.

Appends may go on while blocks are made: rows are copied first, and a block whose rows were claimed by then is left out.
"""

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import zstandard

from mario_rl.replay.streams import BYTES_PER_STORED_ROW, FRAME_BYTES, ReplayStreams, StoredRows
from mario_rl.saved_part import check_like

ROWS_PER_BLOCK = 512  # 3.6 MB before compression
COMPRESSED_SHARE = 0.15  # of replay's pictures that is left by compression; 0.06 for what a policy plays in 1-1


class ReplayBlocks:
    """Replay's rows, newest first, until the time is over; the streams take turns."""

    def __init__(self, replay: ReplayStreams, budget_seconds: float) -> None:
        self._replay = replay
        self._deadline = time.monotonic() + budget_seconds
        self._counters = replay.counters()
        self._blocks: list[dict[str, int]] = []

    def __iter__(self) -> Iterator[bytes]:
        replay, counters = self._replay, self._counters
        compressor = zstandard.ZstdCompressor(level=1)
        unsaved = {stream: counters["written_end"][stream] for stream in range(replay.num_streams)}
        offset = 0
        while unsaved:
            for stream, end in list(unsaved.items()):
                begin = max(replay.oldest(stream), end - ROWS_PER_BLOCK)
                counters["first_kept"][stream] = end
                if begin >= end or (time.monotonic() > self._deadline and self._blocks):
                    del unsaved[stream]
                    continue
                rows = replay.read(stream, begin, end)
                if begin < int(replay.claimed_end[stream]) - replay.length:
                    del unsaved[stream]
                    continue
                content = compressor.compress(b"".join(np.ascontiguousarray(column).tobytes() for column in rows))
                self._blocks.append({"stream": stream, "begin": begin, "offset": offset, "size": len(content)})
                yield content
                offset += len(content)
                unsaved[stream] = begin

    @property
    def layout(self) -> dict[str, Any]:
        """Where the rows of each block belong, once all blocks were taken."""
        streams = {"num_streams": self._replay.num_streams, "length": self._replay.length}
        return streams | {"blocks": self._blocks, "counters": self._counters}


def restore_replay(
    replay: ReplayStreams,
    layout: Any,
    read: Callable[[], bytes],
    streams_per_collector: int,
    num_actions: int,
) -> bool:
    """Fill replay from saved blocks, which are read if they are of this number and length of streams; else False.

    ValueError, TypeError or LookupError where what is given is no replay; then replay must not be used.
    """
    if layout["num_streams"] != replay.num_streams or layout["length"] != replay.length:
        return False
    counters = layout["counters"]
    check_like(counters, replay.counters(), "replay.counters")
    # A collector's streams grow in step; those of a run with other processes did so in other groups.
    groups = np.reshape(counters["written_end"], (-1, streams_per_collector))
    if (groups != groups[:, :1]).any():
        return False
    packed = read()
    unfilled_end = list(counters["written_end"])  # of each stream: blocks come newest first and leave no gap
    for number, block in enumerate(layout["blocks"]):
        check_like(block, dict.fromkeys(("stream", "begin", "offset", "size"), 0), f"replay.blocks[{number}]")
        stream, begin, offset = block["stream"], block["begin"], block["offset"]
        rows = _unpack_rows(packed[offset : offset + block["size"]], replay.length)
        if not 0 <= stream < replay.num_streams or begin < 0 or begin + len(rows.action) != unfilled_end[stream]:
            raise ValueError(f"replay.blocks[{number}] is not where it belongs")
        if int(rows.action.max()) >= num_actions:
            raise ValueError("replay holds an action that there is not")
        replay.restore(stream, begin, rows)
        unfilled_end[stream] = begin
    if unfilled_end != counters["first_kept"]:
        raise ValueError("replay.blocks are not all there")
    replay.restore_counters(counters)
    return True


def _unpack_rows(packed: bytes, most_rows: int) -> StoredRows:
    """The rows of a block; ValueError where it is none. It may claim any size: that is looked at first."""
    try:
        num_rows, rest = divmod(zstandard.frame_content_size(packed), BYTES_PER_STORED_ROW)
        if rest or not 0 < num_rows <= most_rows:
            raise ValueError("a block of replay has another size than its rows")
        content = zstandard.ZstdDecompressor().decompress(packed)
    except zstandard.ZstdError as error:
        raise ValueError(f"a block of replay cannot be unpacked: {error}") from None
    bounds = np.cumsum([0, num_rows * FRAME_BYTES, num_rows, num_rows * 4, num_rows, num_rows])
    parts = [content[begin:end] for begin, end in pairwise(bounds)]
    return StoredRows(
        np.frombuffer(parts[0], np.uint8).reshape(num_rows, FRAME_BYTES),
        np.frombuffer(parts[1], np.uint8),
        np.frombuffer(parts[2], np.float32),
        np.frombuffer(parts[3], np.uint8),
        np.frombuffer(parts[4], np.uint8),
    )
