"""The Q-network, used by collectors and learner alike: a trunk that sees, and a dueling head that values.

The trunk is chosen by name from TRUNKS. The hidden layer behind it is followed by LayerNorm, which lets it learn faster
(docs/experiments.md). The head is dueling: a state value and advantages that are centred on their mean. Both are
distributions: the logits of histograms (value_bins.py), or quantiles (value_quantiles.py).
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from mario_rl.agent.convolutions import BatchNormConvolutions
from mario_rl.agent.value_bins import ValueBins
from mario_rl.agent.value_quantiles import ValueQuantiles
from mario_rl.environment.actions import ACTION_SETS
from mario_rl.environment.task import PlayRules, TaskRules
from mario_rl.ranges import Between, OneOf

FASTEST_PIXELS = 3.0  # that Mario runs in a frame, and so the largest raw reward

# A network is chosen here: a trunk is made from its channels, and is a file of its own.
TRUNKS: dict[str, Callable[[tuple[int, int, int]], "Trunk"]] = {
    "convolutions": BatchNormConvolutions,
}


class Trunk(Protocol):
    """What makes features of pictures; an nn.Module."""

    num_features: int

    def __call__(self, pictures: Tensor) -> Tensor:
        """Features of scaled pictures."""  # [B, 4, 84, 84] float in -1..1 -> [B, ...]

    def frozen(self) -> Callable[[Tensor], Tensor]:
        """The trunk in eval mode with its present weights, for acting."""  # [B, 4, 84, 84] uint8 -> [B, ...]


class ValueHead(Protocol):
    """What a network's outputs mean: a distribution of values for each action."""

    def mean(self, outputs: Tensor) -> Tensor:
        """The values that outputs stand for."""  # [..., n] -> [...]

    def first_guess(self) -> Tensor:
        """Where the output layer's bias begins."""  # [n]

    def targets(self, next_outputs: Tensor, returns: Tensor, discounts: Tensor) -> Tensor:
        """What the actions taken were worth, given the outputs that follow."""  # [B, n], [B], [B] -> [B, ...]

    def target_values(self, targets: Tensor) -> Tensor:
        """Targets as plain values."""  # [B, ...] -> [B]

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """How far outputs are from their targets."""  # [B, n], [B, ...] -> [B]


@dataclass(frozen=True)
class NetworkRules:
    """How large the network is, and of what kind."""

    network: Annotated[str, OneOf(TRUNKS)]
    network_channels: Annotated[tuple[int, int, int], Between(1, 4096)]
    hidden_units: Annotated[int, Between(1, 65_536)]
    value_head: Literal["histogram", "quantiles"]
    value_bins: Annotated[int, Between(2, 1000)]


# What a user changes to get another network, besides what the range of values follows from.
NETWORK_SETTINGS = ", ".join(field.name.upper() for field in fields(NetworkRules))


class NetworkShape(NamedTuple):
    """What two networks must share to exchange weights."""

    channels: tuple[int, int, int]
    hidden_units: int
    num_actions: int
    value_low: float = -3.0  # where the values' histogram begins ...
    value_high: float = 9.0  # ... and ends
    value_bins: int = 60  # numbers that make up a value: the histogram's bins, or quantiles
    value_head: Literal["histogram", "quantiles"] = "histogram"
    network: str = "convolutions"  # of TRUNKS

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "NetworkShape":
        """As a file of any version tells it. ValueError, KeyError and TypeError where it is none.

        Sizes are bounded as the settings are. What an older version did not choose has its default.
        """
        first, second, third = values["channels"]
        low, high = float(values["value_low"]), float(values["value_high"])
        head, network = values.get("value_head", "histogram"), values.get("network", "convolutions")
        if head not in ("histogram", "quantiles") or network not in TRUNKS:
            raise ValueError
        shape = cls(
            (first, second, third),
            values["hidden_units"],
            values["num_actions"],
            low,
            high,
            values["value_bins"],
            head,
            network,
        )
        sizes = (*shape.channels, shape.hidden_units, shape.num_actions, shape.value_bins)
        if not all(isinstance(size, int) and 1 <= size <= 65_536 for size in sizes):
            raise ValueError
        if not -1e6 < low < high < 1e6:  # nor anything that is not a number
            raise ValueError
        return shape


