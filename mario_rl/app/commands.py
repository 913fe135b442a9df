"""The commands beside training: `evaluate`, `record` and `plot`. Each returns an exit code."""

import errno
import json
import os
import secrets
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console as RichConsole
from rich.table import Table

from mario_rl.emulation.choosing import check_rom, choose_emulator
from mario_rl.emulation.rules import Level
from mario_rl.environment.task import PlayRules
from mario_rl.errors import UserError
from mario_rl.evaluation.episodes import NO_PROGRESS_DECISIONS, NUM_STARTS, evaluate
from mario_rl.evaluation.recording import record
from mario_rl.evaluation.results import Episode, Evaluation, summarise
from mario_rl.machine.child_processes import use_one_thread
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
    sticky: float
    seed: int | None  # None: a new one
    json: Path | None


def run_evaluate(wishes: EvaluateWishes) -> int:
    """Evaluate a model, print a table, and write JSON where asked to."""
    policy = read_policy(wishes.model)
    if wishes.json is not None:
        _check_writable(wishes.json)  # all episodes take a minute
    seed = secrets.randbits(32) if wishes.seed is None else wishes.seed
    levels = policy.levels if wishes.level is None else (wishes.level,)
    rules = _play_rules(policy)
    evaluations = [
        evaluate(policy.network(), rules, level, seed, wishes.sticky_episodes, wishes.sticky) for level in levels
    ]
    for evaluation in evaluations:
        RichConsole().print(_table(wishes, evaluation, seed))
    if wishes.json is not None:
        _write(wishes.json, json.dumps(_as_json(wishes, evaluations, seed), indent=2) + "\n")
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
    rules = _play_rules(policy)
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


def _printable(path: Path) -> str:
    """A name may hold bytes that are no characters, and stdout takes characters only."""
    return str(path).encode(errors="replace").decode()


def _play_rules(policy: Policy) -> PlayRules:
    """How a model is played, with whichever emulator there is."""
    check_rom("fast")
    use_one_thread()
    emulator = choose_emulator("fast", Console().line)
    return PlayRules(policy.actions, emulator, policy.frame_skip, NO_PROGRESS_DECISIONS)


def _table(wishes: EvaluateWishes, evaluation: Evaluation, seed: int) -> Table:
    table = Table(title=f"{wishes.model.name} on level {evaluation.level}", caption=f"seed {seed}")
    table.add_column("episodes from")
    for column in ("episodes", "cleared", "clear rate", "mean distance", "mean reward", "mean decisions"):
        table.add_column(column, justify="right")
    _add_row(table, f"starts after 0-{NUM_STARTS - 1} idle frames", evaluation.starts)
    if evaluation.sticky:
        _add_row(table, f"sticky actions {wishes.sticky:g}", evaluation.sticky)
    return table


def _add_row(table: Table, name: str, episodes: list[Episode]) -> None:
    count = len(episodes)
    cleared = sum(episode.cleared for episode in episodes)
    means = [sum(column) / count for column in list(zip(*episodes, strict=True))[1:]]
    table.add_row(name, str(count), str(cleared), f"{cleared / count:.0%}", *(f"{mean:,.0f}" for mean in means))


def _as_json(wishes: EvaluateWishes, evaluations: list[Evaluation], seed: int) -> dict[str, Any]:
    total = summarise(evaluations)
    return {
        "model": wishes.model.name,
        "levels": [str(evaluation.level) for evaluation in evaluations],
        "seed": seed,
        "clear_rate": total.clear_rate,
        "sticky": wishes.sticky,
        "sticky_clear_rate": total.sticky_clear_rate,
        "mean_distance": total.mean_distance,
        "mean_reward": total.mean_reward,
        "episodes": [
            {"level": str(evaluation.level), "half": half, **episode._asdict()}
            for evaluation in evaluations
            for half, episodes in (("starts", evaluation.starts), ("sticky", evaluation.sticky))
            for episode in episodes
        ],
    }
