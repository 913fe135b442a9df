"""The campaign: level after level, each trained from nothing with the same settings. The command `levels`.

Every training is a process of its own, as if it had been started by hand, so that none can harm another. What a level
has reached is kept in checkpoints/levels-<seed>.json; the same command goes on where it was stopped.
"""

import json
import signal
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console as RichConsole
from rich.table import Table

from mario_rl.app.commands import play_rules
from mario_rl.emulation.rules import Level
from mario_rl.errors import UserError
from mario_rl.evaluation.recording import record
from mario_rl.evaluation.thorough import Trial, try_thoroughly
from mario_rl.storage import runs
from mario_rl.storage.files import replace_durably
from mario_rl.storage.policies import export_policy, read_policy
from mario_rl.telemetry.console import Console

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REPORT_SEED = 777  # of the evaluations that are reported; training chooses with others

# Levels that are harder copies of others: the same ground with more enemies or shorter lifts.
COPIES = {
    Level(5, 3): Level(1, 3),
    Level(5, 4): Level(2, 4),
    Level(6, 4): Level(1, 4),
    Level(7, 2): Level(2, 2),
    Level(7, 3): Level(2, 3),
}


class CampaignWishes(NamedTuple):
    """What the command line asks `levels` for."""

    levels: list[Level]
    minutes_per_level: float
    transfer: bool  # whether a copy starts from the weights of what it copies
    seed: int
    assignments: list[str]  # NAME=VALUE


def run_campaign(project: Path, wishes: CampaignWishes) -> int:
    """Train what is not done yet, and print the table. 0 when every level was trained."""
    console = Console()
    file = project / "checkpoints" / f"levels-{wishes.seed}{'-transfer' if wishes.transfer else ''}.json"
    table = _read_table(file)
    for level in wishes.levels:
        if str(level) in table:
            console.line(f"[LEVELS] {level} is done already.")
            continue
        name = f"{file.stem}-{level}"
        code = _train(project, name, level, wishes, console)
        if code:
            console.line("[LEVELS] Stopped. The same command goes on from here.")
            _print(table)
            return code
        table[str(level)] = _report(project, name, level, wishes)
        replace_durably(file, (json.dumps(table, indent=2) + "\n").encode())
        _print(table)
    return 0


def _read_table(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        table = json.loads(file.read_text())
        if isinstance(table, dict):
            return table
    except (OSError, ValueError):
        pass
    raise UserError(f"{file} cannot be read: move it away, and the campaign begins anew.")


def _train(project: Path, name: str, level: Level, wishes: CampaignWishes, console: Console) -> int:
    """Have a process train this level, or go on with it; its exit code."""
    command = [sys.executable, str(project / "mario_rl_optimized.py"), "--until-learned"]
    run = runs.Run(name, project / "checkpoints" / name, project / "models")
    minutes = wishes.minutes_per_level
    if any(run.checkpoints.glob("checkpoint-*")):
        command += ["--resume", name]
        minutes -= _minutes_used(run)
        if minutes <= 0:
            return 0
    else:
        command += ["--name", name, "--world", str(level.world), "--stage", str(level.stage)]
        command += ["--seed", str(wishes.seed), *(f"--set={assignment}" for assignment in wishes.assignments)]
        original = COPIES.get(level) if wishes.transfer else None
        model = project / "models" / f"mario-{original}.safetensors"
        if original is not None and model.exists():
            command += ["--init", str(model)]
    console.line(f"[LEVELS] {level}: {minutes:.0f} minutes at most.")
    return _run_child([*command, "--minutes", f"{minutes:.3f}"])


def _run_child(command: list[str]) -> int:
    """Its exit code. Signals are handed on: the first has the child save and stop, the second ends it at once.

    The child has a process group of its own, because a terminal would send Ctrl-C to both.
    """
    received: list[int] = []
    children: list[subprocess.Popen[bytes]] = []

    def hand_on(number: int, frame: types.FrameType | None) -> None:
        received.append(number)
        for child in children:
            child.send_signal(number)

    handled = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, hand_on) for number in handled}
    try:
        children.append(subprocess.Popen(command, process_group=0))
        for number in received:  # before there was a child
            children[0].send_signal(number)
        return children[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _minutes_used(run: runs.Run) -> float:
    """What the run's training has taken so far; nothing where it was killed before it could tell."""
    try:
        return float(json.loads(run.newest_model.with_suffix(".json").read_text())["minutes"])
    except FileNotFoundError:
        return 0.0


def _report(project: Path, name: str, level: Level, wishes: CampaignWishes) -> dict[str, Any]:
    """Evaluate the best policy of a run as it ships, export it, and give its row of the table."""
    run = runs.Run(name, project / "checkpoints" / name, project / "models")
    # There may have been no time for an evaluation.
    best = run.best_model if run.best_model.exists() else run.newest_model
    card = json.loads(best.with_suffix(".json").read_text())
    out = project / "models" / f"mario-{level}.safetensors"
    export_policy(out, read_policy(best), card, half=True)
    policy = read_policy(out)  # with rounded weights
    rules = play_rules(policy)
    trials = try_thoroughly(policy.network(), rules, level, REPORT_SEED)
    row: dict[str, Any] = {
        "search_decisions": card["search"]["decisions"],
        "search_minutes": card["search"]["minutes"],
        "decisions": card["decisions"],
        "minutes": card["minutes"],
        "whole_minutes": json.loads(run.newest_model.with_suffix(".json").read_text())["minutes"],
        "transfer": wishes.transfer and level in COPIES,
        "trials": [_as_row(trial) for trial in trials],
    }
    film = project / "checkpoints" / name / f"{level}.mp4"
    # Where it fails, it is seen failing.
    starts = trials[0].episodes
    idle_frames = next((number for number, episode in enumerate(starts) if not episode.cleared), 0)
    record(policy.network(), rules, level, film, idle_frames=idle_frames)
    row["film"] = str(film.relative_to(project))
    evaluation = f"python mario_rl_optimized.py evaluate models/{out.name} --seed {REPORT_SEED}"
    origin = {"seed": wishes.seed, "init": str(COPIES[level]) if row["transfer"] else None}
    whole = {"whole_minutes": row["whole_minutes"], "machine": runs.read_machine(run)}
    export_policy(out, policy, card | origin | whole | {"evaluation": evaluation, "trials": row["trials"]}, half=True)
    return row | {"finished": time.strftime("%Y-%m-%d")}


def _as_row(trial: Trial) -> dict[str, Any]:
    return {
        "episodes_from": trial.name,
        "episodes": len(trial.episodes),
        "cleared": trial.num_cleared,
        "interval": [round(bound, 3) for bound in trial.interval],
    }


def _print(table: dict[str, Any]) -> None:
    """All levels so far."""
    if not table:
        return
    shown = Table(title="Levels, the best policy of each run, rounded to 16 bits")
    shown.add_column("level")
    for heading in ("search", "decisions", "minutes", "starts 0-30", "31-60", "sticky 0.1", "0.25", "by frame"):
        shown.add_column(heading, justify="right")
    for level, row in sorted(table.items()):
        rates = [f"{trial['cleared'] / trial['episodes']:.0%}" for trial in row["trials"]]
        shown.add_row(
            level + (" (transfer)" if row["transfer"] else ""),
            f"{row['search_decisions']:,} in {row['search_minutes'] * 60:.0f} s",
            f"{row['decisions']:,}",
            f"{row['minutes'] + row['search_minutes']:.1f}",
            *rates,
        )
    RichConsole().print(shown)