def network_shape(rules: NetworkRules, play: PlayRules, task: TaskRules, gamma: float) -> NetworkShape:
    """The network that fits a task. The values that can occur are those of a death, of the flag, or of running forever.

    A little more than that is left on both sides: three deaths at once, and an eighth above the largest.
    """
    running = FASTEST_PIXELS * play.frame_skip * task.reward_scale / max(1.0 - gamma, 0.001)
    low, high = -45.0 * task.reward_scale, max(running, task.flag_bonus) * 9 / 8
    return NetworkShape(
        channels=rules.network_channels,
        hidden_units=rules.hidden_units,
        num_actions=len(ACTION_SETS[play.actions]),
        value_low=round(low, 6),
        value_high=round(high, 6),
        value_bins=rules.value_bins,
        value_head=rules.value_head,
        network=rules.network,
    )


class QNetwork(nn.Module):
    """Q-values of every action for a stack of pictures."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        self.features = TRUNKS[shape.network](shape.channels)
        # Both streams of the dueling head in one matrix: one large multiplication instead of two.
        self.hidden = nn.Linear(self.features.num_features, 2 * shape.hidden_units)
        self.hidden_norm = nn.LayerNorm(2 * shape.hidden_units)
        self.value = nn.Linear(shape.hidden_units, shape.value_bins)
        self.advantage = nn.Linear(shape.hidden_units, shape.num_actions * shape.value_bins)
        self.head = _make_head(shape)
        self._initialise()

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            if isinstance(module, nn.Conv2d):
                # Channels last: faster on a CPU (docs/benchmarks.md, `learner`), and what a GPU's tensor cores want.
                module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)
        # He's gain is for layers before a ReLU; the two output layers have none, and large first guesses of Q take
        # thousands of updates to unlearn.
        for output in (self.value, self.advantage):
            nn.init.normal_(output.weight, std=0.01)
        self.value.bias.data.copy_(self.head.first_guess())

    def forward(self, pictures: Tensor) -> Tensor:
        """Q-values from scaled pictures."""  # [B, 4, 84, 84] float in -1..1 -> [B, actions]
        return self.head.mean(self.outputs(pictures))

    def outputs(self, pictures: Tensor) -> Tensor:
        """The distributions behind the Q-values, which are what is trained."""  # [B, 4, 84, 84] -> [B, actions, n]
        return self._outputs(self.features(pictures).flatten(1))

    def values(self, features: Tensor) -> Tensor:
        """Q-values from what the trunk has made of the pictures."""  # [B, features] -> [B, actions]
        return self.head.mean(self._outputs(features))

    def _outputs(self, features: Tensor) -> Tensor:
        value_hidden, advantage_hidden = torch.relu(self.hidden_norm(self.hidden(features))).chunk(2, dim=1)
        # In float32 under autocast too: float16 knows Q-values near 10 only to 0.008, and actions would tie.
        with torch.autocast(features.device.type, enabled=False):
            value: Tensor = self.value(value_hidden.float())[:, None]
            advantage: Tensor = self.advantage(advantage_hidden.float()).unflatten(1, (self.shape.num_actions, -1))
        return value + advantage - advantage.mean(dim=1, keepdim=True)


def _make_head(shape: NetworkShape) -> ValueHead:
    if shape.value_head == "quantiles":
        return ValueQuantiles(shape.value_bins)
    return ValueBins(shape.value_low, shape.value_high, shape.value_bins)


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Make one network equal to another of the same shape, BatchNorm's statistics included."""
    torch._foreach_copy_([*target.parameters(), *target.buffers()], [*source.parameters(), *source.buffers()])


def eval_twin(network: QNetwork) -> QNetwork:
    """A second network in eval mode that shares every parameter and running statistic with the first.

    Double Q-learning asks the online network about the next state without letting it touch the statistics. Switching
    one module between train and eval makes a compiled graph recompile; a twin never switches.
    """
    shared = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, memo=shared).eval()
