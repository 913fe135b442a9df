"""Replay memory: one circular stream of rows for each emulator, all in one pre-allocated block.

A row holds a single picture (7 KB); stacks of four and n-step returns are built when a batch is drawn. Storing both
stacks of every experience, as is common, takes eight times as much.

Shared by two threads of the learner process without a lock. The consolidation thread appends, the sampling thread
reads. Rows are counted from the stream's beginning and never renumbered, so `written_end` says everything: a row lies
at `number % length`, is complete if `number < written_end`, and may be overwritten if `number < claimed_end - length`.
An append claims rows first, writes, and then counts them; a sampler checks the claim after its gather
(`sampler.py`). CPython's own lock orders those steps.
"""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mario_rl.experience import FRAME_SIZE, STACK_SIZE, Mark, Rows
from mario_rl.ranges import Positive

FRAME_BYTES = FRAME_SIZE * FRAME_SIZE
BYTES_PER_STORED_ROW = FRAME_BYTES + 1 + 4 + 1 + 1
# A drawn row must be this much younger than the oldest one, so that a commit during the gather seldom touches it.
GUARD_ROWS = 64

_BEGINS, _FINAL = int(Mark.START | Mark.BREAK), int(Mark.FINAL)  # plain: arithmetic with enums costs microseconds


@dataclass(frozen=True)
class ReplayRules:
    """How much is remembered."""

    buffer_size: Annotated[int, Positive]  # experiences of all streams together


class StoredRows(NamedTuple):
    """The columns that replay keeps: of all streams, or of a contiguous part of one, which is what checkpoints move."""

    frame: npt.NDArray[np.uint8]  # [..., 84 * 84]
    action: npt.NDArray[np.uint8]  # [...]
    reward: npt.NDArray[np.float32]  # [...]
    marks: npt.NDArray[np.uint8]  # [...]
    history: npt.NDArray[np.uint8]  # [...]


