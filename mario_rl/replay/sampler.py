"""Sampling: one random-number call, one gather. Runs in the sampling thread (inline in serial mode).

A draw picks rows (`uniform.py` and `prioritized.py` differ in nothing else), rejects the few that cannot be a state,
builds the n-step return and the index of every picture with array arithmetic, and then copies all pictures with a
single call into a fixed buffer. That call holds no GIL, so the training thread goes on meanwhile.
"""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mario_rl.experience import FRAME_SIZE, STACK_SIZE, Mark
from mario_rl.ranges import Between, Probability
from mario_rl.replay.gathering import empty_stacks, gather_stacks
from mario_rl.replay.streams import GUARD_ROWS, ReplayStreams
from mario_rl.saved_part import check_like

# Draw this much more than is needed, because a few candidates are rejected; a second draw is then rare.
SPARE_CANDIDATES = 1.1
MAX_CANDIDATES = 65_536  # a draw of this size takes some 20 ms
MAX_ATTEMPTS = 50
_ENDS = int(Mark.TERMINATED | Mark.TRUNCATED)  # plain ints: arithmetic with enums costs microseconds
_BEGINS = int(Mark.START | Mark.BREAK)


@dataclass(frozen=True)
class SamplingRules:
    """What a sample is made of."""

    gamma: Annotated[float, Probability]
    n_step: Annotated[int, Between(1, 32)]
    picture_shift: Annotated[int, Between(0, 20)]  # pixels in each direction


class SampleBuffer:
    """Fixed memory for one sample call; pinned when the learner is on a GPU.

    The last four fields are for prioritized replay. The learner fills in the errors, and the sampler finds them when it
    gets the buffer back to refill it.
    """

    def __init__(self, size: int, pinned: bool = False, prioritized: bool = False) -> None:
        self.size = size
        self.targets: torch.Tensor | None = None  # [size] where they are computed ahead (learning/targets.py)
        self.pictures = empty_stacks(size, pinned)  # [size, 2, 4, 84, 84]: the state, and the state n steps on
        self.actions = torch.zeros(size, dtype=torch.int64, pin_memory=pinned)
        self.returns = torch.zeros(size, dtype=torch.float32, pin_memory=pinned)
        self.discounts = torch.zeros(size, dtype=torch.float32, pin_memory=pinned)  # 0 where nothing follows
        # How much each counts, because it was not drawn evenly.
        self.weights = torch.ones(size, pin_memory=pinned) if prioritized else None
        self.td_errors = torch.full((size,), torch.nan, pin_memory=pinned) if prioritized else None  # NaN: not trained
        self.stream = np.zeros(size, np.int64)  # where each was drawn
        self.row = np.zeros(size, np.int64)  # its number in the stream

    def tensors(self) -> tuple[torch.Tensor, ...]:
        """What training needs, in a fixed order."""
        common = self.pictures, self.actions, self.returns, self.discounts
        return common if self.weights is None else (*common, self.weights)


class Extent(NamedTuple):
    """The rows that may be drawn from, by stream."""

    oldest: npt.NDArray[np.int64]  # [streams] row number
    end: npt.NDArray[np.int64]  # [streams] one behind the newest


class Windows(NamedTuple):
    """Rows that were drawn, and what follows them."""

    stream: npt.NDArray[np.int64]  # [B]
    row: npt.NDArray[np.int64]  # [B] number of the row whose picture is the state's newest
    oldest: npt.NDArray[np.int64]  # [B] row number of the oldest picture in the state's stack
    bootstrap: npt.NDArray[np.int64]  # [B] row number whose picture the return is continued from
    returns: npt.NDArray[np.float32]  # [B]
    discounts: npt.NDArray[np.float32]  # [B]


class NothingToDrawError(Exception):
    """Replay holds no row that could be a state."""


