"""The learner's weights, on their way to the collectors: shared memory with two slots and a version.

The learner fills the idle slot, writes its checksum, then raises the version. A collector copies the slot of the
version it saw, and accepts the copy only if the version is still the same and the checksum agrees; otherwise it tries
again. Neither side blocks, and nothing is torn. What crosses is the `state_dict`: parameters *and* BatchNorm's running
statistics, without which a network in eval mode normalises by another network's activations.
"""

import math
import zlib
from multiprocessing.context import SpawnContext
from typing import NamedTuple

import numpy as np
import torch

from mario_rl.channels.shared_array import ALIGNMENT_BYTES, shared_array

NUM_SLOTS = 2


class _TensorPlace(NamedTuple):
    """Where a tensor lies inside a slot."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class WeightSlots:
    """The shared memory. One publisher, any number of subscribers; version 0 means nothing was published yet."""

    def __init__(self, context: SpawnContext, weights: dict[str, torch.Tensor]) -> None:
        self._places: list[_TensorPlace] = []
        offset = 0
        for name, tensor in weights.items():
            place = _TensorPlace(name, tensor.dtype, tuple(tensor.shape), offset)
            self._places.append(place)
            offset += -(-place.num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self._bytes = shared_array(context, np.uint8, (NUM_SLOTS, offset))
        self._checksums = shared_array(context, np.int64, (NUM_SLOTS,))
        self._version = shared_array(context, np.int64, (1,))

    @property
    def version(self) -> int:
        """The newest complete version."""
        return int(self._version.array[0])

    def publish(self, weights: dict[str, torch.Tensor]) -> int:
        """Make these CPU tensors the newest version. Publisher only."""
        version = self.version + 1
        slot = version % NUM_SLOTS
        for name, shared in self._tensors(slot).items():
            shared.copy_(weights[name])
        self._checksums.array[slot] = zlib.crc32(self._bytes.array[slot])
        self._version.array[0] = version
        return version

    def take(self, into: dict[str, torch.Tensor], known_version: int) -> int:
        """Copy the newest version into `into` if it is newer than `known_version`; the version now held."""
        while (version := self.version) > known_version:
            copied = self._bytes.array[version % NUM_SLOTS].copy()
            checksum = int(self._checksums.array[version % NUM_SLOTS])
            if self.version == version and zlib.crc32(copied) == checksum:
                for name, tensor in self._views(copied).items():
                    into[name].copy_(tensor)
                return version
        return known_version

    def _tensors(self, slot: int) -> dict[str, torch.Tensor]:
        return self._views(self._bytes.array[slot])

    def _views(self, memory: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> dict[str, torch.Tensor]:
        whole = torch.from_numpy(memory)
        return {
            place.name: whole[place.offset : place.offset + place.num_bytes].view(place.dtype).view(place.shape)
            for place in self._places
        }
