"""The command line: options, and how faults are told. Imports nothing heavy until it knows what is wanted.

Exit codes: 0 the run ended by itself; 1 something failed; 2 the user's input is wrong and nothing was started;
128 + n a signal ended it, after everything was saved.
"""

import argparse
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mario_rl.app.signals import StopSignals
from mario_rl.errors import UserError, shown

if TYPE_CHECKING:
    from mario_rl.emulation.rules import Level

USER_ERROR = 2


def main(project: Path, stop: StopSignals, arguments: list[str] | None = None) -> int:
    """Train, or what another command says. The exit code. `stop` is installed already.

    In `project` are config_optimized.py, checkpoints/ and models/.
    """
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    words = sys.argv[1:] if arguments is None else arguments
    try:
        if words and words[0] in _COMMANDS:
            stop.nothing_to_save()
            return _COMMANDS[words[0]](project, words[1:])
        return _train(project, words, stop)
    except UserError as error:
        for line in str(error).split("\n"):
            print(f"error: {line}", file=sys.stderr)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("mario_rl"):
            raise
        print(f"error: {error.name} is not installed: run `pip install -r requirements.txt`.", file=sys.stderr)
    return USER_ERROR


def _train(project: Path, words: list[str], stop: StopSignals) -> int:
    options = _training_parser().parse_args(words)
    from mario_rl.app.session import run_session

    return run_session(project, _wishes(options), stop)


def _evaluate(_project: Path, words: list[str]) -> int:
    parser = _command_parser(
        "evaluate",
        "Evaluate a model, playing greedily: an episode from each of the 31 starts that training knows and from each "
        "of 30 others, and 100 with sticky actions of each kind.",
    )
    parser.add_argument("model", metavar="MODEL", help="a .safetensors file, as in models/")
    parser.add_argument(
        "--episodes", metavar="N", default="100", help="episodes of each kind of sticky actions (default: 100)"
    )
    parser.add_argument(
        "--sticky", metavar="P", help="chance to repeat an action (default: 0.1, 0.25, and 0.25 by frame)"
    )
    parser.add_argument("--world", metavar="W", help="1 to 8 (default: the level the model was trained on)")
    parser.add_argument("--stage", metavar="S", help="1 to 4")
    parser.add_argument("--seed", metavar="N", help="of the sticky actions (default: a new one each time)")
    parser.add_argument("--json", metavar="FILE", help="write the result, episode by episode")
    options = parser.parse_args(words)
    from mario_rl.app import commands

    faults: list[str] = []
    wishes = commands.EvaluateWishes(
        model=Path(options.model),
        level=_level(options, faults),
        sticky_episodes=_number("--episodes", options.episodes, int, 0, 10_000, faults),
        sticky=None if options.sticky is None else _number("--sticky", options.sticky, float, 0.0, 1.0, faults),
        seed=None if options.seed is None else _number("--seed", options.seed, int, 0, 2**63 - 1, faults),
        json=None if options.json is None else Path(options.json),
    )
    _raise(faults)
    return commands.run_evaluate(wishes)


def _record(_project: Path, words: list[str]) -> int:
    parser = _command_parser("record", "Film a model playing greedily.")
    parser.add_argument("model", metavar="MODEL", help="a .safetensors file, as in models/")
    parser.add_argument("--out", metavar="FILE", default="mario.mp4", help=".mp4 or .gif (default: mario.mp4)")
    parser.add_argument("--world", metavar="W", help="1 to 8 (default: the level the model was trained on)")
    parser.add_argument("--stage", metavar="S", help="1 to 4")
    parser.add_argument("--start", metavar="N", default="0", help="idle frames before the first action (default: 0)")
    options = parser.parse_args(words)
    from mario_rl.app import commands

    faults: list[str] = []
    wishes = commands.RecordWishes(
        model=Path(options.model),
        level=_level(options, faults),
        out=Path(options.out),
        idle_frames=_number("--start", options.start, int, 0, 200, faults),
    )
    _raise(faults)
    return commands.run_record(wishes)


