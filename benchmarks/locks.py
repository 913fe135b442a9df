"""Four training workers that share one network, with three kinds of locking; and one worker."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.learner import synthetic_replay
from benchmarks.measure import Sample, StudyResult, as_is, interleave_many, quotient
from benchmarks.product import product_settings
from mario_rl.learning.learner import Learner
from mario_rl.learning.rules import Execution
from mario_rl.learning.sampling import SampleAhead, SampleInline
from mario_rl.learning.trainers import LoneTrainer
from mario_rl.learning.worker_team import WorkerTeam
from mario_rl.machine.facts import num_cores
from mario_rl.replay.uniform import UniformSampler
from mario_rl.telemetry.locks import LockReport, TimedLock

QUESTION = "Do several training workers pay, and how much do they wait for each other?"
TEACHES = (
    "With one lock around training, four workers spend most of their time waiting for it and are slower than one. "
    "Replicas with a read/write lock take nearly all of the waiting away and gain a little over one worker, at the "
    "price of older gradients. On two cores there is little more to share out; `TRAINING_WORKERS` is there for "
    "machines with more."
)
SECONDS = {"quick": 20, "full": 370}
NUM_WORKERS = 4

ONE_LOCK = "4 workers, one lock around everything"
SMALL_LOCK = "4 workers, sampling outside the lock"
REPLICAS = "4 workers, replicas and a read/write lock"
ONE_WORKER = "1 worker"
PRODUCT = "1 worker, sampling and targets ahead (the product)"

# Several workers are an option for machines without a GPU, which has one queue for all; so all of them train on
# the CPU, with the settings for one.
DEVICE = torch.device("cpu")


class _Figures(NamedTuple):
    steps: float  # optimizer steps a second
    report: LockReport
    seconds: float
    workers: int


def run(quick: bool) -> StudyResult:
    """Measure the five in turns."""
    seconds = 1.5 if quick else 6.0
    settings = product_settings({"DEVICE": DEVICE.type})
    shape, rules = settings.network_shape, settings.learning
    replay = synthetic_replay()
    cores = num_cores()

    def new_learner() -> Learner:
        torch.manual_seed(0)
        return Learner(shape, rules, Execution(DEVICE))

    def new_sampler(number: int = 0) -> UniformSampler:
        return UniformSampler(replay, settings.sampling, np.random.default_rng(number))

    def new_samples(number: int = 0) -> SampleInline:
        return SampleInline(new_sampler(number), rules.sample_size)

    def with_lock(train: Callable[[Learner, SampleInline, TimedLock], None]) -> Callable[[], _Figures]:
        return lambda: _with_one_lock(new_learner(), [new_samples(n) for n in range(NUM_WORKERS)], train, seconds)

    def team() -> _Figures:
        learner = new_learner()
        workers = WorkerTeam(learner, [new_samples(n) for n in range(NUM_WORKERS)], max(1, cores // NUM_WORKERS))
        steps = _steps_of(learner, workers.train, seconds)
        reading, writing = workers.lock.take_report()
        workers.close()
        both = LockReport(
            reading.acquisitions + writing.acquisitions,
            reading.wait_seconds + writing.wait_seconds,
            reading.hold_seconds + writing.hold_seconds,
        )
        return _Figures(steps, both, seconds, NUM_WORKERS)

    def alone() -> _Figures:
        torch.set_num_threads(cores)
        learner = new_learner()
        steps = _steps_of(learner, LoneTrainer(learner, new_samples()).train, seconds)
        return _Figures(steps, LockReport(0, 0.0, 0.0), seconds, 1)

    def product() -> _Figures:
        torch.set_num_threads(max(1, cores // 2))
        learner = new_learner()
        ahead = SampleAhead(new_sampler(), rules.sample_size, False, learner.targets_ahead())
        trainer = LoneTrainer(learner, ahead)
        steps = _steps_of(learner, trainer.train, seconds)
        trainer.close()
        return _Figures(steps, LockReport(0, 0.0, 0.0), seconds, 1)

    variants = {ONE_LOCK: with_lock(_train_inside), REPLICAS: team, PRODUCT: product}
    if not quick:
        variants |= {SMALL_LOCK: with_lock(_sample_outside), ONE_WORKER: alone}
    measured = interleave_many(variants, repeats=1 if quick else 3, warm_up=not quick)

    def steps(name: str) -> Sample:
        return Sample([figures.steps for figures in measured[name]])

    table = []
    for name, runs in measured.items():
        reports = [figures.report for figures in runs]
        waits = [figures.report.wait_seconds / figures.seconds / figures.workers for figures in runs]
        table.append(
            {
                "workers": name,
                "steps/s": f"{steps(name).median:.1f}",
                "mean wait": f"{Sample([report.mean_wait_milliseconds for report in reports]).median:.2f} ms",
                "mean hold": f"{Sample([report.mean_hold_milliseconds for report in reports]).median:.2f} ms",
                "contention ratio": f"{Sample([report.contention_ratio for report in reports]).median:.2f}",
                "share of workers' time waiting": f"{Sample(waits).median:.1%}",
            }
        )
    ratios = {
        "replicas against one lock": as_is(quotient(steps(REPLICAS), steps(ONE_LOCK)), "x"),
        "the product against replicas": as_is(quotient(steps(PRODUCT), steps(REPLICAS)), "x"),
        "the product against one lock": as_is(quotient(steps(PRODUCT), steps(ONE_LOCK)), "x"),
    }
    if not quick:
        ratios["smallest scope against one lock"] = as_is(quotient(steps(SMALL_LOCK), steps(ONE_LOCK)), "x")
        ratios["replicas against one worker"] = as_is(quotient(steps(REPLICAS), steps(ONE_WORKER)), "x")
    return StudyResult(
        table,
        ratios,
        [
            "All of them train on the CPU, also where there is a GPU: TRAINING_WORKERS is for machines without one.",
            "A read/write lock around one network would let one worker's backward pass run on weights that another has "
            "stepped, which torch refuses; replicas are the sound form of it (mario_rl/learning/worker_team.py).",
        ],
    )


def _steps_of(learner: Learner, train: Callable[[], int], seconds: float) -> float:
    train()
    before, begun = learner.num_updates, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        train()
    return (learner.num_updates - before) / (time.perf_counter() - begun)


def _train_inside(learner: Learner, samples: SampleInline, lock: TimedLock) -> None:
    with lock:
        learner.train_on(samples.next())


def _sample_outside(learner: Learner, samples: SampleInline, lock: TimedLock) -> None:
    sample = samples.next()
    with lock:
        learner.train_on(sample)


def _with_one_lock(
    learner: Learner,
    samples: list[SampleInline],
    train: Callable[[Learner, SampleInline, TimedLock], None],
    seconds: float,
) -> _Figures:
    """Workers that take turns on one network."""
    lock, stop = TimedLock(), threading.Event()
    previous_threads = torch.get_num_threads()

    def work(own: SampleInline) -> None:
        torch.set_num_threads(num_cores())  # only one of them computes at a time
        while not stop.is_set():
            train(learner, own, lock)

    threads = [threading.Thread(target=work, args=(own,)) for own in samples]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    with lock:
        lock.take_report()
    before, begun = learner.num_updates, time.perf_counter()
    time.sleep(seconds)
    steps = (learner.num_updates - before) / (time.perf_counter() - begun)
    with lock:  # which waits its turn as well
        report = lock.take_report()
        seconds = time.perf_counter() - begun
    stop.set()
    for thread in threads:
        thread.join()
    torch.set_num_threads(previous_threads)
    return _Figures(steps, report, seconds, len(samples))
