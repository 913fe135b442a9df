"""Uniform sampling: every drawable row is equally likely."""

import numpy as np
import numpy.typing as npt

from mario_rl.replay.sampler import Extent, Sampler


class UniformSampler(Sampler):
    """Draws with one random-number call, whatever the size of replay."""

    def _candidates(self, extent: Extent, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        sizes = np.maximum(extent.end - extent.oldest, 0)
        bounds = np.cumsum(sizes)
        ticket = self._rng.integers(bounds[-1], size=count)
        stream = np.searchsorted(bounds, ticket, side="right")
        return stream, extent.oldest[stream] + ticket - (bounds - sizes)[stream]