class Sampler:
    """Draws batches from replay. How rows are picked, and what is remembered of them, is for its variants to say."""

    def __init__(self, streams: ReplayStreams, rules: SamplingRules, rng: np.random.Generator) -> None:
        self._streams = streams
        self._n_step = rules.n_step
        self._max_shift = rules.picture_shift
        self._rng = rng
        self._discount_powers = (rules.gamma ** np.arange(rules.n_step + 1)).astype(np.float32)
        self.num_redraws = 0  # batches that a commit overtook

    def _candidates(self, extent: Extent, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Draw `count` rows: the stream and the row number of each."""
        raise NotImplementedError

    def take_back(self, buffer: SampleBuffer) -> None:
        """Look at what the learner has noted about the batch that it has trained on."""

    def state(self) -> dict[str, Any]:
        """The generator's state."""
        return {"rng": self._rng.bit_generator.state}

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps as tensors."""
        return {}

    def check(self, state: Any, tensors: dict[str, torch.Tensor]) -> None:
        """The generator's state, and what a variant keeps besides; replay must be restored by now."""
        check_like(state, self.state(), "sampler")
        np.random.default_rng(0).bit_generator.state = state["rng"]

    def load(self, state: Any, tensors: dict[str, torch.Tensor]) -> list[str]:
        """Continue from a checkpoint, before anything runs."""
        self._rng.bit_generator.state = state["rng"]
        return []

    def can_draw(self) -> bool:
        """Whether replay holds anything to learn from. This draws: what the sampler knows must be loaded afterwards."""
        try:
            self.sample(self.new_buffer(1))
        except NothingToDrawError:
            return False
        return True

    def new_buffer(self, size: int, *, pinned: bool = False) -> SampleBuffer:
        """Memory for sample calls of this size."""
        return SampleBuffer(size, pinned)

    def metrics(self) -> dict[str, float]:
        """How often a commit overtook a draw."""
        return {"replay/redraws": self.num_redraws}

    def sample(self, buffer: SampleBuffer) -> None:
        """Fill the buffer."""
        self.take_back(buffer)
        while True:
            windows = self._draw(buffer.size)
            self._gather_pictures(windows, buffer)
            places = self._places(windows.stream, windows.row)
            np.copyto(buffer.actions.numpy(), self._streams.action[places])
            np.copyto(buffer.returns.numpy(), windows.returns)
            np.copyto(buffer.discounts.numpy(), windows.discounts)
            if self._still_intact(windows):
                buffer.stream, buffer.row = windows.stream, windows.row
                self._note_drawn(buffer)
                return
            self.num_redraws += 1

    def _note_drawn(self, buffer: SampleBuffer) -> None:
        """After a draw."""

    def _note_rejected(self, stream: npt.NDArray[np.int64], row: npt.NDArray[np.int64]) -> None:
        """Candidates that cannot be a state."""

    def _draw(self, count: int) -> Windows:
        drawn: list[Windows] = []
        num_drawn = 0
        for attempt in range(MAX_ATTEMPTS):  # nearly always one; more where few rows can be drawn
            num_candidates = int((count - num_drawn) * SPARE_CANDIDATES) + 8
            windows = self._valid_windows(min(num_candidates << attempt, MAX_CANDIDATES))
            drawn.append(windows)
            num_drawn += len(windows.row)
            if num_drawn >= count:
                return Windows(*(np.concatenate(columns)[:count] for columns in zip(*drawn, strict=True)))
        raise NothingToDrawError

    def _valid_windows(self, num_candidates: int) -> Windows:
        """Draw candidates and keep those that can be a state."""
        streams, n_step = self._streams, self._n_step
        oldest, end = extent = self._extent()
        stream, row = self._candidates(extent, num_candidates)

        # The window: rows row .. row + n. It closes early where the episode ends.
        numbers = row[:, None] + np.arange(n_step + 1)  # [C, n + 1]
        places = stream[:, None] * streams.length + numbers % streams.length
        marks = streams.marks[places]
        ends_here = (marks[:, :n_step] & _ENDS) != 0
        has_end = ends_here.any(axis=1)
        last_step = np.where(has_end, ends_here.argmax(axis=1), n_step - 1)  # index of the last reward that counts
        in_window = np.arange(n_step) <= last_step[:, None]
        rewards = np.where(in_window, streams.reward[places[:, :n_step]], np.float32(0))
        returns = (rewards * self._discount_powers[:n_step]).sum(axis=1, dtype=np.float32)
        terminated = (marks[np.arange(num_candidates), last_step] & Mark.TERMINATED) != 0
        num_steps = last_step + 1
        discounts = np.where(terminated, np.float32(0), self._discount_powers[num_steps])
        # A terminated window needs no next picture: it points at its own row, and the discount of 0 removes it.
        bootstrap = np.where(terminated, row, row + num_steps)

        history = streams.history[places[:, 0]]
        first_marks = streams.marks[self._places(stream, row - history)]
        whole_stack = (history == STACK_SIZE - 1) | ((first_marks & Mark.START) != 0)
        # A start or break after the state and up to the last row needed means that rows between are missing.
        last_needed = np.where(terminated, last_step, num_steps)
        needed = np.arange(1, n_step + 1) <= last_needed[:, None]
        interrupted = ((marks[:, 1:] & _BEGINS) != 0) & needed
        valid = (
            ((marks[:, 0] & Mark.FINAL) == 0)
            & whole_stack
            & (row - history >= oldest[stream])
            & (row + last_needed < end[stream])
            & ~interrupted.any(axis=1)
        )
        self._note_rejected(stream[~valid], row[~valid])
        columns = (stream, row, row - history, bootstrap, returns, discounts)
        return Windows(*(column[valid] for column in columns))

    def _extent(self) -> Extent:
        """The rows that may be drawn from now."""
        streams = self._streams
        # Behind a full stream's oldest row the next commit will write: stay clear of it. The claim is read before the
        # end: an append in between makes the range too long, which the check after the gather finds, but not empty.
        overwritten = streams.claimed_end - streams.length
        end = streams.written_end.copy()
        oldest = np.maximum(streams.first_kept, np.where(overwritten > 0, overwritten + GUARD_ROWS, 0))
        if not (end > oldest).any():
            raise NothingToDrawError
        return Extent(oldest, end)

    def _gather_pictures(self, windows: Windows, buffer: SampleBuffer) -> None:
        back = np.arange(STACK_SIZE - 1, -1, -1)  # 3, 2, 1, 0 pictures ago
        numbers = np.stack((windows.row, windows.bootstrap), axis=1)  # [B, 2]
        history = self._streams.history[self._places(windows.stream[:, None], numbers)]
        # Before an episode's start there is nothing: the first picture is repeated.
        stacks = numbers[:, :, None] - np.minimum(back, history[:, :, None])  # [B, 2, 4]
        places = self._places(windows.stream[:, None, None], stacks)
        # States are trained on slightly shifted, so that the network does not learn single pixels by heart. Next
        # states, which targets are computed from, are as a player sees them.
        rows, columns = self._rng.integers(-self._max_shift, self._max_shift + 1, size=(2, buffer.size))
        shifts = np.stack((rows * FRAME_SIZE + columns, np.zeros_like(rows)), axis=1)  # [B, 2]
        gather_stacks(self._streams.frames, places, shifts, buffer.pictures)

    def _places(self, stream: npt.NDArray[np.int64], number: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        places: npt.NDArray[np.int64] = stream * self._streams.length + number % self._streams.length
        return places

    def _still_intact(self, windows: Windows) -> bool:
        """Whether no append has claimed a row that was just copied."""
        oldest_safe = self._streams.claimed_end - self._streams.length
        return bool((windows.oldest >= oldest_safe[windows.stream]).all())
