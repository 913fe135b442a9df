"""The networks of one learner: online, target and averaged, and how the last two follow the first."""

import copy

import torch
from torch import Tensor, nn

from mario_rl.agent.network import NetworkShape, QNetwork, copy_weights, eval_twin


class Networks:
    """Only the online network is trained. All three have the same shape."""

    def __init__(self, shape: NetworkShape, device: torch.device) -> None:
        self.online = QNetwork(shape).to(device).train()
        self.target = copy.deepcopy(self.online).eval().requires_grad_(False)
        # What acts and is exported: the average of the online network over its last updates. From one update to the
        # next, actions whose values are close change places all the time, and now and then that is fatal.
        self.averaged = copy.deepcopy(self.target)
        self.online_eval = eval_twin(self.online)
        self._averages = _float_tensors(self.averaged), _float_tensors(self.online)
        # Gradients have memory of their own from the start. Otherwise the first backward of a CUDA graph lends them its
        # own, which the next micro-batch overwrites.
        for parameter in self.online.parameters():
            parameter.grad = torch.zeros_like(parameter)

    @torch.no_grad()
    def average(self, share: float) -> None:
        """Move the average towards the online network by a share of the way."""
        mine, theirs = self._averages
        torch._foreach_lerp_(mine, theirs, share)

    def copy_to_target(self) -> None:
        """Make the target equal to the online network, BatchNorm's statistics included."""
        copy_weights(self.online, self.target)

    @torch.no_grad()
    def follow_softly(self, share: float) -> None:
        """Move the target towards the online network by a share of the way."""
        target: list[Tensor] = list(self.target.parameters())
        online: list[Tensor] = [parameter.detach() for parameter in self.online.parameters()]
        torch._foreach_lerp_(target, online, share)
        # Running statistics are averages already: they are copied, not averaged again.
        for mine, theirs in zip(self.target.buffers(), self.online.buffers(), strict=True):
            mine.copy_(theirs)

    def is_finite(self) -> bool:
        """Whether all weights and statistics are numbers that one can go on from."""
        return all(bool(tensor.isfinite().all()) for tensor in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        """All weights and statistics. The modules are never wrapped: names carry no prefix of torch's."""
        return {
            f"{role}.{name}": tensor
            for role, network in self._by_role().items()
            for name, tensor in network.state_dict().items()
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `tensors` gave."""
        for role, network in self._by_role().items():
            network.load_state_dict(with_prefix(tensors, f"{role}."))

    def load_policy(self, weights: dict[str, Tensor]) -> None:
        """Start from exported weights: all three networks."""
        self.online.load_state_dict(weights)
        self.averaged.load_state_dict(weights)
        self.copy_to_target()

    def _by_role(self) -> dict[str, QNetwork]:
        return {"online": self.online, "target": self.target, "averaged": self.averaged}


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose names begin so, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _float_tensors(network: nn.Module) -> list[Tensor]:
    """Weights and running statistics, as they lie in memory; not BatchNorm's count of batches, which nothing uses."""
    return [tensor for tensor in network.state_dict().values() if tensor.is_floating_point()]
