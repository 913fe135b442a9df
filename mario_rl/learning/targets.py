"""Targets ahead: the sampling thread computes what the next sample call should be worth, while the learner trains.

Two of the three forwards that a sample needs are for its target and have no backward. On a CPU they take nearly as long
as the third with its backward, so two threads share the work evenly, and meet once a sample call instead of at every
layer. A thread that loses its core to a collector then delays only itself.
"""

import copy

import torch

from mario_rl.agent.network import QNetwork, copy_weights
from mario_rl.agent.pictures import scale_pictures
from mario_rl.experience import FRAME_SIZE, STACK_SIZE
from mario_rl.learning.losses import double_q_targets
from mario_rl.replay.sampler import SampleBuffer


class TargetsAhead:
    """Copies of both networks, and the targets that follow from them.

    The copies are one sample call old when their targets are used: a few updates, where the target network is hundreds
    behind in any case.
    """

    def __init__(self, online: QNetwork, target: QNetwork, batch_size: int, autocast_dtype: torch.dtype | None) -> None:
        self._sources = (online, target)
        self._copies = tuple(copy.deepcopy(network).eval().requires_grad_(False) for network in self._sources)
        self._dtype = autocast_dtype
        shape = (batch_size, STACK_SIZE, FRAME_SIZE, FRAME_SIZE)
        self._next_states = torch.empty(shape, dtype=autocast_dtype, memory_format=torch.channels_last)

    def refresh(self) -> None:
        """Copy the networks as they are now. Called by the learner's thread while the sampling thread rests."""
        for mine, theirs in zip(self._copies, self._sources, strict=True):
            copy_weights(theirs, mine)

    def fill(self, sample: SampleBuffer) -> None:
        """Compute the targets of a sample call, a micro-batch at a time."""
        online, target = self._copies
        with torch.autocast("cpu", self._dtype, enabled=self._dtype is not None):
            for begin in range(0, sample.size, len(self._next_states)):
                rows = slice(begin, begin + len(self._next_states))
                next_states = scale_pictures(sample.pictures[rows, 1], out=self._next_states)
                targets = double_q_targets(
                    online.outputs,
                    target.outputs,
                    target.head,
                    next_states,
                    sample.returns[rows],
                    sample.discounts[rows],
                )
                if sample.targets is None:
                    sample.targets = torch.empty(sample.size, *targets.shape[1:])
                sample.targets[rows] = targets
