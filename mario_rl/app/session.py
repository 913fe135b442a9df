"""One session of training, from the user's wishes to the summary: check everything, print the plan, train, save.

Runs in the main thread of the learner process. Until everything is checked, nothing is started and nothing is written.
"""

import importlib
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mario_rl.agent.network import NetworkShape
from mario_rl.app.plan import describe_plan
from mario_rl.app.signals import StopSignals
from mario_rl.app.wiring import Pipeline, connect, network_shape
from mario_rl.emulation.choosing import advise_more_collectors, check_rom, choose_emulator
from mario_rl.errors import UserError
from mario_rl.settings import hardware
from mario_rl.settings.schema import ChosenSettings, Settings, SettingsError, choose_settings, read_config_module, shown
from mario_rl.storage import runs
from mario_rl.storage.checkpoints import Checkpoint, CheckpointError, CheckpointStore, check_disk
from mario_rl.storage.checks import check_like
from mario_rl.storage.policies import load_policy
from mario_rl.telemetry.console import Console
from mario_rl.telemetry.metrics import ForgivingSink, JsonLinesSink, MetricSink, TensorBoardSink
from mario_rl.training.loop import Goal, Limits, Outcome, train
from mario_rl.training.reporting import Reporter

Result = TypeVar("Result")
LEVEL_SETTINGS = ("WORLD", "STAGE", "LEVELS")
# What a checkpoint of strange content may raise on its way into the parts of a pipeline.
_UNFIT = (LookupError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError, MemoryError)


class Wishes(NamedTuple):
    """What the command line asks for."""

    assigned: dict[str, Any]  # --set and its shortcuts
    epochs: int | None
    decisions: int | None
    minutes: float | None
    resume: bool
    resume_name: str | None  # None: the run that was saved last
    from_best: bool  # resume from the checkpoint that followed the best test
    init: Path | None
    serial: bool
    faults: list[str]  # what is wrong with the command line itself


def run_session(project: Path, wishes: Wishes, stop: StopSignals) -> int:
    """Train. The exit code."""
    resumed, chosen = _choose(project, wishes)
    settings = chosen.settings
    limits = _limits(wishes, settings)
    shape = network_shape(settings)
    checks = _Checks()
    checkpoint = checks.run(lambda: _load_checkpoint(resumed, wishes.from_best, settings, shape, limits))
    weights = checks.run(lambda: load_policy(wishes.init, shape, settings.actions) if wishes.init else None)
    plan = checks.run(lambda: hardware.make_plan(settings, serial=wishes.serial))
    checks.run(lambda: check_rom(settings.emulator))
    checks.run(lambda: check_disk(project / "checkpoints", settings, shape))
    if wishes.serial and not settings.replay_ratio:
        checks.faults.append("--serial needs REPLAY_RATIO above 0: it decides when to play and when to train.")
    checks.finish()
    console = Console()
    emulator = choose_emulator(settings.emulator, console.line)
    if emulator != settings.emulator:
        settings = replace(settings, emulator=emulator)
        chosen = replace(chosen, settings=settings)
        plan = hardware.make_plan(settings, serial=wishes.serial)
    if emulator == "nes_py" and not wishes.serial and chosen.sources["NUM_PROCESSES"] in ("config", "cpu"):
        advice = advise_more_collectors(settings.num_processes, hardware.num_cores())
        if advice is not None:
            console.line(advice)
    assert plan is not None
    hardware.prepare(plan)

    run = resumed or runs.new_run(project, settings)
    console.line(describe_plan(plan, chosen, run.name, serial=wishes.serial))
    pipeline = connect(settings, plan, console, serial=wishes.serial)
    missing = _restore(pipeline, checkpoint) if checkpoint is not None else []
    if weights is not None:
        pipeline.learner.load_policy(weights)
    stop.begin(pipeline.source.request_stop, pipeline.kill)
    runs.write_record(run, settings)
    store = CheckpointStore(run.checkpoints, settings.keep_checkpoints)
    sinks: list[MetricSink] = [
        ForgivingSink(lambda: TensorBoardSink(run.tensorboard), "TensorBoard's files", console.line),
        ForgivingSink(lambda: JsonLinesSink(run.metrics), run.metrics.name, console.line),
    ]
    reporter = Reporter(console, sinks)
    with console:
        for sentence in missing:
            console.line(f"Resumed: {sentence}.")
        try:
            outcome = train(pipeline, limits, run, store, reporter)
        finally:
            pipeline.kill()  # nobody is left after a normal end; after an error nobody must be
            reporter.close()
    console.line(_summary(outcome, run, settings.max_epochs))
    if outcome.failure is not None:
        print(f"error: {outcome.failure}", file=sys.stderr)
        return 1
    return stop.exit_code


def _limits(wishes: Wishes, settings: Settings) -> Limits:
    """A run that was told when to end does so; one that was not ends when it can play."""
    is_told = any(limit is not None for limit in (wishes.epochs, wishes.decisions, wishes.minutes))
    goal = None if is_told else Goal(settings.stop_at_clear_rate, settings.stop_at_sticky_clear_rate)
    return Limits(wishes.epochs or settings.max_epochs, wishes.decisions, wishes.minutes, goal)


