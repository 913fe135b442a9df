"""The evaluator: a child process that plays test episodes with weights it is sent, while training goes on.

The main loop asks and goes on; a thread of the learner process sends the weights, waits for the answer and wakes the
main loop. The child has a lower priority than training, and sleeps between two ticks so long that it never takes more
than a small share of the machine. In serial mode the main loop plays the test itself, so that all happens in one fixed
order.
"""

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import NamedTuple

import torch
from safetensors.torch import load, save

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.environment.episodes import TaskRules
from mario_rl.evaluation.playing import Evaluation, evaluate
from mario_rl.machine.child_processes import end_with_parent, ready_for_children, use_one_thread
from mario_rl.settings.hardware import keep_freed_memory, num_cores

logger = logging.getLogger(__name__)

# A policy that does not clear the level from nearly all starts is not worth a hundred episodes more.
STICKY_FROM_CLEAR_RATE = 0.9
CPU_SHARE = 0.03  # of all cores, from each second to the next: a whole test takes two or three minutes on two of them
# Of much lower priority than training, but not the lowest: at 19 it would get a hundredth of a busy machine.
NICENESS = 10
MAX_DEATHS = 3  # in a row; then there is no evaluation any more
BEAT_SECONDS = 5.0  # a sign of life comes so often
MAX_SILENCE_SECONDS = 300.0  # whoever gives no sign of life for longer hangs


class EvaluatorSetup(NamedTuple):
    """Everything the evaluator is told at its start."""

    task: TaskRules
    network: NetworkShape
    seed: int
    sticky_from_clear_rate: float = STICKY_FROM_CLEAR_RATE
    cpu_share: float = CPU_SHARE


class Request(NamedTuple):
    """A policy to be tested, and when it was made."""

    decisions: int
    minutes: float
    weights: bytes  # safetensors


class Result(NamedTuple):
    """A request and its answer."""

    request: Request
    evaluations: list[Evaluation]  # one a level


_Answer = list[Evaluation] | None  # None is a sign of life


def run_evaluator(setup: EvaluatorSetup, connection: "Connection[_Answer, Request]") -> None:
    """The target of the evaluator process: answer requests until the learner hangs up."""
    use_one_thread()
    end_with_parent()
    os.nice(NICENESS)
    keep_freed_memory()
    network = _make_network(setup)
    try:
        while True:
            request = connection.recv()
            pace = _Pace(setup.cpu_share * num_cores(), lambda: connection.send(None))
            connection.send(_test(setup, network, request, pace.should_stop))
    except (EOFError, BrokenPipeError):
        pass  # the run is over
    finally:
        connection.close()


class _Pace:
    """Lets a test go on only as fast as its share of the cores allows, with a sign of life now and then."""

    def __init__(self, cores: float, beat: Callable[[], None]) -> None:
        self._cores = cores
        self._beat = beat
        self._begun = self._last_beat = time.monotonic()
        self._cpu_begun = time.process_time()

    def should_stop(self) -> bool:
        """Never; but it may be some time before that is known."""
        continues_at = self._begun + (time.process_time() - self._cpu_begun) / self._cores
        while True:
            now = time.monotonic()
            if now - self._last_beat >= BEAT_SECONDS:
                self._last_beat = now
                self._beat()
            if now >= continues_at:
                self._begun += now - continues_at  # what was not used is gone: no burst makes up for it
                return False
            time.sleep(min(continues_at - now, BEAT_SECONDS))


def _make_network(setup: EvaluatorSetup) -> QNetwork:
    return QNetwork(setup.network).eval().requires_grad_(False)


def _test(
    setup: EvaluatorSetup, network: QNetwork, request: Request, should_stop: Callable[[], bool]
) -> list[Evaluation]:
    network.load_state_dict(unpack_weights(request.weights))
    return [
        evaluate(
            network,
            setup.task,
            level,
            setup.seed,
            sticky_from_clear_rate=setup.sticky_from_clear_rate,
            should_stop=should_stop,
        )
        for level in setup.task.levels
    ]


