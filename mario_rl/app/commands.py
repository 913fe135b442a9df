"""The commands beside training: `evaluate`, `record`, `plot` and `search`. Each returns an exit code."""

import errno
import json
import os
import secrets
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console as RichConsole
from rich.table import Table

from mario_rl.emulation.choosing import check_rom, choose_emulator
from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ActionSet
from mario_rl.environment.task import PlayRules
from mario_rl.errors import UserError
from mario_rl.evaluation.episodes import NO_PROGRESS_DECISIONS, Sticky
from mario_rl.evaluation.films import check_film
from mario_rl.evaluation.recording import record, record_buttons
from mario_rl.evaluation.thorough import STICKIES, Trial, try_thoroughly
from mario_rl.machine.child_processes import use_one_thread
from mario_rl.machine.facts import num_cores
from mario_rl.settings.choosing import choose_settings
from mario_rl.settings.config_file import load_config_file
from mario_rl.storage import runs
from mario_rl.storage.files import replace_durably
from mario_rl.storage.policies import Policy, read_policy
from mario_rl.telemetry.console import Console
from mario_rl.telemetry.plots import plot, read_curve


class EvaluateWishes(NamedTuple):
    """What the command line asks `evaluate` for."""

    model: Path
    level: Level | None  # None: those the model was trained on
    sticky_episodes: int
    sticky: float | None  # None: all that results are reported with
    seed: int | None  # None: a new one
    json: Path | None


def run_evaluate(wishes: EvaluateWishes) -> int:
    """Evaluate a model, print a table, and write JSON where asked to."""
    policy = read_policy(wishes.model)
    if wishes.json is not None:
        _check_writable(wishes.json)  # all episodes take a minute
    seed = secrets.randbits(32) if wishes.seed is None else wishes.seed
    levels = policy.levels if wishes.level is None else (wishes.level,)
    rules = play_rules(policy)
    sticky = STICKIES if wishes.sticky is None else (Sticky(wishes.sticky),)
    network = policy.network()
    trials = {level: try_thoroughly(network, rules, level, seed, wishes.sticky_episodes, sticky) for level in levels}
    for level, found in trials.items():
        RichConsole().print(_table(wishes.model.name, level, found, seed))
    if wishes.json is not None:
        _write(wishes.json, json.dumps(_as_json(wishes, trials, seed), indent=2) + "\n")
    return 0