def load_config_file(project: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings in config_optimized.py, and its CPU_OVERRIDES."""
    if str(project) not in sys.path:
        sys.path.insert(0, str(project))
    try:
        module = importlib.import_module("config_optimized")
    except ModuleNotFoundError as error:
        if error.name == "config_optimized":
            raise SettingsError(["config_optimized.py is missing: restore it from the repository."]) from None
        raise SettingsError(
            [f"config_optimized.py cannot be imported ({error}): install it or remove the line."]
        ) from None
    except SyntaxError as error:
        raise SettingsError([f"config_optimized.py, line {error.lineno}: {error.msg}."]) from None
    except Exception as error:  # whatever a user's edit may raise
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if "config_opt" in frame.filename]
        where = f", line {lines[-1]}" if lines else ""
        raise SettingsError([f"config_optimized.py{where}: {type(error).__name__}: {error}."]) from None
    return read_config_module(module)


def _choose(project: Path, wishes: Wishes) -> tuple[runs.Run | None, ChosenSettings]:
    """The run to resume, if any, and the settings; or every fault of command line and settings in one message."""
    faults = list(wishes.faults)
    resumed = None
    try:
        if wishes.resume:
            resumed = runs.find_run(project, wishes.resume_name)
            runs.claim(resumed)
            chosen = _choose_as_saved(resumed, wishes)
        else:
            values, overrides = load_config_file(project)
            chosen = choose_settings(values, overrides, wishes.assigned, has_gpu=hardware.has_gpu)
    except UserError as error:
        faults += str(error).split("\n")
    if faults:
        raise SettingsError(faults)
    return resumed, chosen


def _choose_as_saved(resumed: runs.Run, wishes: Wishes) -> ChosenSettings:
    """The run's settings with what the command line changes, which must not be its level."""
    saved = runs.read_settings(resumed)

    def choose(assigned: dict[str, Any]) -> ChosenSettings:
        gpu = hardware.has_gpu
        return choose_settings(saved, {}, assigned, has_gpu=gpu, base_source="run")

    chosen = choose(wishes.assigned)
    new = chosen.settings
    old = choose({name: value for name, value in wishes.assigned.items() if name not in LEVEL_SETTINGS}).settings
    if (new.world, new.stage, new.levels_played) == (old.world, old.stage, old.levels_played):
        return chosen
    asks_for_levels = new.levels and new.levels != old.levels
    wish = f'--set "LEVELS={list(new.levels)}"' if asks_for_levels else f"--world {new.world} --stage {new.stage}"
    models = [path for path in (resumed.best_model, resumed.newest_model) if path.exists()]
    init = f"--init {_shown(models[0])} " if models else ""
    played = " and ".join(map(str, old.levels_played))
    raise SettingsError(
        [
            f"Run {resumed.name} plays {played}, and its replay, tests and best model are of that: to play something "
            f"else, start a new run, for example with {init}{wish}."
        ]
    )


class _Checks:
    """Runs everything that may refuse the user's wishes, and reports all refusals in one message."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def run(self, check: Callable[[], Result]) -> Result | None:
        """What the check returns, or None when it refuses."""
        try:
            return check()
        except UserError as error:
            self.faults += str(error).split("\n")
            return None

    def finish(self) -> None:
        """Raise what was found."""
        if self.faults:
            raise SettingsError(self.faults)


def _load_checkpoint(
    resumed: runs.Run | None, from_best: bool, settings: Settings, shape: NetworkShape, limits: Limits
) -> Checkpoint | None:
    if resumed is None:
        return None
    store = CheckpointStore(resumed.checkpoints, settings.keep_checkpoints)
    checkpoint = store.load_best() if from_best else store.load_newest()
    try:
        saved = checkpoint.numbers["network_shape"]
        epoch, collected = checkpoint.numbers["progress"]["epoch"], checkpoint.numbers["ledger"]["collected"]
        reached = limits.reached(epoch, collected, 0.0)
        mine = {name: list(value) if isinstance(value, tuple) else value for name, value in shape._asdict().items()}
        if mine != saved:
            check_like(saved, mine, "network_shape")
            raise CheckpointError(
                f"The run's network has {saved}, the settings ask for {mine}: a resumed run keeps NETWORK_CHANNELS, "
                "HIDDEN_UNITS, VALUE_HEAD, VALUE_BINS, ACTIONS and what the range of values follows from "
                "(GAMMA, REWARD_SCALE, FLAG_BONUS, FRAME_SKIP); start a new run to change them."
            )
    except _UNFIT as error:
        raise _does_not_fit(checkpoint, error) from None
    if reached:
        raise CheckpointError(
            f"Run {resumed.name} is finished: {reached}. Extend it, for example with --epochs {epoch + 500}."
        )
    return checkpoint


def _restore(pipeline: Pipeline, checkpoint: Checkpoint) -> list[str]:
    try:
        return pipeline.restore(checkpoint)
    except _UNFIT as error:
        raise _does_not_fit(checkpoint, error) from None


def _does_not_fit(checkpoint: Checkpoint, error: Exception) -> CheckpointError:
    """Whole by its hashes, and yet not what this version writes."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return CheckpointError(
        f"{_shown(checkpoint.folder)} holds something else than this version expects ({shown(reason)[1:-1]}): "
        "start a new run without --resume."
    )


def _summary(outcome: Outcome, run: runs.Run, max_epochs: int) -> str:
    more = f" --epochs {outcome.epochs + 500}" if outcome.epochs >= max_epochs else ""
    best = f" (best: {_shown(run.best_model)})" if run.best_model.exists() else ""
    restarts = (
        f"Collectors were started again {outcome.num_restarts:,} times; {outcome.num_lost:,} decisions were lost.\n"
        if outcome.num_restarts
        else ""
    )
    return (
        f"Done: {outcome.reason}. {outcome.decisions:,} decisions and {outcome.epochs:,} epochs "
        f"in {outcome.minutes:.1f} minutes; best distance {outcome.best_distance:,}.\n"
        f"{restarts}Model: {_shown(run.newest_model)}{best}\n"
        f"Go on with: python mario_rl_optimized.py --resume {run.name}{more}"
    )


def _shown(path: Path) -> str:
    """A path as the user would type it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
