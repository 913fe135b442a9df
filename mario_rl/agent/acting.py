"""What collectors and evaluation ask: which action is the best one?"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mario_rl.agent.network import QNetwork


class ActingNetwork:
    """The greedy policy of a Q-network, as it was when `refresh` was last called."""

    def __init__(self, network: QNetwork) -> None:
        self._network = network
        self.refresh()

    def refresh(self) -> None:
        """Take over the network's present weights and statistics."""
        self._features = self._network.features.frozen()

    @torch.inference_mode()
    def best_actions(self, stacks: Tensor) -> npt.NDArray[np.int64]:
        """What a greedy policy does."""  # [B, 4, 84, 84] uint8 -> [B]
        features = self._features(stacks).flatten(1)
        best: npt.NDArray[np.int64] = self._network.values(features).argmax(dim=1).numpy()
        return best

    @torch.inference_mode()
    def best_action(self, stack: Tensor) -> tuple[int, float]:
        """What a greedy policy does in one game, and what it expects of it."""  # [1, 4, 84, 84] uint8
        value, action = self._network.values(self._features(stack).flatten(1))[0].max(dim=0)
        return int(action), float(value)
