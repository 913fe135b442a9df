"""Runs small enough for tests: tiny networks, few emulators, everything else as a user has it."""

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from mario_rl.settings.choosing import choose_settings
from mario_rl.settings.config_file import read_config_module
from mario_rl.telemetry.console import Console

PROJECT = Path(__file__).parent.parent
SMALL = {
    "NETWORK_CHANNELS": (4, 8, 8),
    "HIDDEN_UNITS": 16,
    "BATCH_SIZE": 16,
    "TRAINING_STEPS_PER_SAMPLE": 2,
    "GRADIENT_ACCUMULATION_STEPS": 1,
    "NUM_PROCESSES": 2,
    "ENVS_PER_PROCESS": 2,
    "CHUNK_DECISIONS": 8,
    "REP_Q_SIZE": 256,
    "BUFFER_SIZE": 2_400,
    "WARMUP_EXPERIENCES": 100,
    "EXPERIENCE_BATCH_SIZE": 32,
    "REPLAY_RATIO": 1.0,
    "EPISODES_PER_EPOCH": 2,
    "MODEL_UPDATE_FREQUENCY": 1,
    "NO_PROGRESS_DECISIONS": 20,
    "TARGET_UPDATE_INTERVAL": 10,
    "PROCESSOR_LOG_SECONDS": 1.0,
    "EPSILON_DECAY_DECISIONS": 300,
    "PROGRESS": "x",  # no search before every test
    "EVALUATION_DECISIONS": 0,  # a further process that imports torch
    "LEARNER_THREADS": 1,  # two tests run at a time
}
started: "list[subprocess.Popen[str]]" = []  # by this test; conftest.py looks after what is left of them


class Lines(Console):
    """A console that remembers, and lets a test act on what it reads."""

    def __init__(self, on_line=lambda text: None):
        super().__init__()
        self.lines = []
        self._on_line = on_line

    def line(self, text):
        self.lines.append(text)
        self._on_line(text)


def small_settings(**changes):
    sys.path.insert(0, str(PROJECT))
    values, overrides = read_config_module(importlib.import_module("config_optimized"))
    return choose_settings(values, overrides, SMALL | changes, has_gpu=lambda: False).settings


def copy_project(folder: Path) -> Path:
    """The project as a user has it after a clone, with nothing in checkpoints/ and models/.

    The package itself is not copied but found (see `start`): each copy would compile the emulator anew, for 30 s.
    """
    for name in ("mario_rl_optimized.py", "config_optimized.py"):
        shutil.copy(PROJECT / name, folder / name)
    return folder


def command(project: Path, *arguments: str, **changes) -> list[str]:
    """A run of a copied project."""
    options = [f"--set={name}={value}" for name, value in (SMALL | changes).items()]
    return [sys.executable, str(project / "mario_rl_optimized.py"), *options, *arguments]


def start(
    arguments: list[str], stdout: Any = subprocess.PIPE, stderr: Any = subprocess.PIPE
) -> "subprocess.Popen[str]":
    """Start a run in a process group of its own, as a shell does."""
    process = subprocess.Popen(
        arguments,
        stdout=stdout,
        stderr=stderr,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
    )
    started.append(process)
    return process


def finish(process: "subprocess.Popen[str]", timeout_seconds: float = 90) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=timeout_seconds)
    return process.returncode, stdout, stderr


def run(arguments: list[str]) -> tuple[int, str, str]:
    return finish(start(arguments))


def only_run(project):
    (folder,) = (project / "checkpoints").iterdir()
    return folder


def saved_numbers(run_folder):
    return json.loads((max(run_folder.glob("checkpoint-*")) / "numbers.json").read_text())


def segments():
    """Named shared memory of this machine that stays: ours is unlinked within a moment, in other tests at this time."""
    looks = []
    for _ in range(2):
        looks.append({path.name for path in Path("/dev/shm").iterdir()})
        time.sleep(0.2)
    return set.intersection(*looks)


def wait_for(process, pattern):
    lines = []
    for line in process.stdout:
        lines.append(line)
        if re.search(pattern, line):
            return lines
    raise AssertionError(f"{pattern!r} never came:\n{''.join(lines)}\n{process.stderr.read()}")


def children_of(process):
    return psutil.Process(process.pid).children(recursive=True)


def collectors_of(process):
    return [child for child in children_of(process) if "spawn_main" in " ".join(child.cmdline())]


def alive(processes):
    """Those that still run after a moment. A zombie does not: the test machine's init may be slow to reap it."""
    psutil.wait_procs(processes, timeout=5)
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
