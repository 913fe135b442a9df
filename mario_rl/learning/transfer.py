"""From a sample call to micro-batches: fixed buffers, uint8 on the device, then scaled floats, channels last.

Used by one thread: the learner's, or a training worker's.
"""

import torch
from torch import Tensor

from mario_rl.agent.pictures import scale_pictures
from mario_rl.experience import FRAME_SIZE, STACK_SIZE
from mario_rl.learning.losses import MicroBatch
from mario_rl.replay.sampler import SampleBuffer


class Transfer:
    """Holds the sample call in hand, and one micro-batch of it as the network wants it."""

    def __init__(self, batch_size: int, device: torch.device, autocast_dtype: torch.dtype | None = None) -> None:
        self._batch_size = batch_size
        self._device = device
        # On a CPU the sample is used where it lies; a GPU has a copy of its own, made when the first sample comes.
        self._copy: tuple[Tensor, ...] | None = None
        self._copied: torch.cuda.Event | None = None
        if device.type != "cpu":
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._source: tuple[Tensor, ...] = ()
        self._targets: Tensor | None = None
        self._td_errors: Tensor | None = None
        shape = (batch_size, STACK_SIZE, FRAME_SIZE, FRAME_SIZE)
        # In the precision of the first convolution, which would convert them at each of its calls otherwise.
        dtype = torch.bfloat16 if autocast_dtype is torch.bfloat16 else torch.float32
        self._states, self._next_states = (
            torch.empty(shape, dtype=dtype, device=device, memory_format=torch.channels_last) for _ in range(2)
        )

    def load(self, sample: SampleBuffer) -> None:
        """Take a new sample call; it must stay as it is until `release`."""
        self._source, self._targets, self._td_errors = sample.tensors(), sample.targets, sample.td_errors
        if self._copied is not None:
            self._copy = self._copy or tuple(torch.empty_like(t, device=self._device) for t in self._source)
            for mine, theirs in zip(self._copy, self._source, strict=True):
                mine.copy_(theirs, non_blocking=True)
            self._copied.record()
            self._source = self._copy

    def release(self) -> None:
        """The sample may be refilled: wait until the last copies have left its pinned memory."""
        if self._copied is not None:
            self._copied.synchronize()

    def micro_batch(self, part: int) -> MicroBatch:
        """The part-th micro-batch of the sample call."""
        rows = slice(part * self._batch_size, (part + 1) * self._batch_size)
        pictures, actions, returns, discounts, *weights = (tensor[rows] for tensor in self._source)
        return MicroBatch(
            states=scale_pictures(pictures[:, 0], out=self._states),
            actions=actions,
            targets=None if self._targets is None else self._targets[rows],
            next_states=scale_pictures(pictures[:, 1], out=self._next_states) if self._targets is None else None,
            returns=returns,
            discounts=discounts,
            weights=weights[0] if weights else None,
        )

    def note_errors(self, part: int, td_errors: Tensor) -> None:
        """Let the sampler know how wrong each guess of a micro-batch was, where it wants to."""
        if self._td_errors is None:
            return
        rows = slice(part * self._batch_size, (part + 1) * self._batch_size)
        self._td_errors[rows].copy_(td_errors, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
