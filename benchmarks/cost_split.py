"""Where a running pipeline's CPU time goes: collect, queue, consolidate, sample, targets, learn, publish, evaluate.

Collectors count their own. In the learner's process each part has a thread of its own, whose CPU time the system knows;
where a thread does two things, one of them is timed by its own CPU clock and the other is what is left.
"""

import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import psutil

from mario_rl.channels.experience_ring import CollectorStat
from mario_rl.collecting.parallel_source import ParallelSource
from mario_rl.training.pipeline import Pipeline


class Costs(NamedTuple):
    """CPU seconds of each part."""

    collect: float  # collector processes: game, policy, exploration; they write straight into the ring's slots
    queue: float  # consolidation thread outside of commits: doorbells, waking up, asking the rings
    consolidate: float  # consolidation thread inside of commits: rings to replay
    sample: float  # sampling thread: drawing and gathering
    targets: float  # sampling thread: what the next samples should be worth (without a GPU)
    learn: float  # main thread without its snapshots: forward, backward, optimizer, the loop around them
    publish: float  # main thread's snapshots, publishing thread's copies and checksums
    helpers: float  # threads of torch's own, which work for `targets` and `learn`
    evaluate: float  # evaluator process

    def since(self, before: "Costs") -> "Costs":
        """What was spent between two readings; clocks of different grain may be a tick apart."""
        return Costs(*(max(0.0, new - old) for new, old in zip(self, before, strict=True)))

    def divided_by(self, amount: float) -> "Costs":
        """For rates and shares."""
        return Costs(*(seconds / amount for seconds in self))


class CostWatch:
    """Reads a pipeline's costs. Made before it starts, since it takes the time of some of its functions."""

    def __init__(self, pipeline: Pipeline, source: ParallelSource) -> None:
        self._source = source
        sampler, publisher = pipeline.saver.sampler, pipeline.publisher
        self._commit = Timed(source.consolidation.commit)
        self._sample = Timed(sampler.sample)
        self._snapshot = Timed(publisher.publish)
        source.consolidation.commit = self._commit  # type: ignore[method-assign]
        sampler.sample = self._sample  # type: ignore[method-assign]
        publisher.publish = self._snapshot  # type: ignore[method-assign]

    def read(self) -> Costs:
        """Since the process began; two readings tell what was spent in between."""
        threads = _seconds_by_thread_name()
        return Costs(
            collect=sum(stats[CollectorStat.CPU_SECONDS] for stats in self._source.total_stats()),
            queue=threads["consolidation"] - self._commit.seconds,
            consolidate=self._commit.seconds,
            sample=self._sample.seconds,
            targets=threads["sampling"] - self._sample.seconds,
            learn=threads["MainThread"] - self._snapshot.seconds,
            publish=threads["publishing"] + self._snapshot.seconds,
            helpers=threads[""],
            evaluate=_evaluator_seconds(),
        )


class Timed:
    """A function, and the seconds that were spent in it by some clock. For one calling thread."""

    def __init__(self, function: Callable[..., Any], clock: Callable[[], float] = time.thread_time) -> None:
        self._function = function
        self._clock = clock
        self.seconds = 0.0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call it."""
        begun = self._clock()
        try:
            return self._function(*arguments, **named)
        finally:
            self.seconds += self._clock() - begun


def _evaluator_seconds() -> float:
    evaluators = [child for child in multiprocessing.active_children() if child.name == "evaluator"]
    times = [psutil.Process(child.pid).cpu_times() for child in evaluators]
    return float(sum(its.user + its.system for its in times))


def _seconds_by_thread_name() -> Counter[str]:
    """CPU seconds of this process's threads; those that Python does not know have an empty name."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    seconds: Counter[str] = Counter()
    for thread in psutil.Process().threads():
        seconds[names.get(thread.id, "")] += thread.user_time + thread.system_time
    return seconds
