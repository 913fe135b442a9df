"""Evaluation in the thread that asks for it."""

from collections.abc import Callable

import torch

from mario_rl.evaluation.evaluator import EvaluatorSetup, Request, Result, answer, make_network, pack_weights


class InlineEvaluator:
    """Plays all episodes when it is asked. For serial mode."""

    def __init__(self, setup: EvaluatorSetup, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._setup = setup
        self._network = make_network(setup)
        self._should_stop = should_stop
        self._results: list[Result] = []
        self.is_idle = True
        self.is_confirming = False  # it is done before anybody could ask

    def start(self) -> None:
        """Nothing runs by itself here."""

    @property
    def has_results(self) -> bool:
        """Whether `take_result` would return one."""
        return bool(self._results)

    def request(self, decisions: int, minutes: float, weights: dict[str, torch.Tensor]) -> None:
        """Evaluate these weights; a stop request ends that without a result."""
        request = Request(decisions, minutes, pack_weights(weights))
        found = answer(self._setup, self._network, request, lambda: not self._should_stop())
        if not self._should_stop():
            self._results.append(Result(request, *found))

    def take_result(self) -> Result | None:
        """The next answer, if there is one."""
        return self._results.pop(0) if self._results else None

    def stop(self) -> None:
        """Nothing to end."""

    def kill(self) -> None:
        """Nothing to end."""
