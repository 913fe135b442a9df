"""How long the pipeline takes to recover from deaths, hangs and signals: real processes, really killed."""

import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import psutil

from benchmarks.measure import Sample, StudyResult, as_is, at_most
from benchmarks.product import PROJECT, connect_silently, parallel_source, product_settings
from mario_rl.channels.experience_ring import CollectorStat
from mario_rl.collecting.supervisor import YOUNG_SECONDS
from mario_rl.storage.checkpoints import CheckpointStore
from mario_rl.training.pipeline import Pipeline

QUESTION = "How long until everything plays again, or has ended, after a kill, a hang or a signal?"
TEACHES = (
    "A death is noticed at once, because the end of a process is an event for which nothing has to poll. Nearly all "
    "of a restart is the import of torch. The faults and promises behind these figures are in "
    "[reliability.md](reliability.md)."
)
SECONDS = {"quick": 15, "full": 300}
HANG_SECONDS = 5.0  # the study does not wait for the twenty of config_optimized.py
ENTRY = ("mario_rl_optimized.py", "config_optimized.py")


def run(quick: bool) -> StudyResult:
    """Kill, stop, interrupt, and watch."""
    repeats = 1 if quick else 5
    rows, ratios = [], {}

    def note(name: str, seconds: list[float], limit: float | None) -> None:
        sample = Sample(seconds)
        rows.append({"event": name, "seconds": f"{sample.median:.2f}", "slowest": f"{max(seconds):.2f}"})
        ratios[name] = as_is(sample, "s") if limit is None else at_most(sample, limit, "s")

    with closing(_Collecting(until_full=not quick)) as collecting:
        restarts = [collecting.restart(signal.SIGKILL) for _ in range(repeats)]
        note("a killed collector is noticed", [noticed for noticed, _ in restarts], 1.0)
        note("a killed collector plays again", [plays for _, plays in restarts], None)
        if not quick:
            hangs = [collecting.restart(signal.SIGSTOP) for _ in range(3)]
            name = f"a hanging collector is noticed (HANG_SECONDS = {HANG_SECONDS:g})"
            note(name, [noticed for noticed, _ in hangs], None)
            note("a checkpoint with all of replay is written and read back", _save(collecting.pipeline, repeats), None)
    if not quick:
        note("Ctrl-C with a full replay: exit", [_end_script(signal.SIGINT) for _ in range(3)], 10.0)
        note("the learner is killed: its processes are gone", [_end_script(signal.SIGKILL) for _ in range(3)], 5.0)
    return StudyResult(
        rows,
        ratios,
        ["Of a second start, most is the import of torch. After a death there is a pause of half a second."],
    )


class _Collecting:
    """The product's collectors at play, looked after as in a run."""

    def __init__(self, *, until_full: bool) -> None:
        settings = product_settings(
            {
                "REPLAY_RATIO": 0.0,
                "EVALUATION_DECISIONS": 0,
                "HANG_SECONDS": HANG_SECONDS,
                "MAX_RESTARTS_PER_HOUR": 1_000,
            }
        )
        self._notices: queue.SimpleQueue[tuple[float, int]] = queue.SimpleQueue()
        self.pipeline = pipeline = connect_silently(settings, self._note)
        pipeline.publisher.publish(0)
        pipeline.start()
        pipeline.source.limit_collection(None)
        self._ended = threading.Event()
        self._tending = threading.Thread(target=pipeline.source.wait_for_work, args=(self._ended.is_set, None))
        self._tending.start()
        replay = pipeline.saver.replay
        enough = replay.num_streams * replay.length if until_full else 1
        pipeline.ledger.wait_until(lambda: replay.num_rows >= enough, None)

    def _note(self, text: str) -> None:
        if match := re.search(r"\[COLLECTOR\] (\d+)", text):
            self._notices.put((time.perf_counter(), int(match[1])))

    def restart(self, number: signal.Signals) -> tuple[float, float]:
        """Seconds from a signal to a collector until it is noticed, and until another one has played a chunk."""
        source = parallel_source(self.pipeline)
        if source.num_restarts:
            time.sleep(YOUNG_SECONDS + 1.0)  # those that die young again wait longer
        restarts, begun = source.num_restarts, time.perf_counter()
        min(_spawned(psutil.Process()), key=lambda child: child.create_time()).send_signal(number)
        noticed, collector = self._notices.get()
        while source.num_restarts == restarts or not source.total_stats()[collector][CollectorStat.DECISIONS_WRITTEN]:
            time.sleep(0.005)
        return noticed - begun, time.perf_counter() - begun

    def close(self) -> None:
        """End all processes."""
        self._ended.set()
        self.pipeline.ledger.wake()
        self._tending.join()
        self.pipeline.stop()


def _save(pipeline: Pipeline, repeats: int) -> list[float]:
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        store = CheckpointStore(Path(folder), keep=1)
        for _ in range(repeats):
            begun = time.perf_counter()
            pipeline.saver.save(store, is_best=False, should_abandon=lambda: False)
            seconds.append(time.perf_counter() - begun)
    return seconds


def _end_script(number: signal.Signals) -> float:
    """Seconds from a signal to a run with a full replay until none of its processes is left."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ENTRY:
            shutil.copy(PROJECT / name, folder)
        settings = product_settings()  # which also compiles the emulator, where that is still to do
        # Nearly without learning, so that replay is full within half a minute.
        options = ["--set", "REPLAY_RATIO=0.05", "--set", "PROCESSOR_LOG_SECONDS=1"]
        process = subprocess.Popen(
            [sys.executable, str(Path(folder) / ENTRY[0]), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": str(PROJECT)},
        )
        with process:
            try:
                return _seconds_to_end(process, number, settings.replay.buffer_size)
            except BaseException:
                process.kill()  # or leaving the block would wait for a run that does not end
                raise


def _seconds_to_end(process: "subprocess.Popen[str]", number: signal.Signals, buffer_size: int) -> float:
    assert process.stdout is not None
    for line in process.stdout:
        match = re.search(r"Processed: ([\d,]+)", line)
        if match and int(match[1].replace(",", "")) >= buffer_size:
            break
    children = _spawned(psutil.Process(process.pid))
    begun = time.perf_counter()
    process.send_signal(number)
    process.stdout.read()
    process.wait()
    psutil.wait_procs(children, timeout=30)
    return time.perf_counter() - begun


def _spawned(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children(recursive=True) if "spawn_main" in " ".join(child.cmdline())]
