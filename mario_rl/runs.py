"""Runs: a folder for each under `checkpoints/`, with a record of what was run, on what, and with which settings."""

import dataclasses
import datetime
import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from mario_rl.checkpoints import CheckpointError
from mario_rl.config import Settings
from mario_rl.files import replace_durably
from mario_rl.hardware import describe_machine

RECORD = "run.json"
_PACKAGES = ("torch", "numpy", "nes-py", "gym-super-mario-bros", "opencv-python", "safetensors", "zstandard")


@dataclasses.dataclass(frozen=True)
class Run:
    """One training run and where its files are."""

    name: str
    checkpoints: Path  # checkpoints/<run>/
    models: Path  # models/, shared by all runs

    @property
    def newest_model(self) -> Path:
        """Where the newest policy is exported to."""
        return self.models / f"{self.name}-newest.safetensors"

    @property
    def best_model(self) -> Path:
        """Where the best policy is exported to."""
        return self.models / f"{self.name}-best.safetensors"

    @property
    def metrics(self) -> Path:
        """Where TensorBoard's event files go."""
        return self.checkpoints / "tensorboard"


def new_run(project: Path, settings: Settings) -> Run:
    """A run with a name of its own: the level and the time."""
    stem = f"mario-{settings.world}-{settings.stage}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    name, number = stem, 1
    while (project / "checkpoints" / name).exists():
        number += 1
        name = f"{stem}-{number}"
    return Run(name, project / "checkpoints" / name, project / "models")


def find_run(project: Path, name: str | None) -> Run:
    """A run by its name, or the one that was saved last."""
    folder = project / "checkpoints"
    names = {path.parent.name: path.parent.stat().st_mtime for path in folder.glob(f"*/{RECORD}")}
    if not names:
        raise CheckpointError("There is no run in checkpoints/ to resume: start one without --resume.")
    if name is None:
        name = max(names, key=names.__getitem__)
    if name not in names:
        raise CheckpointError(f"There is no run {name!r} in checkpoints/; there are: {', '.join(sorted(names))}.")
    return Run(name, folder / name, project / "models")


def write_record(run: Run, settings: Settings) -> None:
    """Keep what made this run; never the environment's variables."""
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    record = {
        "settings": {name.upper(): value for name, value in dataclasses.asdict(settings).items()},
        "command": ["python", Path(sys.argv[0]).name, *sys.argv[1:]],
        "commit": git_commit(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "packages": {package: _version(package) for package in _PACKAGES},
    }
    replace_durably(run.checkpoints / RECORD, (json.dumps(record, indent=2) + "\n").encode())


def read_settings(run: Run) -> dict[str, Any]:
    """The settings a run was started with."""
    try:
        settings = json.loads((run.checkpoints / RECORD).read_text())["settings"]
        if not isinstance(settings, dict):
            raise TypeError
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(
            f"{run.checkpoints / RECORD} cannot be read, so the run's settings are lost: start a new run."
        ) from None
    return settings


def git_commit() -> str:
    """The commit of this checkout, or "unknown"."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
