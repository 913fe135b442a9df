"""Starting, watching, restarting and stopping collector processes. Runs in the main thread of the learner process.

Death is noticed by end-of-file on the ring's doorbell, in both directions; a hang by a heartbeat that stays away. A
collector that died is started again, with a fresh ring: a killed writer may have left the old one half-written.
"""

import contextlib
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess

import numpy as np

from mario_rl.channels.control import Control
from mario_rl.channels.doorbell import PeerGoneError
from mario_rl.channels.experience_ring import CollectorStat, RingReader, RingShape, RingWriter, create_ring
from mario_rl.channels.weight_slots import WeightSlots
from mario_rl.collecting.collector import Collector, CollectorSetup, collect_until_stopped
from mario_rl.collecting.rules import CollectingRules
from mario_rl.machine.child_processes import ready_for_children, use_one_thread

STOP_SECONDS = 3.0  # a collector looks at the stop flag every tick: 50 ms
START_SECONDS = 120.0  # until the first heartbeat: torch is imported, and nes-py plays through eight title screens
YOUNG_SECONDS = 10.0  # a collector that dies younger, or cannot start, waits longer and longer until its next start
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 60.0
DOUBT_SECONDS = 2.0  # between a suspicion and a kill: after Ctrl-Z and fg, all heartbeats look old for a moment
HOUR_SECONDS = 3600.0


def run_collector(
    setup: CollectorSetup,
    writer: RingWriter,
    control: Control,
    slots: WeightSlots,
    failures: "Connection[str, str]",
) -> None:
    """The target of a collector process; its parameters are all that it shares."""
    use_one_thread()
    try:
        collector = Collector(setup, control, slots)
        collect_until_stopped(collector, setup, writer, control)
        collector.close()
    except PeerGoneError:
        pass  # the learner is gone, and with it the reason to play
    except Exception:
        failures.send(traceback.format_exc())
        raise SystemExit(1) from None
    finally:
        failures.close()
        writer.close()


@dataclass
class _Care:
    """What is known about one collector."""

    setup: CollectorSetup
    process: SpawnProcess
    failures: "Connection[str, str]"
    started_at: float
    num_starts: int = 1
    is_gone: bool = False  # set by the consolidation thread, at the end-of-file
    restart_at: float | None = None
    num_young_deaths: int = 0
    suspected_at: float | None = None  # when its heartbeat was first found to be too old
    hung_seconds: float | None = None  # for which it had given no sign of life when it was killed


