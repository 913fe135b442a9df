"""The command line: options, the plan, and how a run ends. Runs in the main thread of the learner process.

Exit codes: 0 the run ended by itself; 1 something failed; 2 the user's input is wrong and nothing was started;
128 + n a signal ended it, after everything was saved.
"""

import argparse
import importlib
import logging
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mario_rl.config import SettingsError, choose_settings, parse_assignments, read_config_module
from mario_rl.stop_signals import StopSignals

if TYPE_CHECKING:
    from mario_rl.network import NetworkShape
    from mario_rl.runs import Run
    from mario_rl.training import Limits, Outcome

PROJECT = Path(__file__).resolve().parent.parent
USER_ERROR = 2


def main(arguments: list[str] | None = None) -> int:
    """Train. The exit code."""
    stop = StopSignals()
    stop.install()
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    options = _parse(arguments)
    try:
        return _train(options, stop)
    except _user_errors() as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return USER_ERROR


def _user_errors() -> tuple[type[Exception], ...]:
    from mario_rl.checkpoints import CheckpointError
    from mario_rl.emulation.nes_py import RomMissingError
    from mario_rl.hardware import HardwareError
    from mario_rl.policies import PolicyError

    return SettingsError, HardwareError, CheckpointError, PolicyError, RomMissingError


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


def _train(options: argparse.Namespace, stop: StopSignals) -> int:
    # Faulty settings are answered before torch is imported, which takes seconds.
    limits_given = _limits(options)
    assigned = _assignments(options)
    base, overrides = ({}, {}) if options.resume is not None else _config_file()

    from mario_rl import hardware, runs
    from mario_rl.checkpoints import CheckpointStore
    from mario_rl.emulation.nes_py import find_rom
    from mario_rl.environment.actions import ACTION_SETS
    from mario_rl.network import NetworkShape
    from mario_rl.pipeline import connect
    from mario_rl.plan import describe_plan
    from mario_rl.policies import load_policy
    from mario_rl.reporting import Reporter
    from mario_rl.telemetry.console import Console
    from mario_rl.telemetry.metrics import TensorBoardSink
    from mario_rl.training import Limits, train

    resumed = None if options.resume is None else runs.find_run(PROJECT, options.resume or None)
    if resumed is None:
        chosen = choose_settings(base, overrides, assigned, has_gpu=hardware.has_gpu)
    else:
        saved = runs.read_settings(resumed)
        chosen = choose_settings(saved, {}, assigned, has_gpu=hardware.has_gpu, base_source="run")
    settings = chosen.settings
    find_rom()
    hardware.keep_freed_memory()
    plan = hardware.make_plan(settings, serial=options.serial)
    run = resumed or runs.new_run(PROJECT, settings)
    store = CheckpointStore(run.checkpoints, settings.keep_checkpoints)
    checkpoint = store.load_newest() if resumed else None
    shape = NetworkShape(settings.network_channels, settings.hidden_units, len(ACTION_SETS[settings.actions]))
    if checkpoint is not None:
        _check_same_network(shape, checkpoint.numbers["network_shape"])
    weights = load_policy(Path(options.init), shape, settings.actions) if options.init else None
    limits = Limits(
        int(limits_given.get("epochs", settings.max_epochs)), limits_given.get("decisions"), limits_given.get("minutes")
    )
    if checkpoint is not None:
        _check_not_finished(run.name, limits, checkpoint.numbers)

    print(describe_plan(plan, chosen, run.name, serial=options.serial), flush=True)
    console = Console()
    pipeline = connect(settings, plan, console, serial=options.serial)
    restored = pipeline.restore(checkpoint) if checkpoint is not None else []
    if weights is not None:
        pipeline.learner.load_policy(weights)
    stop.begin(pipeline.source.request_stop, pipeline.source.kill)
    runs.write_record(run, settings)
    reporter = Reporter(console, TensorBoardSink(run.metrics))
    with console:
        for line in restored:
            console.line(f"Resumed: {line}.")
        try:
            outcome = train(pipeline, limits, run, store, reporter)
        finally:
            pipeline.source.kill()  # nobody is left after a normal end; after an error nobody must be
            reporter.close()
    print(_summary(outcome, run))
    if outcome.failure is not None:
        print(f"error: {outcome.failure}", file=sys.stderr)
        return 1
    return stop.exit_code


def _limits(options: argparse.Namespace) -> dict[str, Any]:
    limits: dict[str, Any] = {}
    faults = []
    for name, kind, words in (
        ("epochs", int, "a whole number"),
        ("decisions", int, "a whole number"),
        ("minutes", float, "a number"),
    ):
        text = getattr(options, name)
        if text is None:
            continue
        try:
            value = kind(text)
            if not 0 < value < 10**12:
                raise ValueError
            limits[name] = value
        except ValueError:
            faults.append(f"--{name} {text}: must be {words} above 0.")
    if options.init and options.resume is not None:
        faults.append("--init and --resume exclude each other: a resumed run already has its weights.")
    if faults:
        raise SettingsError(faults)
    return limits


def _assignments(options: argparse.Namespace) -> dict[str, Any]:
    shortcuts = {"SEED": options.seed, "WORLD": options.world, "STAGE": options.stage}
    given = [f"{name}={value}" for name, value in shortcuts.items() if value is not None]
    return parse_assignments(options.assignments + given)


def _config_file() -> tuple[dict[str, Any], dict[str, Any]]:
    sys.path.insert(0, str(PROJECT))
    try:
        module = importlib.import_module("config_optimized")
    except SyntaxError as error:
        raise SettingsError([f"config_optimized.py, line {error.lineno}: {error.msg}."]) from None
    except ImportError as error:
        raise SettingsError(
            [f"config_optimized.py cannot be imported ({error}): restore it from the repository."]
        ) from None
    except Exception as error:  # whatever a user's edit may raise
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        raise SettingsError([f"config_optimized.py, line {line}: {type(error).__name__}: {error}."]) from None
    return read_config_module(module)


def _check_same_network(shape: "NetworkShape", saved: dict[str, Any]) -> None:
    mine = {name: list(value) if isinstance(value, tuple) else value for name, value in shape._asdict().items()}
    if mine != saved:
        raise SettingsError(
            [
                f"The run's network has {saved}, the settings ask for {mine}: "
                "a resumed run keeps NETWORK_CHANNELS, HIDDEN_UNITS and ACTIONS; start a new run to change them."
            ]
        )


def _check_not_finished(name: str, limits: "Limits", numbers: dict[str, Any]) -> None:
    reached = limits.reached(numbers["progress"]["epoch"], numbers["ledger"]["collected"], 0.0)
    if reached:
        more = numbers["progress"]["epoch"] + 500
        raise SettingsError([f"Run {name} is finished: {reached}. Extend it, for example with --epochs {more}."])


def _summary(outcome: "Outcome", run: "Run") -> str:
    best = f" (best: {_shown(run.best_model)})" if run.best_model.exists() else ""
    return (
        f"Done: {outcome.reason}. {outcome.decisions:,} decisions and {outcome.epochs:,} epochs "
        f"in {outcome.minutes:.1f} minutes; best distance {outcome.best_distance:,}.\n"
        f"Model: {_shown(run.newest_model)}{best}\n"
        f"Go on with: python mario_rl_optimized.py --resume {run.name}"
    )


def _shown(path: Path) -> str:
    """A path as the user would type it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