class EvaluatorProcess:
    """The learner's side of the child process. Used by the main loop; owns one thread."""

    def __init__(self, context: SpawnContext, setup: EvaluatorSetup, on_result: Callable[[], None]) -> None:
        self._context = context
        self._setup = setup
        self._on_result = on_result
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._busy = False
        self._starting = threading.RLock()  # a signal handler's `kill` may interrupt `stop` in the same thread
        self._process: SpawnProcess | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="evaluation", daemon=True)

    def start(self) -> None:
        """Start the thread; the child follows with the first request."""
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request."""
        return not self._busy

    @property
    def has_results(self) -> bool:
        """Whether `take_result` would return one."""
        return not self._results.empty()

    def request(self, decisions: int, minutes: float, state: dict[str, torch.Tensor]) -> None:
        """Ask for an evaluation of these weights. Only when idle."""
        self._busy = True
        self._requests.put(Request(decisions, minutes, pack_weights(state)))

    def take_result(self) -> Result | None:
        """The next answer, if there is one."""
        try:
            return self._results.get_nowait()
        except queue.Empty:
            return None

    def stop(self) -> None:
        """End the child, whatever it is doing, and the thread."""
        self._ending = True
        self._requests.put(None)
        self.kill()  # it holds nothing that could be lost
        if self._thread.is_alive():
            self._thread.join()

    def kill(self) -> None:
        """End the child at once, for a second Ctrl-C."""
        with self._starting:
            if self._process is not None:
                self._process.kill()

    def _run(self) -> None:
        connection = None
        num_deaths = 0  # since the last answer
        while (request := self._requests.get()) is not None:
            try:
                connection = connection or self._start_child()
                if connection is None:
                    return
                evaluations = self._ask(connection, request)
            except (EOFError, OSError):
                if connection is not None:
                    self._bury(connection)
                connection = None
                num_deaths += 1
                if self._ending or num_deaths >= MAX_DEATHS:
                    break
                logger.warning("The evaluator process has ended; the next evaluation starts another.")
            else:
                num_deaths = 0
                self._results.put(Result(request, evaluations))
            self._busy = False
            self._on_result()
        if connection is not None:
            self._bury(connection)
        elif not self._ending:
            logger.warning("The evaluator process ended %d times; training goes on without evaluation.", num_deaths)

    def _ask(self, connection: "Connection[Request, _Answer]", request: Request) -> list[Evaluation]:
        """The child's answer. A child that hangs is killed, which is end-of-file here."""
        with self._killed_for_silence():  # sending waits, too, for a child that does not read
            connection.send(request)
        while True:
            with self._killed_for_silence():
                answer = connection.recv()
            if answer is not None:
                return answer

    @contextmanager
    def _killed_for_silence(self) -> Iterator[None]:
        timer = threading.Timer(MAX_SILENCE_SECONDS, self.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _bury(self, connection: "Connection[Request, _Answer]") -> None:
        connection.close()
        self.kill()
        if self._process is not None:
            self._process.join()

    def _start_child(self) -> "Connection[Request, _Answer] | None":
        """Our end of the child's pipe; None when the run is ending already."""
        with self._starting:
            if self._ending:
                return None
            ours, theirs = self._context.Pipe()
            with theirs, ready_for_children():  # then the child holds the only other end: its death is end-of-file
                process = self._context.Process(
                    target=run_evaluator, args=(self._setup, theirs), name="evaluator", daemon=True
                )
                process.start()
            self._process = process
            return ours


class InlineEvaluator:
    """Plays the test episodes itself, at once. For serial mode."""

    def __init__(self, setup: EvaluatorSetup, should_stop: Callable[[], bool] = lambda: False) -> None:
        self._setup = setup
        self._network = _make_network(setup)
        self._should_stop = should_stop
        self._results: list[Result] = []
        self.is_idle = True

    def start(self) -> None:
        """Nothing runs by itself here."""

    @property
    def has_results(self) -> bool:
        """Whether `take_result` would return one."""
        return bool(self._results)

    def request(self, decisions: int, minutes: float, state: dict[str, torch.Tensor]) -> None:
        """Evaluate these weights; a stop request ends that without a result."""
        request = Request(decisions, minutes, pack_weights(state))
        evaluations = _test(self._setup, self._network, request, self._should_stop)
        if not self._should_stop():
            self._results.append(Result(request, evaluations))

    def take_result(self) -> Result | None:
        """The next answer, if there is one."""
        return self._results.pop(0) if self._results else None

    def stop(self) -> None:
        """Nothing to end."""

    def kill(self) -> None:
        """Nothing to end."""


def pack_weights(state: dict[str, torch.Tensor]) -> bytes:
    """A copy of the weights that can travel."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in state.items()})


def unpack_weights(weights: bytes) -> dict[str, torch.Tensor]:
    """The other way round."""
    return load(weights)
