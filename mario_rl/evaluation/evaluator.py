"""Evaluation during training, as the main loop knows it: it asks for one, goes on, and takes the result later.

`app/wiring.py` chooses an evaluator: a process of its own (`evaluator_process.py`), or this very thread
(`inline_evaluator.py`), so that in serial mode all happens in one fixed order.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from safetensors.torch import load, save

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.emulation.rules import Level
from mario_rl.environment.task import PlayRules
from mario_rl.evaluation.episodes import evaluate
from mario_rl.evaluation.results import Evaluation

# A policy that does not clear the level from nearly all starts is not worth a hundred episodes more.
STICKY_FROM_CLEAR_RATE = 0.9
CPU_SHARE = 0.03  # of all cores, from each second to the next: an evaluation takes two or three minutes on two of them


class Evaluator(Protocol):
    """Used by the main loop alone."""

    @property
    def is_idle(self) -> bool:
        """Whether another request may be made."""

    @property
    def has_results(self) -> bool:
        """Whether `take_result` would return one."""

    def start(self) -> None:
        """Begin to answer requests."""

    def request(self, decisions: int, minutes: float, weights: dict[str, torch.Tensor]) -> None:
        """Have these weights evaluated; they are copied. Only while it is idle."""

    def take_result(self) -> "Result | None":
        """The next answer, if there is one."""

    def stop(self) -> None:
        """End, whatever is being played."""

    def kill(self) -> None:
        """End the child at once. From a signal handler, or after an error."""


class EvaluatorSetup(NamedTuple):
    """Everything the evaluator is told at its start."""

    play: PlayRules
    levels: tuple[Level, ...]
    network: NetworkShape
    seed: int
    sticky_from_clear_rate: float = STICKY_FROM_CLEAR_RATE
    cpu_share: float = CPU_SHARE


class Request(NamedTuple):
    """A policy to be evaluated, and when it was made."""

    decisions: int
    minutes: float
    weights: bytes  # safetensors


class Result(NamedTuple):
    """A request and its answer."""

    request: Request
    evaluations: list[Evaluation]  # one a level


def make_network(setup: EvaluatorSetup) -> QNetwork:
    """A network to load weights into."""
    return QNetwork(setup.network).eval().requires_grad_(False)


def answer(
    setup: EvaluatorSetup, network: QNetwork, request: Request, wait_for_turn: Callable[[], bool]
) -> list[Evaluation]:
    """The evaluations that a request asks for, one a level."""
    network.load_state_dict(unpack_weights(request.weights))
    return [
        evaluate(
            network,
            setup.play,
            level,
            setup.seed,
            sticky_from_clear_rate=setup.sticky_from_clear_rate,
            wait_for_turn=wait_for_turn,
        )
        for level in setup.levels
    ]


def pack_weights(weights: dict[str, torch.Tensor]) -> bytes:
    """A copy of the weights that can travel."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})


def unpack_weights(weights: bytes) -> dict[str, torch.Tensor]:
    """The other way round."""
    return load(weights)
