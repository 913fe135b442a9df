"""Runs: a folder for each under `checkpoints/`, with a record of what was run, on what, and with which settings."""

import contextlib
import dataclasses
import datetime
import fcntl
import functools
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from mario_rl.emulation.rules import Level
from mario_rl.errors import shown
from mario_rl.machine.facts import describe_machine
from mario_rl.storage.checkpoints import CheckpointError
from mario_rl.storage.files import replace_durably

RECORD, LOCK, METRICS = "run.json", ".lock", "metrics.jsonl"
_claims: list[IO[str]] = []  # open as long as this process lives
_PACKAGES = ("torch", "numpy", "numba", "nes-py", "gym-super-mario-bros", "opencv-python", "safetensors", "zstandard")


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
    def tensorboard(self) -> Path:
        """Where TensorBoard's event files go."""
        return self.checkpoints / "tensorboard"

    @property
    def metrics(self) -> Path:
        """Where the same metrics go, one row a line, for `plot` and for scripts."""
        return self.checkpoints / METRICS


def new_run(project: Path, levels: Sequence[Level], wish: str | None = None) -> Run:
    """A run with a name of its own: as wished, or the levels and the time. This process claims it."""
    folder = project / "checkpoints"
    stem = wish or f"mario-{'+'.join(map(str, levels))}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    if wish is not None and (folder / wish).is_dir():
        run = Run(wish, folder / wish, project / "models")
        claim(run)
        if not (run.checkpoints / RECORD).exists():
            return run  # it was stopped in its search, before there was anything to go on with
        raise CheckpointError(f"There is a run {wish} already: go on with --resume {wish}, or choose another --name.")
    name, number = stem, 1
    while True:
        try:
            (folder / name).mkdir(parents=True)  # two runs may start in one second
            break
        except FileExistsError as error:
            if not folder.is_dir():
                raise _not_writable(folder, error) from None
            number += 1
            name = f"{stem}-{number}"
        except OSError as error:
            raise _not_writable(folder, error) from None
    run = Run(name, folder / name, project / "models")
    claim(run)
    return run


def claim(run: Run) -> None:
    """Two sessions must not write into one run's folder. The claim ends with the process, however that ends."""
    try:
        file = (run.checkpoints / LOCK).open("a")
        _claims.append(file)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CheckpointError(f"Run {run.name} is still being trained: stop it first, or start a new run.") from None
    except OSError as error:
        raise _not_writable(run.checkpoints, error) from None


def _not_writable(folder: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{folder} cannot be written ({error.strerror}): checkpoints must go there.")


def find_run(project: Path, name: str | None) -> Run:
    """The run to resume: by its name or its folder, or the one that was saved last."""
    nothing = "There is no run in checkpoints/ to resume: start one without --resume."
    return _find(project, name, "checkpoint-*", nothing)


def find_run_to_plot(project: Path, name: str | None) -> Run:
    """The run to plot: by its name or its folder, or the one that wrote metrics last, saved or not."""
    nothing = "There is no run in checkpoints/ to plot: start one, and wait for its first epoch."
    return _find(project, name, METRICS, nothing)


def _find(project: Path, name: str | None, written: str, nothing: str) -> Run:
    """A run by its name, or the one that wrote such files last; the message where there is none."""
    folder = project / "checkpoints"
    last_written = {record.parent.name: _last_written(record.parent, written) for record in folder.glob(f"*/{RECORD}")}
    if name is None:
        found = max(last_written, key=last_written.__getitem__, default=None)
        if found is None or not last_written[found]:
            raise CheckpointError(nothing)
        return Run(found, folder / found, project / "models")
    if not last_written:
        raise CheckpointError(nothing)
    found = _without_folder(project, name)
    if found not in last_written:
        names = ", ".join(sorted(last_written))
        raise CheckpointError(f"There is no run {shown(name)} in checkpoints/; there are: {names}.")
    return Run(found, folder / found, project / "models")


def _without_folder(project: Path, text: str) -> str:
    """The name in `checkpoints/NAME`, which is what a shell completes to; any other path stays one, and is no name."""
    path, folder = Path(text), project / "checkpoints"
    is_name = path.name == text.rstrip("/") or (project / path).parent == folder or path.absolute().parent == folder
    return path.name if is_name else text


def _last_written(folder: Path, pattern: str) -> float:
    times = [0.0]
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):  # a run that goes on may remove it at this moment
            if path.is_dir() or path.stat().st_size:  # an empty file tells nothing yet
                times.append(path.stat().st_mtime)
    return max(times)


def write_record(run: Run, settings: dict[str, Any], search: dict[str, Any] | None = None) -> None:
    """Keep what made this run, one entry a session; never the environment's variables.

    `search` tells what drawing its map took, in the session that drew it.
    """
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    session = {
        "command": command_line(),
        "commit": git_commit(),
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "packages": {package: _version(package) for package in _PACKAGES},
    }
    if search is not None:
        session["search"] = search
    earlier = _read_record(run)["sessions"] if (run.checkpoints / RECORD).exists() else []
    record = {"settings": settings, "sessions": [*earlier, session]}
    try:
        replace_durably(run.checkpoints / RECORD, (json.dumps(record, indent=2) + "\n").encode())
    except OSError as error:
        raise _not_writable(run.checkpoints, error) from None


def read_settings(run: Run) -> dict[str, Any]:
    """The settings a run was last started with."""
    settings: dict[str, Any] = _read_record(run)["settings"]
    return settings


def read_search(run: Run) -> dict[str, Any]:
    """What drawing the run's map took: decisions and minutes; nothing where it has none."""
    sessions = _read_record(run)["sessions"] if (run.checkpoints / RECORD).exists() else []
    found = [session["search"] for session in sessions if "search" in session]
    return found[0] if found else {"decisions": 0, "minutes": 0.0}


def read_machine(run: Run) -> dict[str, Any]:
    """Where the run was first started."""
    machine: dict[str, Any] = _read_record(run)["sessions"][0]["machine"]
    return machine


def _read_record(run: Run) -> dict[str, Any]:
    try:
        record = json.loads((run.checkpoints / RECORD).read_text())
        if isinstance(record["settings"], dict) and isinstance(record["sessions"], list):
            return {"settings": record["settings"], "sessions": record["sessions"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError):
        pass
    raise CheckpointError(
        f"{run.checkpoints / RECORD} cannot be read, so the run's settings are lost: start a new run."
    )


def command_line() -> list[str]:
    """How this process was started, without the machine's folders."""
    return ["python", Path(sys.argv[0]).name, *sys.argv[1:]]


@functools.cache
def git_commit() -> str:
    """The commit of this checkout, with "-dirty" behind it where files were changed; or "unknown"."""
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"],
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
