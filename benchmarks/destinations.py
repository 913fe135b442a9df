"""Where results go: whether the files that the user has named can be written, found out before anything is measured."""

import tempfile
from pathlib import Path

from benchmarks.results import ForeignFileError, read_results
from mario_rl.errors import UserError, shown


def check_json(path: Path) -> None:
    """UserError unless a file can be put there, and what is there by now is ours: it will be added to."""
    try:
        if path.is_dir():
            raise _refusal("--json", path, "this is a folder; name a file")
        if path.exists() and not path.is_file():
            raise _refusal("--json", path, "this is no ordinary file; name another")
        if not path.parent.is_dir():
            raise _refusal("--json", path, "its folder does not exist; make it first")
        if path.exists():
            read_results(path)
        # A new result replaces the file through one with a longer name beside it.
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.saving"):
            pass
    except ForeignFileError:
        raise _refusal("--json", path, "this is not a results file of this script; name another") from None
    except (OSError, ValueError) as error:  # too long, forbidden, read-only, not a name at all
        raise _refusal("--json", path, f"it cannot be written ({_reason(error)}); name another file") from None


def check_plots(folder: Path) -> None:
    """UserError unless charts can be drawn there; the folder is made where there is none."""
    try:
        if folder.exists() and not folder.is_dir():
            raise _refusal("--plots", folder, "this is a file; name a folder")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        raise _refusal("--plots", folder, f"it cannot be written to ({_reason(error)}); name another folder") from None


def _refusal(option: str, path: Path, fault: str) -> UserError:
    return UserError(f"{option} {shown(str(path))[1:-1]}: {fault}.")


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
