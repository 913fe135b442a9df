"""The command line: options, and how faults are told. Imports nothing heavy until it knows what is wanted.

Exit codes: 0 the run ended by itself; 1 something failed; 2 the user's input is wrong and nothing was started;
128 + n a signal ended it, after everything was saved.
"""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from mario_rl.config import parse_assignments, shown
from mario_rl.errors import UserError
from mario_rl.stop_signals import StopSignals

PROJECT = Path(__file__).resolve().parent.parent
USER_ERROR = 2


def main(stop: StopSignals, arguments: list[str] | None = None) -> int:
    """Train. The exit code. `stop` is installed already."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    options = _parse(arguments)
    try:
        from mario_rl.session import run_session

        return run_session(PROJECT, _wishes(options), stop)
    except UserError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mario_rl"):
            raise
        print(f"error: {error.name} is not installed: run `pip install -r requirements.txt`.", file=sys.stderr)
    return USER_ERROR


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="mario_rl_optimized.py",
        description="Train an agent to play Super Mario Bros. Without options: level 1-1 with config_optimized.py.",
        epilog="Settings and their reasons are in config_optimized.py; --set wins over it. "
        "Ctrl-C saves and stops; --resume goes on.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        dest="assignments",
        help="change a setting (repeatable)",
    )
    parser.add_argument("--epochs", metavar="N", help="end when the run has N epochs (default: MAX_EPOCHS)")
    parser.add_argument("--minutes", metavar="M", help="end after M minutes of this session")
    parser.add_argument("--decisions", metavar="N", help="end when the run has N decisions")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="go on with a run of checkpoints/ (default: the last one) with its settings; also extends a finished run",
    )
    parser.add_argument("--init", metavar="MODEL", help="start from the weights of an exported model (.safetensors)")
    parser.add_argument("--seed", metavar="N", help="the same as --set SEED=N")
    parser.add_argument("--world", metavar="W", help="1 to 8, the same as --set WORLD=W")
    parser.add_argument("--stage", metavar="S", help="1 to 4, the same as --set STAGE=S")
    parser.add_argument(
        "--serial", action="store_true", help="the same parts in one process, one collector, deterministic; slower"
    )
    return parser.parse_args(arguments)


def _wishes(options: argparse.Namespace) -> Any:
    from mario_rl.session import Wishes

    shortcuts = {"SEED": options.seed, "WORLD": options.world, "STAGE": options.stage}
    given = [f"{name}={value}" for name, value in shortcuts.items() if value is not None]
    assigned, faults = parse_assignments(options.assignments + given)
    if options.init and options.resume is not None:
        faults.append("--init and --resume exclude each other: a resumed run already has its weights.")
    return Wishes(
        assigned=assigned,
        epochs=_positive(options, "epochs", int, faults),
        decisions=_positive(options, "decisions", int, faults),
        minutes=_positive(options, "minutes", float, faults),
        resume=options.resume is not None,
        resume_name=options.resume or None,
        init=Path(options.init) if options.init else None,
        serial=options.serial,
        faults=faults,
    )


def _positive(options: argparse.Namespace, name: str, kind: type[int] | type[float], faults: list[str]) -> Any:
    """A limit, or None where none was given; what is wrong with it goes to `faults`."""
    text = getattr(options, name)
    if text is None:
        return None
    try:
        value = kind(text)
        if 0 < value < 10**12:
            return value
    except ValueError:
        pass
    faults.append(f"--{name} {shown(text)[1:-1]}: must be a {'whole ' if kind is int else ''}number above 0.")
    return None