def _check_writable(file: Path) -> None:
    """A sentence where `_write` could not do its work later."""
    try:
        if file.is_dir():
            raise UserError(f"{file} is a folder: give --json the name of a file.")
        if not file.parent.is_dir():
            raise UserError(f"There is no folder {file.parent} for {file.name}: create it, or choose another --json.")
        if not _is_replaced(file):
            if not os.access(file, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        trial = file.with_name(f".{file.name}.saving")  # what replace_durably writes to
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise _not_written(file, error) from None


def _write(file: Path, text: str) -> None:
    try:
        if _is_replaced(file):
            replace_durably(file, text.encode())
        else:
            file.write_text(text)
    except OSError as error:
        raise _not_written(file, error) from None


def _is_replaced(file: Path) -> bool:
    """Links, pipes and devices, as /dev/stdout, are written to; only a plain file may give its place to another."""
    return not file.is_symlink() and (file.is_file() or not file.exists())


def _not_written(file: Path, error: OSError) -> UserError:
    return UserError(f"{file} cannot be written ({error.strerror}): choose another --json file.")


class RecordWishes(NamedTuple):
    """What the command line asks `record` for."""

    model: Path
    level: Level | None
    out: Path
    idle_frames: int


def run_record(wishes: RecordWishes) -> int:
    """Film one greedy episode."""
    policy = read_policy(wishes.model)
    level = wishes.level or policy.levels[0]
    rules = play_rules(policy)
    if rules.emulator != "fast":
        raise UserError("record needs the fast emulator: pip install -r requirements.txt")
    film = record(policy.network(), rules, level, wishes.out, idle_frames=wishes.idle_frames)
    ending = "cleared the level" if film.cleared else f"got to {film.distance:,} px"
    Console().line(f"{_printable(wishes.out)}: {ending} in {film.decisions:,} decisions; {film.frames:,} frames.")
    return 0


def run_plot(project: Path, names: list[str], out: Path) -> int:
    """Draw the learning curves of some runs."""
    found = [runs.find_run_to_plot(project, name) for name in names] or [runs.find_run_to_plot(project, None)]
    plot([read_curve(run.checkpoints) for run in found], out)
    Console().line(f"{_printable(out)}: {', '.join(run.name for run in found)}.")
    return 0


class SearchWishes(NamedTuple):
    """What the command line asks `search` for."""

    level: Level
    minutes: float
    film: Path | None
    actions: str | None  # None: as the settings say
    seed: int
    afresh: bool  # whether an earlier search of this level is forgotten


def run_search(project: Path, wishes: SearchWishes) -> int:
    """Search a level, tell what was found, and film it where asked to."""
    values, overrides = load_config_file(project)
    assigned = {} if wishes.actions is None else {"ACTIONS": wishes.actions}
    settings = choose_settings(values, overrides, assigned, has_gpu=lambda: False).settings
    if wishes.film is not None:
        check_film(wishes.film)
    console = Console()
    check_rom("fast")
    if choose_emulator("fast", console.line) != "fast":
        raise UserError("search needs the fast emulator, which can save games: pip install -r requirements.txt")
    from mario_rl.searching.maps import search_with, sets_to_try  # compiled code is loaded
    from mario_rl.searching.saving import continue_search
    from mario_rl.searching.search import LevelSearch

    def begin(actions: ActionSet) -> tuple[LevelSearch, Path]:
        file = project / "checkpoints" / f"search-{wishes.level}-{actions}-{wishes.seed}.npz"
        if wishes.afresh:
            file.unlink(missing_ok=True)
        num_starts = settings.task.noop_start_max_frames + 1
        play = replace(settings.play, actions=actions)
        search = continue_search(file, play, wishes.level, wishes.seed, num_starts, num_cores(), console.line)
        return search, file

    action_sets = sets_to_try(settings.play.actions, settings.search)
    if wishes.actions is not None:
        action_sets = [settings.play.actions]
    found = search_with(action_sets, begin, console.line, wishes.minutes * 60)
    with closing(found.search) as search:
        way = search.way_to_flag()
    if way is None:
        more = "" if search.actions == "complex" else ", or --actions complex, which has DOWN for pipes"
        console.line(f"The flag of {wishes.level} was not found. Try more --minutes{more}.")
        return 1
    settled = "which has settled" if found.has_settled else "which may still become shorter"
    console.line(
        f"The flag of {wishes.level} was found with {search.actions} actions. "
        f"The map has a way of {search.figures.start_distance} cells, {settled}."
    )
    if wishes.film is not None:
        film = record_buttons(replace(settings.play, actions=search.actions), wishes.level, wishes.film, *way)
        ending = "cleared the level" if film.cleared else f"got to {film.distance:,} px"
        console.line(f"{_printable(wishes.film)}: {ending} in {film.decisions:,} decisions; {film.frames:,} frames.")
    return 0


def _printable(path: Path) -> str:
    """A name may hold bytes that are no characters, and stdout takes characters only."""
    return str(path).encode(errors="replace").decode()


def play_rules(policy: Policy) -> PlayRules:
    """How a model is played, with whichever emulator there is."""
    check_rom("fast")
    use_one_thread()
    emulator = choose_emulator("fast", Console().line)
    return PlayRules(policy.actions, emulator, policy.frame_skip, NO_PROGRESS_DECISIONS)


def _table(model: str, level: Level, trials: list[Trial], seed: int) -> Table:
    table = Table(title=f"{model} on level {level}", caption=f"seed {seed}; in brackets, 95 % intervals")
    table.add_column("episodes from")
    for column in ("episodes", "cleared", "clear rate", "mean distance", "mean reward", "mean decisions"):
        table.add_column(column, justify="right")
    for trial in trials:
        low, high = trial.interval
        means = [sum(column) / len(trial.episodes) for column in list(zip(*trial.episodes, strict=True))[1:]]
        rate = f"{trial.clear_rate:.0%} ({low:.0%}-{high:.0%})"
        numbers = (str(len(trial.episodes)), str(trial.num_cleared), rate, *(f"{mean:,.0f}" for mean in means))
        table.add_row(trial.name, *numbers)
    return table


def _as_json(wishes: EvaluateWishes, trials: dict[Level, list[Trial]], seed: int) -> dict[str, Any]:
    return {
        "model": wishes.model.name,
        "seed": seed,
        "levels": {
            str(level): [
                {
                    "episodes_from": trial.name,
                    "clear_rate": trial.clear_rate,
                    "interval": trial.interval,
                    "episodes": [episode._asdict() for episode in trial.episodes],
                }
                for trial in found
            ]
            for level, found in trials.items()
        },
    }
