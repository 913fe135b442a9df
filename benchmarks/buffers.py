"""Replay buffers that are compared, ours and others', each full and ready to draw batches of 512 from."""

import contextlib
import io
import logging
from importlib import import_module
from typing import Any

import numpy as np
import torch

from mario_rl.experience import STACK_SIZE
from mario_rl.replay.prioritized import PrioritizedSampler
from mario_rl.replay.sampler import Sampler

NUM_ENVS = 8
BATCH_SIZE = 512
STACK_SHAPE = (STACK_SIZE, 84, 84)
BYTES_PER_PEER_EXPERIENCE = 2 * STACK_SIZE * 84 * 84


class Buffer:
    """What all of them can do."""

    size: int  # experiences
    num_bytes: int

    def draw(self) -> None:
        """Draw one batch."""
        raise NotImplementedError


class Ours(Buffer):
    """One of our samplers: single pictures are stored, stacks are built as it draws."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._sample = sampler.new_buffer(BATCH_SIZE)
        self._errors = torch.rand(BATCH_SIZE)
        streams = sampler._streams
        self.size = streams.num_streams * streams.length
        columns = [array for array in vars(streams).values() if isinstance(array, np.ndarray)]
        self.num_bytes = streams.frames.numel() + sum(array.nbytes for array in columns)
        if isinstance(sampler, PrioritizedSampler):
            self.num_bytes += sampler._tree._sums.nbytes

    def draw(self) -> None:
        """Draw one batch."""
        self._sampler.sample(self._sample)
        if self._sample.td_errors is not None:
            self._sample.td_errors.copy_(self._errors)  # the next draw begins by taking them back


class StableBaselines(Buffer):
    """Stable-Baselines3's: both stacks of every experience are stored."""

    def __init__(self, size: int) -> None:
        with contextlib.redirect_stderr(io.StringIO()):  # it imports gym, whose notice tells a user nothing
            from gymnasium import spaces
            from stable_baselines3.common.buffers import ReplayBuffer
        picture = spaces.Box(0, 255, STACK_SHAPE, np.uint8)
        self._buffer = ReplayBuffer(size, picture, spaces.Discrete(7), device="cpu", n_envs=NUM_ENVS)
        stacks = np.random.default_rng(0).integers(0, 256, (NUM_ENVS, *STACK_SHAPE), dtype=np.uint8)
        nothing: list[dict[str, Any]] = [{} for _ in range(NUM_ENVS)]
        zeros = np.zeros(NUM_ENVS)
        for _ in range(size // NUM_ENVS):
            self._buffer.add(stacks, stacks, zeros, zeros, zeros, nothing)
        self.size = size
        self.num_bytes = sum(array.nbytes for array in vars(self._buffer).values() if isinstance(array, np.ndarray))

    def draw(self) -> None:
        """Draw one batch."""
        self._buffer.sample(BATCH_SIZE)


class TorchRl(Buffer):
    """TorchRL's: both stacks of every experience are stored."""

    def __init__(self, size: int) -> None:
        from tensordict import TensorDict

        import_module("torchrl")
        logging.getLogger("torchrl").setLevel(logging.WARNING)  # it tells of every buffer that it makes
        self._buffer = self._make(size)
        block = 1_000
        stacks = torch.randint(0, 256, (block, *STACK_SHAPE), dtype=torch.uint8)
        experience = TensorDict(
            {
                "state": stacks,
                "next_state": stacks,
                "action": torch.zeros(block, dtype=torch.int64),
                "reward": torch.zeros(block),
                "done": torch.zeros(block, dtype=torch.bool),
            },
            batch_size=[block],
        )
        for _ in range(size // block):
            self._buffer.extend(experience)
        self.size = size
        self.num_bytes = size * sum(value[0].nbytes for value in experience.values())
        self._errors = torch.rand(BATCH_SIZE)

    def _make(self, size: int) -> Any:
        from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

        return TensorDictReplayBuffer(storage=LazyTensorStorage(size), batch_size=BATCH_SIZE)

    def draw(self) -> None:
        """Draw one batch."""
        self._buffer.sample()


class TorchRlPrioritized(TorchRl):
    """TorchRL's with priorities, which go back after every draw."""

    def _make(self, size: int) -> Any:
        from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

        return TensorDictPrioritizedReplayBuffer(
            alpha=0.6, beta=0.4, storage=LazyTensorStorage(size), batch_size=BATCH_SIZE
        )

    def draw(self) -> None:
        """Draw one batch."""
        sample = self._buffer.sample()
        self._buffer.update_priority(sample["index"], self._errors)