def _plot(project: Path, words: list[str]) -> int:
    parser = _command_parser("plot", "Draw learning curves of runs in checkpoints/.")
    parser.add_argument("runs", metavar="RUN", nargs="*", help="names in checkpoints/ (default: the last run)")
    parser.add_argument("--out", metavar="FILE", default="learning.png", help="a .png file (default: learning.png)")
    options = parser.parse_args(words)
    from mario_rl.app import commands

    return commands.run_plot(project, options.runs, Path(options.out))


def _search(project: Path, words: list[str]) -> int:
    parser = _command_parser(
        "search",
        "Search a level for its flag by random play from an archive of places, without any network. Training does the "
        "same before it begins, and makes a map of what was found. A search that was stopped goes on where it was.",
    )
    parser.add_argument("--level", metavar="W-S", default="1-1", help="world and stage, as in 7-4 (default: 1-1)")
    parser.add_argument("--minutes", metavar="M", default="5", help="at most (default: 5); it ends when it has settled")
    parser.add_argument("--film", metavar="FILE", help="film the way that was found: .mp4 or .gif")
    parser.add_argument(
        "--actions", metavar="SET", help="right_only, simple or complex (default: the settings' ACTIONS)"
    )
    parser.add_argument("--seed", metavar="N", default="1", help="the same seed, the same search (default: 1)")
    parser.add_argument("--afresh", action="store_true", help="do not go on with an earlier search of this level")
    options = parser.parse_args(words)
    from mario_rl.app import commands

    faults: list[str] = []
    wishes = commands.SearchWishes(
        level=_level_name("--level", options.level, faults),
        minutes=_number("--minutes", options.minutes, float, 0.01, 10_000, faults),
        film=None if options.film is None else Path(options.film),
        actions=options.actions,
        seed=_number("--seed", options.seed, int, 0, 2**63 - 1, faults),
        afresh=options.afresh,
    )
    _raise(faults)
    return commands.run_search(project, wishes)


def _levels(project: Path, words: list[str]) -> int:
    parser = _command_parser(
        "levels",
        "Train level after level, each from nothing and with the same settings: search, train until learned, evaluate "
        "thoroughly, export to models/. What was done is kept: the same command goes on where it was stopped.",
    )
    parser.add_argument("--levels", metavar="LIST", default="all", help="as in 1-3,2-2; default: all 32")
    parser.add_argument(
        "--minutes-per-level", metavar="M", default="60", help="of training, at most, after the search (default: 60)"
    )
    parser.add_argument("--transfer", action="store_true", help="levels that copy others start from their weights")
    parser.add_argument("--seed", metavar="N", default="1", help="of every run (default: 1)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="another value of a setting, for every level"
    )
    parser.add_argument(
        "--report", metavar="FOLDER", help="train nothing: write a page and pictures of the models that there are"
    )
    options = parser.parse_args(words)
    if options.report is not None:
        from mario_rl.app.levels_report import write_report

        return write_report(project, Path(options.report))
    from mario_rl.app import campaign
    from mario_rl.emulation.rules import Level

    faults: list[str] = []
    everything = [Level(world, stage) for world in range(1, 9) for stage in range(1, 5)]
    names = options.levels.split(",")
    wishes = campaign.CampaignWishes(
        levels=everything if names == ["all"] else [_level_name("--levels", name, faults) for name in names],
        minutes_per_level=_number("--minutes-per-level", options.minutes_per_level, float, 0.05, 10_000, faults),
        transfer=options.transfer,
        seed=_number("--seed", options.seed, int, 0, 2**63 - 1, faults),
        assignments=options.set,
    )
    _raise(faults)
    return campaign.run_campaign(project, wishes)


_COMMANDS: dict[str, Callable[[Path, list[str]], int]] = {
    "evaluate": _evaluate,
    "record": _record,
    "plot": _plot,
    "search": _search,
    "levels": _levels,
}


def _command_parser(name: str, description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"mario_rl_optimized.py {name}", description=description, allow_abbrev=False)


def _level(options: argparse.Namespace, faults: list[str]) -> "Level | None":
    """The level asked for; None where none was."""
    from mario_rl.emulation.rules import Level

    if options.world is None and options.stage is None:
        return None
    if options.world is None or options.stage is None:
        faults.append("--world and --stage belong together: give both.")
        return None
    world = _number("--world", options.world, int, 1, 8, faults)
    stage = _number("--stage", options.stage, int, 1, 4, faults)
    return Level(world, stage)


