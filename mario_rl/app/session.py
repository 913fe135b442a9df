"""One session of training, from the user's wishes to the summary: check everything, print the plan, train, save.

Runs in the main thread of the learner process. Until everything is checked, nothing is started and nothing is written.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from mario_rl.app.plan import describe_plan
from mario_rl.app.resuming import choose_as_saved, load_checkpoint, restore, typed
from mario_rl.app.signals import StopSignals
from mario_rl.app.wiring import connect
from mario_rl.emulation.choosing import advise_more_collectors, check_rom, choose_emulator
from mario_rl.errors import UserError
from mario_rl.machine.facts import has_gpu, num_cores
from mario_rl.settings import hardware
from mario_rl.settings.choosing import ChosenSettings, SettingsError, choose_settings
from mario_rl.settings.config_file import load_config_file
from mario_rl.settings.settings import Settings
from mario_rl.storage import runs
from mario_rl.storage.checkpoints import CheckpointStore, check_disk
from mario_rl.storage.policies import load_policy
from mario_rl.telemetry.console import Console
from mario_rl.telemetry.metrics import ForgivingSink, JsonLinesSink, TensorBoardSink
from mario_rl.training.limits import LimitRules, Limits
from mario_rl.training.loop import Outcome, train
from mario_rl.training.saving import bytes_needed

if TYPE_CHECKING:
    from mario_rl.searching.maps import Maps

Result = TypeVar("Result")


class Wishes(NamedTuple):
    """What the command line asks for."""

    assigned: dict[str, Any]  # --set and its shortcuts
    epochs: int | None
    decisions: int | None
    minutes: float | None
    until_learned: bool  # end when the level is learned, also where there is a limit
    name: str | None  # of a new run; None: its levels and the time
    resume: bool
    resume_name: str | None  # None: the run that was saved last
    from_best: bool  # resume from the checkpoint that followed the best evaluation
    init: Path | None
    serial: bool
    faults: list[str]  # what is wrong with the command line itself


def run_session(project: Path, wishes: Wishes, stop: StopSignals) -> int:
    """Train. The exit code."""
    resumed, chosen = _choose(project, wishes)
    settings = chosen.settings
    limits = _limits(wishes, settings.limits)
    shape, play = settings.network_shape, settings.play
    checks = _Checks()
    checkpoint = checks.run(lambda: load_checkpoint(resumed, wishes.from_best, settings, limits) if resumed else None)
    weights = checks.run(lambda: load_policy(wishes.init, shape, play.actions) if wishes.init else None)
    plan = checks.run(lambda: hardware.make_plan(settings, serial=wishes.serial))
    checks.run(lambda: check_rom(play.emulator))
    needed = bytes_needed(settings.saving, shape, settings.replay.buffer_size)
    checks.run(lambda: check_disk(project / "checkpoints", needed))
    if wishes.serial and not settings.flow.replay_ratio:
        checks.faults.append("--serial needs REPLAY_RATIO above 0: it decides when to play and when to train.")
    checks.finish()
    console = Console()
    emulator = choose_emulator(play.emulator, console.line)
    if emulator != play.emulator:
        settings = settings.changed(EMULATOR=emulator)
        chosen = replace(chosen, settings=settings)
        plan = hardware.make_plan(settings, serial=wishes.serial)
    if emulator == "nes_py" and settings.task.progress == "map" and not resumed:
        console.line('PROGRESS = "map" needs the fast emulator, which saves games for the search: using "x" instead.')
        settings = settings.changed(PROGRESS="x")
        chosen = replace(chosen, settings=settings)
    if emulator == "nes_py" and not wishes.serial and chosen.sources["NUM_PROCESSES"] in ("config", "cpu"):
        advice = advise_more_collectors(settings.collecting.num_processes, num_cores())
        if advice is not None:
            console.line(advice)
    assert plan is not None
    hardware.prepare(plan)

    run = resumed or runs.new_run(project, settings.task.levels_played, wishes.name)
    console.line(describe_plan(plan, chosen, run.name, serial=wishes.serial))
    sinks = [
        ForgivingSink(lambda: TensorBoardSink(run.tensorboard), "TensorBoard's files", console.line),
        ForgivingSink(lambda: JsonLinesSink(run.metrics), run.metrics.name, console.line),
    ]
    maps = None
    if settings.task.progress == "map" and checkpoint is None:
        if weights is not None:  # whose actions are what they are
            settings = settings.changed(FALLBACK_ACTIONS=play.actions)
        maps = _draw_maps(settings, console)
        settings = _as_found(settings, maps, console)
    pipeline = connect(
        settings,
        plan,
        console,
        sinks,
        None if maps is None else maps.graph,
        serial=wishes.serial,
        ends_when_learned=limits.stopping_rule is not None,
    )
    missing = restore(pipeline.saver, checkpoint) if checkpoint is not None else []
    if weights is not None:
        pipeline.learner.networks.load_policy(weights)
    stop.begin(pipeline.source.request_stop, pipeline.kill)
    search = None if maps is None else {"decisions": maps.decisions, "minutes": round(maps.seconds / 60, 2)}
    runs.write_record(run, settings.flat(), search)
    for sink in sinks:
        sink.open()
    store = CheckpointStore(run.checkpoints, settings.saving.keep_checkpoints)
    with console:
        for sentence in missing:
            console.line(f"Resumed: {sentence}.")
        try:
            outcome = train(pipeline, settings.schedule, limits, run, store)
        finally:
            pipeline.kill()  # no process is left after a normal end; after an error none must be
            pipeline.reporter.close()
    console.line(_summary(outcome, run, settings.limits.max_epochs))
    if outcome.failure is not None:
        print(f"error: {outcome.failure}", file=sys.stderr)
        return 1
    return stop.exit_code


def _draw_maps(settings: Settings, console: Console) -> "Maps":
    """Search the levels before training, on all cores."""
    from mario_rl.searching.maps import draw_maps  # compiled code is loaded

    num_starts = settings.task.noop_start_max_frames + 1
    levels = settings.task.levels_played
    rules = settings.search
    return draw_maps(settings.play, rules, levels, settings.run.seed, num_starts, num_cores(), console.line)


def _as_found(settings: Settings, maps: "Maps", console: Console) -> Settings:
    """What follows from the search: actions with which the flag can be reached, and no map where none was found."""
    if maps.without_flag:
        levels = " and ".join(map(str, maps.without_flag))
        console.line(
            f'[SEARCH] No way to the flag of {levels} was found, so this run trains with PROGRESS = "x". '
            "More SEARCH_MINUTES may find one."
        )
        return settings.changed(PROGRESS="x")
    if maps.actions != settings.play.actions:
        console.line(f"[SEARCH] The flag needs more buttons: this run plays with {maps.actions} actions.")
    return settings.changed(ACTIONS=maps.actions)


def _limits(wishes: Wishes, rules: LimitRules) -> Limits:
    """A run that was told when to end does so; one that was not ends when it can play."""
    is_told = any(limit is not None for limit in (wishes.epochs, wishes.decisions, wishes.minutes))
    stopping_rule = rules if wishes.until_learned or not is_told else None
    return Limits(wishes.epochs or rules.max_epochs, wishes.decisions, wishes.minutes, stopping_rule)


def _choose(project: Path, wishes: Wishes) -> tuple[runs.Run | None, ChosenSettings]:
    """The run to resume, if any, and the settings; or every fault of command line and settings in one message."""
    faults = list(wishes.faults)
    resumed = None
    try:
        if wishes.resume:
            resumed = runs.find_run(project, wishes.resume_name)
            runs.claim(resumed)
            chosen = choose_as_saved(resumed, wishes.assigned, lambda: load_config_file(project))
        else:
            values, overrides = load_config_file(project)
            chosen = choose_settings(values, overrides, wishes.assigned, has_gpu=has_gpu)
    except UserError as error:
        faults += str(error).split("\n")
    if faults:
        raise SettingsError(faults)
    return resumed, chosen


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


def _summary(outcome: Outcome, run: runs.Run, max_epochs: int) -> str:
    more = f" --epochs {outcome.epochs + 500}" if outcome.epochs >= max_epochs else ""
    best = f" (best: {typed(run.best_model)})" if run.best_model.exists() else ""
    restarts = (
        f"Collectors were started again {outcome.num_restarts:,} times; {outcome.num_lost:,} decisions were lost.\n"
        if outcome.num_restarts
        else ""
    )
    return (
        f"Done: {outcome.reason}. {outcome.decisions:,} decisions and {outcome.epochs:,} epochs "
        f"in {outcome.minutes:.1f} minutes; best distance {outcome.best_distance:,}.\n"
        f"{restarts}Model: {typed(run.newest_model)}{best}\n"
        f"Go on with: python mario_rl_optimized.py --resume {run.name}{more}"
    )
