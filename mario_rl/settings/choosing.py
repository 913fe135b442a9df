"""Which value a setting has, and where it came from.

Order of precedence, weakest first: the setting itself, CPU_OVERRIDES (only without a GPU), `--set`. Everything is
checked before anything starts, and all faults are reported at once.
"""

import ast
import difflib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mario_rl.errors import UserError, shown
from mario_rl.settings.checking import check_value, find_conflicts
from mario_rl.settings.settings import NAMES, Settings, assemble

OVERRIDES_NAME = "CPU_OVERRIDES"
# Words that people know from other trainers, and what they are called here.
_ALSO_KNOWN_AS = {"LR": "LEARNING_RATE", "EPOCHS": "MAX_EPOCHS", "DISCOUNT": "GAMMA", "NUM_WORKERS": "NUM_PROCESSES"}

# What runs of an earlier version did that had no such setting yet, where config_optimized.py has another way now.
_DONE_BEFORE = {"PROGRESS": "x", "RESCUE_SHARE": 0.0, "EXPLORE_SHORT_HOLD": 8}

Source = Literal["config", "cpu", "set", "run"]
SOURCE_NAMES: dict[Source, str] = {
    "config": "config_optimized.py",
    "cpu": "CPU_OVERRIDES",
    "set": "command line",
    "run": "the resumed run",
}


class SettingsError(UserError):
    """The user's settings are wrong; the message names every fault and is shown as it is."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))


@dataclass(frozen=True)
class ChosenSettings:
    """Settings and where each came from (by upper-case name)."""

    settings: Settings
    sources: dict[str, Source]
    # Of a run of another version: what it lacks and got from config_optimized.py, and what is no setting any more.
    added: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def choose_settings(
    values: Mapping[str, Any],
    overrides: Mapping[str, Any],
    assigned: Mapping[str, Any],
    *,
    has_gpu: Callable[[], bool],
) -> ChosenSettings:
    """The settings of a new run, or SettingsError with every fault."""
    layers: list[tuple[Source, str, Mapping[str, Any]]] = [("config", SOURCE_NAMES["config"], values)]
    if _is_for_cpu(assigned.get("DEVICE", values.get("DEVICE")), has_gpu):
        layers.append(("cpu", OVERRIDES_NAME, overrides))
    return _choose([*layers, ("set", "--set", assigned)], assigned)


def choose_resumed_settings(
    saved: Mapping[str, Any],
    read_config: Callable[[], tuple[dict[str, Any], dict[str, Any]]],
    assigned: Mapping[str, Any],
    *,
    has_gpu: Callable[[], bool],
) -> ChosenSettings:
    """A run's own settings, with what the command line changes; or SettingsError with every fault.

    A run of an earlier version may lack settings, which then come from config_optimized.py (it is not read otherwise),
    and may have some that are gone.
    """
    left_out = [name for name in saved if name not in NAMES]
    known = {name: value for name, value in saved.items() if name in NAMES}
    lacking = [name for name in NAMES if name not in known]
    layers: list[tuple[Source, str, Mapping[str, Any]]] = []
    if lacking:
        values, overrides = read_config()
        if _is_for_cpu(assigned.get("DEVICE", known.get("DEVICE")), has_gpu):
            values = values | overrides
        values = values | _DONE_BEFORE
        added = {name: values[name] for name in lacking if name in values}
        layers.append(("config", SOURCE_NAMES["config"], added))
    layers += [("run", SOURCE_NAMES["run"], known), ("set", "--set", assigned)]
    chosen = _choose(layers, {})  # a level that it hides is refused elsewhere: a resumed run keeps its level
    added_names = [name for name, source in chosen.sources.items() if source == "config"]
    return ChosenSettings(chosen.settings, chosen.sources, added_names, left_out)


def _is_for_cpu(device: Any, has_gpu: Callable[[], bool]) -> bool:
    return device == "cpu" or (device != "cuda" and not has_gpu())


def _choose(layers: list[tuple[Source, str, Mapping[str, Any]]], asked: Mapping[str, Any]) -> ChosenSettings:
    """Apply the precedence and check everything."""
    faults: list[str] = []
    chosen: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    for source, place, layer in layers:
        for name, value in layer.items():
            if name in NAMES:
                chosen[name], sources[name] = value, source
            else:
                faults.append(_unknown(name, place))
    checked: dict[str, Any] = {}
    for name in NAMES:
        if name not in chosen:
            faults.append(f"{name} is missing from {layers[0][1]}: put it back.")
            continue
        try:
            checked[name] = check_value(name, chosen[name])
        except ValueError as fault:
            faults.append(f"{name} = {shown(chosen[name])} ({SOURCE_NAMES[sources[name]]}): {fault}")
    faults += find_conflicts(checked) + _ignored_level(checked, asked, sources)
    if faults:
        raise SettingsError(faults)
    return ChosenSettings(assemble(checked), sources)


def _unknown(name: object, place: str) -> str:
    if not isinstance(name, str):
        return f"{place} has the key {shown(name)}: write names of settings in quotes."
    nearest = _ALSO_KNOWN_AS.get(name) or next(iter(difflib.get_close_matches(name, NAMES, n=1, cutoff=0.4)), None)
    advice = f"did you mean {nearest}?" if nearest else "config_optimized.py lists all names."
    return f"{shown(name)[1:-1]} ({place}) is not a setting: {advice}"


def _ignored_level(checked: dict[str, Any], asked: Mapping[str, Any], sources: Mapping[str, Source]) -> list[str]:
    """A level that the user has just asked for and that LEVELS hides."""
    wish = " and ".join(f"{name} = {shown(asked[name])}" for name in ("WORLD", "STAGE") if name in asked)
    levels = checked.get("LEVELS")
    if not wish or not levels:
        return []
    return [
        f"{wish} (command line) would not be played: LEVELS = {shown(list(levels))} "
        f'({SOURCE_NAMES[sources["LEVELS"]]}) names the levels; add --set "LEVELS=[]".'
    ]


def parse_assignments(assignments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """`NAME=VALUE` texts of the command line as values, and what is wrong with the others. Bare words are strings."""
    values: dict[str, Any] = {}
    faults = []
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not separator or not name.strip():
            faults.append(f"--set {shown(assignment)[1:-1]}: write it as NAME=VALUE, for example --set BATCH_SIZE=256.")
            continue
        try:
            with warnings.catch_warnings(action="ignore"):  # about odd escapes in strings
                values[name.strip().upper()] = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            values[name.strip().upper()] = text.strip()
    return values, faults