def _level_name(name: str, text: str, faults: list[str]) -> "Level":
    """A level as people write it."""
    from mario_rl.emulation.rules import Level

    world, dash, stage = text.partition("-")
    if dash and world in list("12345678") and stage in list("1234"):
        return Level(int(world), int(stage))
    faults.append(f"{name} {shown(text)[1:-1]}: must be a world and a stage from 1-1 to 8-4, as in 7-4.")
    return Level(1, 1)


def _number(name: str, text: str, kind: type[int] | type[float], low: float, high: float, faults: list[str]) -> Any:
    """A number in its bounds; what is wrong with it goes to `faults`."""
    try:
        value = kind(text)
        if low <= value <= high:
            return value
    except ValueError:
        pass
    whole = "whole " if kind is int else ""
    faults.append(f"{name} {shown(text)[1:-1]}: must be a {whole}number between {low:,} and {high:,}.")
    return kind(low)


def _raise(faults: list[str]) -> None:
    if faults:
        raise UserError("\n".join(faults))


def _training_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mario_rl_optimized.py",
        description="Train an agent to play Super Mario Bros. Without options: level 1-1 with config_optimized.py.",
        epilog="Settings and their reasons are in config_optimized.py; --set wins over it. "
        "A run without --epochs, --minutes and --decisions ends when it has learned the level (STOP_AT_CLEAR_RATE); "
        "with any of them it goes on until that limit, learned or not. "
        "Ctrl-C saves and stops; --resume goes on. "
        "Other commands: levels, search, evaluate, record, plot; each has its own --help.",
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
    parser.add_argument("--minutes", metavar="M", help="end after M minutes of this session's training")
    parser.add_argument("--decisions", metavar="N", help="end when the run has N decisions")
    parser.add_argument(
        "--until-learned", action="store_true", help="end when the level is learned, even before such a limit"
    )
    parser.add_argument("--name", metavar="NAME", help="of a new run (default: its levels and the time)")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="RUN",
        help="go on with a run of checkpoints/ (default: the last one) with its settings and level; also extends a "
        "finished run",
    )
    parser.add_argument(
        "--from-best",
        action="store_true",
        help="resume from the checkpoint after the run's best evaluation, not the newest",
    )
    parser.add_argument("--init", metavar="MODEL", help="start from the weights of an exported model (.safetensors)")
    parser.add_argument("--seed", metavar="N", help="the same as --set SEED=N")
    parser.add_argument("--world", metavar="W", help="1 to 8, the same as --set WORLD=W")
    parser.add_argument("--stage", metavar="S", help="1 to 4, the same as --set STAGE=S")
    parser.add_argument(
        "--serial", action="store_true", help="the same parts in one process, one collector, deterministic; slower"
    )
    return parser


def _wishes(options: argparse.Namespace) -> Any:
    from mario_rl.app.session import Wishes
    from mario_rl.settings.choosing import parse_assignments

    shortcuts = {"SEED": options.seed, "WORLD": options.world, "STAGE": options.stage}
    given = [f"{name}={value}" for name, value in shortcuts.items() if value is not None]
    assigned, faults = parse_assignments(options.assignments + given)
    if options.init is not None and options.resume is not None:
        faults.append("--init and --resume exclude each other: a resumed run already has its weights.")
    if options.from_best and options.resume is None:
        faults.append("--from-best says where a resumed run goes on: add --resume.")
    if options.name is not None and options.resume is not None:
        faults.append("--name is for a new run: a resumed one has its name.")
    if options.name is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", options.name):
        faults.append(f"--name {shown(options.name)[1:-1]}: must be letters, digits, dots, + and -, 100 at most.")
    return Wishes(
        assigned=assigned,
        epochs=_positive(options, "epochs", int, faults),
        decisions=_positive(options, "decisions", int, faults),
        minutes=_positive(options, "minutes", float, faults),
        until_learned=options.until_learned,
        name=options.name,
        resume=options.resume is not None,
        resume_name=options.resume or None,
        from_best=options.from_best,
        init=None if options.init is None else Path(options.init),
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
