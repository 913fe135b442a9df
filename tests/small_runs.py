"""Runs small enough for tests: tiny networks, few emulators, everything else as a user has it."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from mario_rl.config import choose_settings, read_config_module
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
    "EVALUATION_DECISIONS": 0,  # a further process that imports torch
    "LEARNER_THREADS": 1,  # two tests run at a time
}


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
    """The project as a user has it after a clone, with nothing in checkpoints/ and models/."""
    for name in ("mario_rl_optimized.py", "config_optimized.py"):
        shutil.copy(PROJECT / name, folder / name)
    shutil.copytree(PROJECT / "mario_rl", folder / "mario_rl", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def command(project: Path, *arguments: str, **changes) -> list[str]:
    """A run of a copied project; with nes-py, because each copy would compile the fast emulator anew, for 30 s."""
    settings = SMALL | {"EMULATOR": "nes_py"} | changes
    options = [f"--set={name}={value}" for name, value in settings.items()]
    return [sys.executable, str(project / "mario_rl_optimized.py"), *options, *arguments]


def start(arguments: list[str]) -> "subprocess.Popen[str]":
    """Start a run in a process group of its own, as a shell does."""
    return subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )


def finish(process: "subprocess.Popen[str]", timeout_seconds: float = 90) -> tuple[int, str, str]:
    stdout, stderr = process.communicate(timeout=timeout_seconds)
    return process.returncode, stdout, stderr


def run(arguments: list[str]) -> tuple[int, str, str]:
    return finish(start(arguments))