class ReplayStreams:
    """The memory itself."""

    def __init__(self, num_streams: int, capacity: int) -> None:
        self.num_streams = num_streams
        self.length = capacity // num_streams  # rows a stream holds
        num_rows = num_streams * self.length
        # zeros, not empty: the pages are touched now, and the first lap is as fast as the others
        self.frames = torch.zeros(num_rows, FRAME_BYTES, dtype=torch.uint8)
        self.action = np.zeros(num_rows, np.uint8)
        self.reward = np.zeros(num_rows, np.float32)
        self.marks = np.zeros(num_rows, np.uint8)
        # How many pictures before this one lie in memory for its stack: 0 at a start or break, then 1, 2, 3, 3, ...
        self.history = np.zeros(num_rows, np.uint8)
        self.written_end = np.zeros(num_streams, np.int64)
        self.claimed_end = np.zeros(num_streams, np.int64)
        # Rows before this one are not in memory: a checkpoint's time budget may leave the oldest out.
        self.first_kept = np.zeros(num_streams, np.int64)
        # The same memory as two-dimensional arrays.
        shape = (num_streams, self.length)
        self._by_stream = StoredRows(
            self.frames.numpy().reshape(*shape, FRAME_BYTES),
            self.action.reshape(shape),
            self.reward.reshape(shape),
            self.marks.reshape(shape),
            self.history.reshape(shape),
        )
        self._must_break = np.ones(num_streams, np.bool_)
        self.num_overwritten = 0  # decisions that lay here once, since this process started

    @property
    def num_rows(self) -> int:
        """Rows in memory now."""
        return int((self.written_end - np.maximum(self.first_kept, self.written_end - self.length)).sum())

    @property
    def num_decisions(self) -> int:
        """Rows in memory now without the final pictures, on which no decision was made."""
        return self.num_rows - int(np.count_nonzero(self.marks & _FINAL))

    def metrics(self) -> dict[str, float]:
        """What is in memory, and what has left it."""
        return {
            "replay/rows": self.num_rows,
            "replay/decisions": self.num_decisions,
            "replay/overwritten_decisions": self.num_overwritten,
        }

    def interrupt(self, stream: int) -> None:
        """What comes next in this stream does not continue what is there."""
        self._must_break[stream] = True

    def append(self, first_stream: int, rows: Rows) -> None:
        """Add a chunk: the rows of one collector's emulators, whose streams lie side by side and grow in step.

        Consolidation thread only.
        """  # rows: [envs, T, ...]
        num_envs, count = rows.action.shape
        assert count <= self.length - 2 * GUARD_ROWS, "a chunk must be much shorter than a stream"
        group = slice(first_stream, first_stream + num_envs)
        begin = int(self.written_end[first_stream])
        assert (self.written_end[group] == begin).all(), "streams of one collector grow in step"
        self.claimed_end[group] = begin + count
        marks = rows.marks.copy()
        marks[self._must_break[group], 0] |= np.uint8(Mark.BREAK)
        self._must_break[group] = False
        history = self._history_of(group, begin, marks)
        rows_before, finals_overwritten = self.num_rows, 0
        done = 0
        while done < count:  # twice at most: up to the stream's end, then from its beginning
            at = (begin + done) % self.length
            part = min(count - done, self.length - at)
            here, there = slice(done, done + part), (group, slice(at, at + part))
            finals_overwritten += np.count_nonzero(self._by_stream.marks[there] & _FINAL)
            self._by_stream.frame[there] = rows.frame[:, here].reshape(num_envs, part, FRAME_BYTES)
            self._by_stream.action[there] = rows.action[:, here]
            self._by_stream.reward[there] = rows.reward[:, here]
            self._by_stream.marks[there] = marks[:, here]
            self._by_stream.history[there] = history[:, here]
            done += part
        self.written_end[group] = begin + count
        self.num_overwritten += rows_before + num_envs * count - self.num_rows - int(finals_overwritten)

    def _history_of(self, group: slice, begin: int, marks: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Rows since the last start or break, three at most."""  # [envs, T]
        row = np.arange(marks.shape[1])
        last_begin = np.maximum.accumulate(np.where(marks & _BEGINS, row, -1), axis=1)
        # Rows before this chunk's first start go on where the previous chunk ended.
        previous = self._by_stream.history[group, (begin - 1) % self.length].astype(np.int64)
        since_begin = np.where(last_begin >= 0, row - last_begin, previous[:, None] + 1 + row)
        return np.minimum(since_begin, STACK_SIZE - 1).astype(np.uint8)

    def oldest(self, stream: int) -> int:
        """The number of the oldest row in memory."""
        return max(int(self.first_kept[stream]), int(self.written_end[stream]) - self.length)

    def read(self, stream: int, begin: int, end: int) -> StoredRows:
        """Rows `begin` to `end` of a stream, copied. For checkpoints."""
        places = np.arange(begin, end) % self.length
        return StoredRows(*(column[stream, places] for column in self._by_stream))

    def restore(self, stream: int, begin: int, rows: StoredRows) -> None:
        """Put rows back where `read` found them. Only before anything runs."""
        places = np.arange(begin, begin + len(rows.action)) % self.length
        for name in StoredRows._fields:
            getattr(self._by_stream, name)[stream, places] = getattr(rows, name)

    def counters(self) -> dict[str, Any]:
        """What a checkpoint keeps besides the rows."""
        return {
            "written_end": self.written_end.tolist(),
            "first_kept": self.first_kept.tolist(),
            "must_break": self._must_break.tolist(),
        }

    def restore_counters(self, counters: dict[str, Any]) -> None:
        """Continue counting where a checkpoint stopped. Only before anything runs."""
        self.written_end[:] = counters["written_end"]
        self.claimed_end[:] = counters["written_end"]
        self.first_kept[:] = counters["first_kept"]
        self._must_break[:] = counters["must_break"]
