"""Prioritized sampling: rows whose value was guessed wrong are drawn more often, and count correspondingly less.

The sampling thread alone owns the sum tree, so there is no lock here either. New rows are noticed at each draw, by how
far the streams have grown. Errors come back in the very buffer that the batch went out in, when it is refilled.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import torch

from mario_rl.ranges import Positive, Probability
from mario_rl.replay.sampler import Extent, NothingToDrawError, SampleBuffer, Sampler, SamplingRules
from mario_rl.replay.streams import ReplayStreams
from mario_rl.replay.sum_tree import SumTree

SMALLEST_ERROR = 1e-3  # of values that lie between -3 and 18: what is known perfectly is still seen now and then


@dataclass(frozen=True)
class PriorityRules:
    """Whether errors decide what is drawn, and how strongly."""

    prioritized_replay: bool
    priority_exponent: Annotated[float, Probability]
    priority_correction: Annotated[float, Probability]
    priority_correction_decisions: Annotated[int, Positive]


class PrioritizedSampler(Sampler):
    """Draws in proportion to |TD error| ** exponent; new rows as if they had the largest error seen so far.

    Weights undo the preference by the power `correction`, which grows to 1, all of it, over the decisions that the
    rules name.
    """

    def __init__(
        self, streams: ReplayStreams, rules: SamplingRules, rng: np.random.Generator, priorities: PriorityRules
    ) -> None:
        super().__init__(streams, rules, rng)
        self._exponent = priorities.priority_exponent
        self._first_correction = priorities.priority_correction
        self._correction_decisions = priorities.priority_correction_decisions
        self._tree = SumTree(streams.num_streams * streams.length)
        self._admitted_end = np.zeros(streams.num_streams, np.int64)  # rows before this one have had their priority set
        self._largest_priority = 1.0

    @property
    def correction(self) -> float:
        """How much of the preference the weights undo now."""
        share = min(1.0, int(self._admitted_end.sum()) / self._correction_decisions)
        return self._first_correction + share * (1.0 - self._first_correction)

    def take_back(self, buffer: SampleBuffer) -> None:
        """Set the priorities of a batch by its errors, in one call."""
        assert buffer.td_errors is not None, "the buffer is not for prioritized replay"
        errors = buffer.td_errors.numpy()
        # Not those that were never trained on, nor those whose place may hold another row by now.
        trained = np.isfinite(errors) & (
            buffer.row >= (self._streams.claimed_end - self._streams.length)[buffer.stream]
        )
        priorities = (errors[trained].astype(np.float64) + SMALLEST_ERROR) ** self._exponent
        self._tree.set(self._places(buffer.stream[trained], buffer.row[trained]), priorities)
        self._largest_priority = max(self._largest_priority, priorities.max(initial=0.0))
        errors.fill(np.nan)

    def _candidates(self, extent: Extent, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        self._admit(extent)
        total, length = self._tree.total, self._streams.length
        if total <= 0.0:
            raise NothingToDrawError
        places = self._tree.find(self._rng.random(count) * total)
        stream, place = np.divmod(places, length)
        # Of the rows that could lie at this place, the one in memory is the youngest that is admitted.
        newest = self._admitted_end[stream] - 1
        return stream, newest - (newest - place) % length

    def _admit(self, extent: Extent) -> None:
        """Give new rows their first priority, once everything that they need has arrived."""
        ends = np.maximum(extent.end - self._n_step, self._admitted_end)
        begins = np.maximum(self._admitted_end, ends - self._streams.length)
        counts = ends - begins
        if counts.any():
            stream = np.repeat(np.arange(len(counts)), counts)
            number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts - begins, counts)
            self._tree.set(self._places(stream, number), self._largest_priority)
            self._admitted_end = ends

    def _note_rejected(self, stream: npt.NDArray[np.int64], row: npt.NDArray[np.int64]) -> None:
        """They will never be a state: the end of an episode, what came before a break, or soon overwritten."""
        self._tree.set(self._places(stream, row), 0.0)

    def _note_drawn(self, buffer: SampleBuffer) -> None:
        assert buffer.weights is not None
        priorities = self._tree.leaves[self._places(buffer.stream, buffer.row)]
        # The number of rows and the total are the same for the whole batch and cancel out.
        np.copyto(buffer.weights.numpy(), (priorities.min() / priorities) ** self.correction)

    def state(self) -> dict[str, Any]:
        """How far rows were admitted, and with what priority."""
        admitted = {"admitted_end": self._admitted_end.tolist(), "largest_priority": self._largest_priority}
        return super().state() | admitted

    def tensors(self) -> dict[str, torch.Tensor]:
        """The priorities."""
        return {"sampler.priorities": torch.from_numpy(self._tree.leaves.copy())}

    def check(self, state: Any, tensors: dict[str, torch.Tensor]) -> None:
        """Priorities, and the restored rows that they belong to."""
        super().check(state, tensors)
        priorities = tensors.get("sampler.priorities")
        if priorities is not None and not bool((torch.isfinite(priorities) & (priorities >= 0)).all()):
            raise ValueError("sampler.priorities are not all numbers from 0 up")
        if (np.array(state.get("admitted_end", 0)) > self._streams.written_end).any():
            raise ValueError("sampler.admitted_end is behind the end of replay")

    def new_buffer(self, size: int, *, pinned: bool = False) -> SampleBuffer:
        """With room for weights and errors."""
        return SampleBuffer(size, pinned, prioritized=True)

    def load(self, state: Any, tensors: dict[str, torch.Tensor]) -> list[str]:
        """Take the priorities up again. A checkpoint without them (of uniform replay) leaves all rows new."""
        if "admitted_end" in state and len(tensors["sampler.priorities"]) == len(self._tree.leaves):
            self._tree.set(np.arange(len(self._tree.leaves)), tensors["sampler.priorities"].numpy())
            self._admitted_end = np.array(state["admitted_end"], np.int64)
            self._largest_priority = state["largest_priority"]
        return super().load(state, tensors)
