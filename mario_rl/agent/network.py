"""The BatchNorm convolutional Q-network, used by collectors and learner alike.

Each convolution has no bias (BatchNorm's shift replaces it) and is followed by BatchNorm and an in-place ReLU. The
hidden layer is followed by LayerNorm, which lets it learn faster (docs/learning.md). The head is dueling: a state value
and advantages that are centred on their mean. Both are distributions: the logits of histograms (value_bins.py), or
quantiles (value_quantiles.py).
"""

import copy
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from mario_rl.agent.value_bins import ValueBins
from mario_rl.agent.value_quantiles import ValueQuantiles
from mario_rl.experience import FRAME_SIZE, STACK_SIZE

ValueHead = ValueBins | ValueQuantiles
PICTURE_SCALE = 127.5  # half of a picture's range, and its middle

# kernel, stride of the three convolutions: 84 -> 20 -> 9 -> 7 pixels
_CONVOLUTIONS = ((8, 4), (4, 2), (3, 1))
# How far each batch moves BatchNorm's running statistics. The weights change with every update, so averages over many
# batches belong to weights of the past, while one batch's own statistics are good to one percent: follow them quickly.
# With torch's 0.1, acting and target networks had twice the error of the network in training (docs/learning.md).
_STATISTICS_MOMENTUM = 0.5


class NetworkShape(NamedTuple):
    """What two networks must share to exchange weights."""

    channels: tuple[int, int, int]
    hidden_units: int
    num_actions: int
    value_low: float = -3.0  # where the values' histogram begins ...
    value_high: float = 9.0  # ... and ends
    value_bins: int = 60  # numbers that make up a value: the histogram's bins, or quantiles
    value_head: Literal["histogram", "quantiles"] = "histogram"


class QNetwork(nn.Module):
    """Q-values of every action for a stack of pictures."""

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        layers: list[nn.Module] = []
        size, inputs = FRAME_SIZE, STACK_SIZE
        for outputs, (kernel, stride) in zip(shape.channels, _CONVOLUTIONS, strict=True):
            layers += [
                nn.Conv2d(inputs, outputs, kernel, stride, bias=False),
                nn.BatchNorm2d(outputs, momentum=_STATISTICS_MOMENTUM),
                nn.ReLU(inplace=True),
            ]
            size, inputs = (size - kernel) // stride + 1, outputs
        self.features = nn.Sequential(*layers)
        # Both streams of the dueling head in one matrix: one large multiplication instead of two.
        self.hidden = nn.Linear(inputs * size * size, 2 * shape.hidden_units)
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
        """Q-values from what the convolutions have made of the pictures."""  # [B, features] -> [B, actions]
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


def scale_pictures(stacks: Tensor, out: Tensor | None = None) -> Tensor:
    """uint8 stacks as the network wants them: -1..1, channels last; into `out` where one is given.

    Centred, because the mean of a convolution's output is its weights times the mean of its input: with 0..1 every
    update moves that mean by a large part of its spread, and BatchNorm's running statistics are always behind.
    """
    if out is None:
        out = torch.empty(stacks.shape, device=stacks.device, memory_format=torch.channels_last)
    return out.copy_(stacks).sub_(PICTURE_SCALE).mul_(1 / PICTURE_SCALE)


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
