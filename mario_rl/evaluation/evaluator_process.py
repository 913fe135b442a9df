"""The evaluator process: a child that plays episodes with weights it is sent, while training goes on.

The main loop asks and goes on; a thread of the learner process sends the weights, waits for the answer and wakes the
main loop. The child has a lower priority than training, and sleeps between two ticks (`pace.py`), so that it never
takes more than a small share of the machine.
"""

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Literal

import torch

from mario_rl.evaluation.evaluator import Answer, EvaluatorSetup, Request, Result, answer, make_network, pack_weights
from mario_rl.evaluation.pace import Pace
from mario_rl.machine.child_processes import end_with_parent, ready_for_children, use_one_thread
from mario_rl.machine.facts import num_cores
from mario_rl.machine.process_tuning import keep_freed_memory

logger = logging.getLogger(__name__)

# Of much lower priority than training, but not the lowest: at 19 it would get a hundredth of a busy machine.
NICENESS = 10
MAX_DEATHS = 3  # in a row; then there is no evaluation any more
MAX_SILENCE_SECONDS = 300.0  # a child that gives no sign of life for longer hangs

HURRYING: Literal["hurrying"] = "hurrying"  # that the goal was reached from the starts
Message = Answer | Literal["hurrying"] | None  # None is a sign of life


def run_evaluator(setup: EvaluatorSetup, connection: "Connection[Message, Request]") -> None:
    """The target of the evaluator process: answer requests until the learner hangs up."""
    use_one_thread()
    end_with_parent()
    os.nice(NICENESS)
    keep_freed_memory()
    network = make_network(setup)
    try:
        while True:
            request = connection.recv()
            pace = Pace(setup.cpu_share * num_cores(), lambda: connection.send(None))

            def hurry(pace: Pace = pace) -> None:
                pace.hurry()
                connection.send(HURRYING)

            connection.send(answer(setup, network, request, pace.wait_for_turn, hurry))
    except (EOFError, BrokenPipeError):
        pass  # the run is over
    finally:
        connection.close()


class EvaluatorProcess:
    """The learner's side of the child process. Used by the main loop; owns one thread."""

    def __init__(self, context: SpawnContext, setup: EvaluatorSetup, on_result: Callable[[], None]) -> None:
        self._context = context
        self._setup = setup
        self._on_result = on_result
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Result] = queue.SimpleQueue()
        self._busy = False
        self._is_confirming = False
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
    def is_confirming(self) -> bool:
        """Whether the child hurries."""
        return self._is_confirming

    @property
    def has_results(self) -> bool:
        """Whether `take_result` would return one."""
        return not self._results.empty()

    def request(self, decisions: int, minutes: float, weights: dict[str, torch.Tensor]) -> None:
        """Ask for an evaluation of these weights. Only when idle."""
        self._busy = True
        self._requests.put(Request(decisions, minutes, pack_weights(weights)))

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
                found = self._ask(connection, request)
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
                self._results.put(Result(request, *found))
            self._busy = self._is_confirming = False
            self._on_result()
        if connection is not None:
            self._bury(connection)
        elif not self._ending:
            logger.warning("The evaluator process ended %d times; training goes on without evaluation.", num_deaths)

    def _ask(self, connection: "Connection[Request, Message]", request: Request) -> Answer:
        """The child's answer. A child that hangs is killed, which is end-of-file here."""
        with self._killed_for_silence():  # sending waits, too, for a child that does not read
            connection.send(request)
        while True:
            with self._killed_for_silence():
                message = connection.recv()
            if isinstance(message, Answer):
                return message
            self._is_confirming |= message == HURRYING

    @contextmanager
    def _killed_for_silence(self) -> Iterator[None]:
        timer = threading.Timer(MAX_SILENCE_SECONDS, self.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _bury(self, connection: "Connection[Request, Message]") -> None:
        connection.close()
        self.kill()
        if self._process is not None:
            self._process.join()

    def _start_child(self) -> "Connection[Request, Message] | None":
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