@dataclass
class Supervisor:
    """All collector processes of a run."""

    context: SpawnContext
    rules: CollectingRules
    control: Control
    on_notice: Callable[[str], None]  # a sentence for the user
    on_failure: Callable[[str], None]  # no more restarts: why
    on_restart: Callable[[int, RingReader], None]  # `readers` has a new one for this collector; the one before
    num_restarts: int = 0
    _cares: list[_Care] = field(default_factory=list)
    _restart_times: deque[float] = field(default_factory=deque)
    ring_shape: RingShape = field(init=False)

    def __post_init__(self) -> None:
        self.ring_shape = self.rules.ring_shape
        ends = [create_ring(self.context, self.ring_shape) for _ in range(self.rules.num_processes)]
        self._writers = [writer for writer, _ in ends]
        self.readers: list[RingReader] = [reader for _, reader in ends]

    def start(self, setups: list[CollectorSetup], slots: WeightSlots) -> None:
        """Start all collectors."""
        self._slots = slots
        for setup, writer in zip(setups, self._writers, strict=True):
            self._cares.append(_Care(setup, *self._start_process(setup, writer), started_at=time.monotonic()))

    def _start_process(self, setup: CollectorSetup, writer: RingWriter) -> tuple[SpawnProcess, "Connection[str, str]"]:
        with ready_for_children():
            received, sent = self.context.Pipe(duplex=False)
            process = self.context.Process(
                target=run_collector,
                args=(setup, writer, self.control, self._slots, sent),
                name=f"collector-{setup.number}",
                daemon=True,
            )
            try:
                process.start()
            except OSError:
                received.close()
                raise
            finally:
                # Now the child holds the only other end: when it dies, we read end-of-file.
                sent.close()
                writer.close()
        return process, received

    def note_gone(self, collector: int) -> None:
        """A doorbell has read end-of-file. From the consolidation thread."""
        self._cares[collector].is_gone = True

    @property
    def has_news(self) -> bool:
        """Whether a collector died that `tend` has not looked at yet."""
        return any(care.is_gone and care.restart_at is None for care in self._cares)

    @property
    def seconds_until_restart(self) -> float:
        """Until the next planned start; infinite where none is planned."""
        planned = [care.restart_at for care in self._cares if care.is_gone and care.restart_at is not None]
        return max(0.0, min(planned) - time.monotonic()) if planned else float("inf")

    def tend(self) -> None:
        """Kill collectors that hang, and start those again that died. Cheap: the main loop calls it all the time."""
        now = time.monotonic()
        for number, care in enumerate(self._cares):
            if not care.is_gone:
                self._check_heartbeat(number, care, now)
            elif care.restart_at is None:
                self._plan_restart(number, care, now, self._failure_of(number))
            elif now >= care.restart_at:
                self._restart(number, care)

    def _check_heartbeat(self, number: int, care: _Care, now: float) -> None:
        beat = float(self.readers[number].memory.stats.array[CollectorStat.HEARTBEAT])
        silent_seconds = now - (beat or care.started_at)
        if silent_seconds <= (self.rules.hang_seconds if beat else START_SECONDS):
            care.suspected_at = None
        elif care.suspected_at is None:
            care.suspected_at = now
        elif now - care.suspected_at > DOUBT_SECONDS and care.hung_seconds is None:
            care.hung_seconds = silent_seconds
            care.process.kill()  # which also ends a stopped process; its end-of-file follows

    def _plan_restart(self, number: int, care: _Care, now: float, reason: str) -> None:
        while self._restart_times and now - self._restart_times[0] > HOUR_SECONDS:
            self._restart_times.popleft()
        if len(self._restart_times) >= self.rules.max_restarts_per_hour:
            limit = self.rules.max_restarts_per_hour
            count = f"\nCollectors were started again {limit} times within an hour." if limit else ""
            self.on_failure(reason + count)
            care.restart_at = float("inf")
            return
        self._restart_times.append(now)
        is_young = now - care.started_at < YOUNG_SECONDS
        pause = FIRST_PAUSE_SECONDS * 2**care.num_young_deaths if is_young else FIRST_PAUSE_SECONDS
        care.num_young_deaths = care.num_young_deaths + 1 if is_young else 0
        care.restart_at = now + min(pause, LONGEST_PAUSE_SECONDS)
        count = f"{len(self._restart_times)} of {self.rules.max_restarts_per_hour} restarts within an hour"
        self.on_notice(f"{reason.rstrip()}\n[COLLECTOR] {number} is started again ({count}).")

    def _restart(self, number: int, care: _Care) -> None:
        # Another seed each time, or a bug in the game that killed it would be played once more.
        key = (*care.setup.seed.spawn_key, care.num_starts)
        setup = care.setup._replace(seed=np.random.SeedSequence(care.setup.seed.entropy, spawn_key=key))
        care.started_at, care.num_starts = time.monotonic(), care.num_starts + 1
        self.control.grant_decisions(number, 0)  # grants are counted from a collector's start
        try:
            writer, reader = create_ring(self.context, self.ring_shape)
            try:
                process, failures = self._start_process(setup, writer)
            except OSError:
                reader.close()
                raise
        except OSError as error:  # no memory, no process or no file is left on this machine, for now
            self._plan_restart(number, care, care.started_at, f"Collector {number} cannot be started again: {error}.")
            return
        care.failures.close()
        care.process, care.failures = process, failures
        care.restart_at = care.suspected_at = care.hung_seconds = None
        old_reader, self.readers[number] = self.readers[number], reader
        self._writers[number] = writer
        care.is_gone = False
        self.num_restarts += 1
        self.on_restart(number, old_reader)

    def _failure_of(self, collector: int) -> str:
        """Why a collector ended, in words."""
        care = self._cares[collector]
        with contextlib.suppress(EOFError, OSError):
            if care.failures.poll(0):
                return f"Collector {collector} failed:\n{care.failures.recv()}"
        care.process.join(STOP_SECONDS)
        if care.process.is_alive():  # it has hung up and yet not ended, and would never be looked after again
            care.process.kill()
            care.process.join()
        if care.hung_seconds is not None:
            return f"Collector {collector} gave no sign of life for {care.hung_seconds:.0f} s and was killed."
        code = care.process.exitcode
        if code is not None and code < 0:
            return f"Collector {collector} was killed by {signal.Signals(-code).name}."
        return f"Collector {collector} ended unexpectedly with exit code {code}."

    def stop(self) -> None:
        """End all collectors, whatever they are doing."""
        self.control.stop = True
        for reader in self.readers:
            with contextlib.suppress(PeerGoneError):
                reader.wake_writer()
        deadline = time.monotonic() + STOP_SECONDS  # for all of them together
        for care in self._cares:
            care.process.join(max(0.0, deadline - time.monotonic()))
        for care in self._cares:
            if care.process.is_alive():
                care.process.kill()
                care.process.join()

    def close(self) -> None:
        """Let go of the rings, once they are no longer read."""
        for reader in self.readers:
            reader.close()
        for writer in self._writers:
            writer.close()
        for care in self._cares:
            care.failures.close()

    def kill(self) -> None:
        """End all collectors at once."""
        for care in self._cares:
            care.process.kill()
