"""Evaluation during training, as the main loop knows it: it asks for one, goes on, and takes the result later.

`app/wiring.py` chooses an evaluator: a process of its own (`evaluator_process.py`), or this very thread
(`inline_evaluator.py`), so that in serial mode all happens in one fixed order.

A policy that reaches the run's goal is confirmed at once, with starts and sticky actions that had no part in choosing
it. From then on the evaluation hurries, and training rests: the run is probably over.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from safetensors.torch import load, save

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.emulation.rules import Level
from mario_rl.environment.task import PlayRules
from mario_rl.evaluation.episodes import UNSEEN_STARTS, add_sticky, evaluate, evaluate_starts
from mario_rl.evaluation.results import Evaluation, Goal, summarise

# A policy that does not clear the level from nearly all starts is not worth a hundred episodes more. Where there is a
# goal, it decides: sticky episodes of a policy that misses it would only keep the next policy waiting.
STICKY_FROM_CLEAR_RATE = 0.9
# Of the first 32 sticky episodes: a policy that reaches the goal clears so many less in one case of a hundred.
STICKY_MARGIN = 0.2
CPU_SHARE = 0.03  # of all cores, from each second to the next: an evaluation takes two or three minutes on two of them


class Evaluator(Protocol):
    """Used by the main loop alone."""

    @property
    def is_idle(self) -> bool:
        """Whether another request may be made."""

    @property
    def is_confirming(self) -> bool:
        """Whether a policy that reached the goal from the starts is being looked at more closely."""

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
    goal: Goal | None = None  # that ends the run; None: nothing is confirmed
    cpu_share: float = CPU_SHARE


class Request(NamedTuple):
    """A policy to be evaluated, and when it was made."""

    decisions: int
    minutes: float
    weights: bytes  # safetensors


class Answer(NamedTuple):
    """What was found out about a policy."""

    evaluations: list[Evaluation]  # one a level
    confirmation: list[Evaluation] | None  # with other starts and seeds; None where the goal was not reached


class Result(NamedTuple):
    """A request and its answer."""

    request: Request
    evaluations: list[Evaluation]  # one a level
    confirmation: list[Evaluation] | None


def make_network(setup: EvaluatorSetup) -> QNetwork:
    """A network to load weights into."""
    return QNetwork(setup.network).eval().requires_grad_(False)


def answer(
    setup: EvaluatorSetup,
    network: QNetwork,
    request: Request,
    wait_for_turn: Callable[[], bool],
    hurry: Callable[[], None] = lambda: None,
) -> Answer:
    """What a request asks for. `hurry` is called when the starts have reached the goal."""
    network.load_state_dict(unpack_weights(request.weights))
    play, goal = setup.play, setup.goal
    evaluations = [evaluate_starts(network, play, level, wait_for_turn=wait_for_turn) for level in setup.levels]
    if summarise(evaluations).clear_rate < (STICKY_FROM_CLEAR_RATE if goal is None else goal.clear_rate):
        return Answer(evaluations, None)
    fewest = 0.0
    if goal is not None:
        hurry()
        fewest = goal.sticky_clear_rate - STICKY_MARGIN
    evaluations = [
        add_sticky(evaluation, network, play, setup.seed, wait_for_turn=wait_for_turn, fewest_cleared=fewest)
        for evaluation in evaluations
    ]
    if goal is None or not goal.is_reached(summarise(evaluations).score):
        return Answer(evaluations, None)
    seed = setup.seed + request.decisions + 1  # another one each time
    confirmation = [
        evaluate(network, play, level, seed, starts=UNSEEN_STARTS, wait_for_turn=wait_for_turn)
        for level in setup.levels
    ]
    return Answer(evaluations, confirmation)


def pack_weights(weights: dict[str, torch.Tensor]) -> bytes:
    """A copy of the weights that can travel."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()})


def unpack_weights(weights: bytes) -> dict[str, torch.Tensor]:
    """The other way round."""
    return load(weights)
