"""Starting and stopping collector processes. Runs in the learner process.

Death is noticed by end-of-file on the ring's doorbell, in both directions.
"""

import contextlib
import signal
import time
import traceback
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess

from mario_rl.channels.control import Control
from mario_rl.channels.doorbell import PeerGoneError
from mario_rl.channels.experience_ring import RingReader, RingShape, RingWriter, create_ring
from mario_rl.channels.weight_slots import WeightSlots
from mario_rl.child_processes import ready_for_children, use_one_thread
from mario_rl.collecting.collector import Collector, CollectorSetup, collect_until_stopped

STOP_SECONDS = 3.0  # a collector looks at the stop flag every tick: 50 ms


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
        pass  # the learner is gone: there is nobody to play for
    except Exception:
        failures.send(traceback.format_exc())
        raise SystemExit(1) from None
    finally:
        failures.close()
        writer.close()


class Supervisor:
    """All collector processes of a run."""

    def __init__(self, context: SpawnContext, ring_shape: RingShape, num_collectors: int, control: Control) -> None:
        self._context = context
        self._control = control
        self._processes: list[SpawnProcess] = []
        self._failures: list[Connection[str, str]] = []
        ends = [create_ring(context, ring_shape) for _ in range(num_collectors)]
        self._writers = [writer for writer, _ in ends]
        self.readers: list[RingReader] = [reader for _, reader in ends]

    def start(self, setups: list[CollectorSetup], slots: WeightSlots) -> None:
        """Start all collectors."""
        with ready_for_children():
            for setup, writer in zip(setups, self._writers, strict=True):
                received, sent = self._context.Pipe(duplex=False)
                process = self._context.Process(
                    target=run_collector,
                    args=(setup, writer, self._control, slots, sent),
                    name=f"collector-{setup.number}",
                    daemon=True,
                )
                process.start()
                # Now the child holds the only other end: when it dies, we read end-of-file.
                sent.close()
                writer.close()
                self._processes.append(process)
                self._failures.append(received)

    def failure_of(self, collector: int) -> str:
        """Why a collector ended, in words. Call it once its doorbell reads end-of-file."""
        process, failures = self._processes[collector], self._failures[collector]
        with contextlib.suppress(EOFError, OSError):
            if failures.poll(0):
                return f"Collector {collector} failed:\n{failures.recv()}"
        process.join(STOP_SECONDS)
        code = process.exitcode
        if code is not None and code < 0:
            return f"Collector {collector} was killed by {signal.Signals(-code).name}."
        return f"Collector {collector} ended unexpectedly with exit code {code}."

    def stop(self) -> None:
        """End all collectors, whatever they are doing."""
        self._control.stop = True
        for reader in self.readers:
            with contextlib.suppress(PeerGoneError):
                reader.wake_writer()
        deadline = time.monotonic() + STOP_SECONDS  # for all of them together
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in self._processes:
            if process.is_alive():
                process.kill()
                process.join()

    def close(self) -> None:
        """Let go of the rings, once nobody reads them any more."""
        for reader in self.readers:
            reader.close()
        for writer in self._writers:
            writer.close()
        for failures in self._failures:
            failures.close()

    def kill(self) -> None:
        """End all collectors at once."""
        for process in self._processes:
            process.kill()
