"""Several threads that train side by side and share the networks (TRAINING_WORKERS).

Several workers cannot train on one set of weights at once. The backward pass of one needs the weights of its forward
pass, which another's optimizer step has changed meanwhile: torch refuses. And BatchNorm's forward in train mode writes
its running statistics, so not even that is a read. So each worker has replicas: it copies the weights as a reader,
samples, and runs forward and backward on its own networks without any lock; then it brings its gradients and statistics
back as a writer, and makes the step. Gradients are as old as the other workers' steps in between.

One worker is the default: as fast where it was measured (docs/benchmarks.md, study `locks`), and nothing is ever stale.
"""

import copy
import queue
import threading

import torch

from mario_rl.agent.network import copy_weights, eval_twin
from mario_rl.learning.learner import Learner
from mario_rl.learning.losses import LossFigures, double_q_loss
from mario_rl.learning.read_write_lock import ReadWriteLock
from mario_rl.learning.sampling import SampleInline
from mario_rl.learning.transfer import Transfer
from mario_rl.telemetry.metrics import Metrics


class WorkerTeam:
    """Threads that train side by side."""

    def __init__(self, learner: Learner, samples: list[SampleInline], threads_each: int) -> None:
        self.lock = ReadWriteLock()
        self._requests: list[queue.SimpleQueue[bool]] = [queue.SimpleQueue() for _ in samples]
        self._results: queue.SimpleQueue[int | BaseException] = queue.SimpleQueue()
        self._threads_each = threads_each
        workers = [_Worker(learner, own, self.lock) for own in samples]
        self._threads = [
            threading.Thread(target=self._run, args=(worker, requests), name=f"training {number}", daemon=True)
            for number, (worker, requests) in enumerate(zip(workers, self._requests, strict=True))
        ]
        for thread in self._threads:
            thread.start()

    def train(self) -> int:
        """One round of every worker; the number of experiences trained on."""
        for requests in self._requests:
            requests.put(True)
        results = [self._results.get() for _ in self._threads]
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return sum(result for result in results if isinstance(result, int))

    def settle(self) -> None:
        """Nothing: uniform samplers remember nothing of a batch."""

    def metrics(self) -> Metrics:
        """How long workers have waited for each other since the last call."""
        reading, writing = self.lock.take_report()
        wait_seconds = reading.wait_seconds + writing.wait_seconds
        return {
            "learner/sample_wait_share": 0.0,
            "workers/read_wait_milliseconds": reading.mean_wait_milliseconds,
            "workers/write_wait_milliseconds": writing.mean_wait_milliseconds,
            "workers/lock_wait_seconds": wait_seconds,
        }

    def close(self) -> None:
        """Stop the threads."""
        for requests in self._requests:
            requests.put(False)
        for thread in self._threads:
            thread.join()

    def _run(self, worker: "_Worker", requests: "queue.SimpleQueue[bool]") -> None:
        torch.set_num_threads(self._threads_each)
        while requests.get():
            try:
                self._results.put(worker.train())
            except BaseException as error:  # raised again in the thread that asked
                self._results.put(error)


class _Worker:
    """One thread's replicas and what it does with them."""

    def __init__(self, learner: Learner, samples: SampleInline, lock: ReadWriteLock) -> None:
        self._learner = learner
        self._samples = samples
        self._lock = lock
        rules = learner.rules
        self._online = copy.deepcopy(learner.networks.online).train()
        self._online_eval = eval_twin(self._online)
        self._target = copy.deepcopy(learner.networks.target)
        self._transfer = Transfer(rules.batch_size, learner.device, learner.autocast_dtype)

    def train(self) -> int:
        """One round: draw, accumulate, step."""
        rules = self._learner.rules
        figures: list[LossFigures] = []
        for _ in range(rules.samples_per_round):
            self._transfer.load(self._samples.next())
            for part in range(rules.training_steps_per_sample):
                if not figures:
                    self._take_weights()
                batch = self._transfer.micro_batch(part)
                with self._learner.autocast():
                    figure = double_q_loss(
                        self._online.outputs, self._online_eval.outputs, self._target.outputs, self._online.head, batch
                    )
                (figure.loss / rules.gradient_accumulation_steps).backward()  # type: ignore[no-untyped-call]
                figures.append(figure)
                if len(figures) == rules.gradient_accumulation_steps:
                    with self._lock.writing():
                        self._learner.step_with(self._online, figures)
                    figures = []
            self._transfer.release()
        return rules.samples_per_round * rules.sample_size

    def _take_weights(self) -> None:
        self._online.zero_grad(set_to_none=False)
        with self._lock.reading():
            copy_weights(self._learner.networks.online, self._online)
            copy_weights(self._learner.networks.target, self._target)
