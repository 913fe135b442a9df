"""The schema of the settings: names, types, ranges, and how a value is chosen. Values live in `config_optimized.py`.

Order of precedence, weakest first: the setting itself, CPU_OVERRIDES (only without a GPU), `--set`. Everything is
checked before anything starts, and all faults are reported at once.
"""

import ast
import contextlib
import dataclasses
import difflib
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from mario_rl.emulation.rules import Level
from mario_rl.errors import UserError

OVERRIDES_NAME = "CPU_OVERRIDES"
FASTEST_PIXELS = 3.0  # that Mario runs in a frame, and so the largest raw reward
MAX_RING_SLOTS = 4096  # a doorbell's pipe holds at least so many bytes
# Words that people know from other trainers, and what they are called here.
_ALSO_KNOWN_AS = {"LR": "LEARNING_RATE", "EPOCHS": "MAX_EPOCHS", "DISCOUNT": "GAMMA", "NUM_WORKERS": "NUM_PROCESSES"}


class SettingsError(UserError):
    """The user's settings are wrong; the message names every fault and is shown as it is."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))


@dataclass(frozen=True)
class Between:
    """An inclusive range."""

    low: float
    high: float


Positive = Between(1, 10**9)
Probability = Between(0.0, 1.0)
Levels = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Settings:
    """Every setting, checked. The upper-case name in the file is the field's name here."""

    world: Annotated[int, Between(1, 8)]
    stage: Annotated[int, Between(1, 4)]
    levels: Levels
    actions: Literal["right_only", "simple", "complex"]
    emulator: Literal["fast", "nes_py"]
    frame_skip: Annotated[int, Between(1, 16)]
    noop_start_max_frames: Annotated[int, Between(0, 200)]
    no_progress_decisions: Annotated[int, Positive]
    reward_scale: Annotated[float, Between(1e-6, 1e3)]
    flag_bonus: Annotated[float, Between(-1e3, 1e3)]
    practice_share: Annotated[float, Probability]

    num_processes: Annotated[int, Between(1, 256)]
    envs_per_process: Annotated[int, Between(1, 256)]
    chunk_decisions: Annotated[int, Between(1, 1024)]
    rep_q_size: Annotated[int, Positive]
    when_ring_full: Literal["wait", "drop"]
    max_restarts_per_hour: Annotated[int, Between(0, 10**6)]
    hang_seconds: Annotated[float, Between(1.0, 1e6)]

    epsilon_decay_decisions: Annotated[int, Positive]
    epsilon_ladder_low: Annotated[float, Probability]
    epsilon_ladder_high: Annotated[float, Probability]
    explore_right_probability: Annotated[float, Probability]
    explore_sticky_probability: Annotated[float, Probability]
    explore_max_hold: Annotated[int, Between(1, 1000)]

    buffer_size: Annotated[int, Positive]
    experience_batch_size: Annotated[int, Positive]
    warmup_experiences: Annotated[int, Positive]
    replay_ratio: Annotated[float, Between(0.0, 1e3)]
    prioritized_replay: bool
    priority_exponent: Annotated[float, Probability]
    priority_correction: Annotated[float, Probability]
    priority_correction_decisions: Annotated[int, Positive]

    batch_size: Annotated[int, Between(2, 65_536)]
    gradient_accumulation_steps: Annotated[int, Between(1, 1024)]
    training_workers: Annotated[int, Between(1, 64)]
    training_steps_per_sample: Annotated[int, Between(1, 1024)]
    learning_rate: Annotated[float, Between(1e-9, 1.0)]
    final_learning_rate: Annotated[float, Between(1e-9, 1.0)]
    learning_rate_decay_decisions: Annotated[int, Positive]
    adam_epsilon: Annotated[float, Between(1e-12, 1.0)]
    max_gradient_norm: Annotated[float, Between(1e-6, 1e6)]
    max_bad_updates: Annotated[int, Positive]
    when_updates_fail: Literal["roll_back", "stop"]
    gamma: Annotated[float, Probability]
    n_step: Annotated[int, Between(1, 32)]
    picture_shift: Annotated[int, Between(0, 20)]
    target_update: Literal["hard", "soft"]
    target_update_interval: Annotated[int, Positive]
    target_tau: Annotated[float, Between(1e-6, 1.0)]
    weight_averaging: Annotated[float, Between(0.0, 1.0)]
    network_channels: Annotated[tuple[int, int, int], Between(1, 4096)]
    hidden_units: Annotated[int, Between(1, 65_536)]
    value_head: Literal["histogram", "quantiles"]
    value_bins: Annotated[int, Between(2, 1000)]

    device: Literal["auto", "cpu", "cuda"]
    use_amp: bool
    compile: Literal["auto", "on", "off"]
    learner_threads: Annotated[int, Between(0, 1024)]
    use_data_parallel: bool
    cache_clear_epochs: Annotated[int, Between(0, 10**9)]

    model_update_frequency: Annotated[int, Positive]
    publish_max_decisions: Annotated[int, Positive]

    evaluation_decisions: Annotated[int, Between(0, 10**9)]
    stop_at_clear_rate: Annotated[float, Between(0.0, 2.0)]
    stop_at_sticky_clear_rate: Annotated[float, Probability]

    episodes_per_epoch: Annotated[int, Positive]
    max_epochs: Annotated[int, Positive]
    checkpoint_epochs: Annotated[int, Positive]
    keep_checkpoints: Annotated[int, Between(1, 1000)]
    checkpoint_replay: bool
    replay_save_seconds: Annotated[float, Between(0.0, 1e6)]
    processor_log_seconds: Annotated[float, Between(0.1, 1e6)]
    lock_warn_milliseconds: Annotated[float, Between(0.0, 1e6)]
    lock_warn_ratio: Annotated[float, Probability]
    seed: Annotated[int, Between(0, 2**63 - 1)]

    @property
    def levels_played(self) -> tuple[Level, ...]:
        """LEVELS, or the one level that WORLD and STAGE name."""
        return tuple(Level(*pair) for pair in self.levels) or (Level(self.world, self.stage),)

    @property
    def value_range(self) -> tuple[float, float]:
        """The values that can occur: from three deaths at once to the flag or to running forever, and a little more."""
        running = FASTEST_PIXELS * self.frame_skip * self.reward_scale / max(1.0 - self.gamma, 0.001)
        highest = max(running, self.flag_bonus) * 9 / 8
        return round(-45.0 * self.reward_scale, 6), round(highest, 6)

    @property
    def num_streams(self) -> int:
        """Emulators of all collectors."""
        return self.num_processes * self.envs_per_process

    @property
    def chunk_experiences(self) -> int:
        """Experiences that one collector hands over at once."""
        return self.envs_per_process * self.chunk_decisions

    @property
    def ring_slots(self) -> int:
        """Chunks a ring holds, so that 2 x REP_Q_SIZE experiences wait in all rings together."""
        return 2 * self.rep_q_size // (self.num_processes * self.chunk_experiences)


Source = Literal["config", "cpu", "set", "run"]
SOURCE_NAMES: dict[Source, str] = {
    "config": "config_optimized.py",
    "cpu": "CPU_OVERRIDES",
    "set": "command line",
    "run": "the resumed run",
}


@dataclass(frozen=True)
class ChosenSettings:
    """Settings and where each came from (by upper-case name)."""

    settings: Settings
    sources: dict[str, Source]


def setting_names() -> list[str]:
    """All names as the user writes them."""
    return [field.name.upper() for field in dataclasses.fields(Settings)]


def read_config_module(module: types.ModuleType) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a config module, and its CPU_OVERRIDES."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    values = {name: value for name, value in public.items() if name.isupper()}
    overrides = values.pop(OVERRIDES_NAME, {})
    known = set(setting_names())
    faults = [
        f"{name} in config_optimized.py is not read: write it in capitals, as {name.upper()}."
        for name in public
        if not name.isupper() and name.upper() in known
    ]
    if not isinstance(overrides, dict):
        faults.append(f"{OVERRIDES_NAME} must be a dictionary of settings, not {shown(overrides)}.")
    if faults:
        raise SettingsError(faults)
    return values, overrides


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


def shown(value: object) -> str:
    """A value in a message: short, whatever a user may have typed."""
    try:
        text = repr(value)
    except ValueError:  # Python refuses to print integers of more than 4,300 digits
        return "a very long number"
    except RecursionError:
        return "lists within lists"
    return text if len(text) <= 80 else f"{text[:77]}..."


def choose_settings(
    values: Mapping[str, Any],
    overrides: Mapping[str, Any],
    assigned: Mapping[str, Any],
    *,
    has_gpu: Callable[[], bool],
    base_source: Source = "config",
) -> ChosenSettings:
    """Apply the precedence, check everything, or raise SettingsError with every fault."""
    faults: list[str] = []
    chosen: dict[str, Any] = {}
    sources: dict[str, Source] = {}
    device = assigned.get("DEVICE", values.get("DEVICE"))
    on_cpu = device == "cpu" or (device != "cuda" and not has_gpu())
    layers: list[tuple[Source, str, Mapping[str, Any]]] = [(base_source, SOURCE_NAMES[base_source], values)]
    if on_cpu:
        layers.append(("cpu", OVERRIDES_NAME, overrides))
    layers.append(("set", "--set", assigned))
    known = set(setting_names())
    for source, place, layer in layers:
        for name, value in layer.items():
            if name in known:
                chosen[name], sources[name] = value, source
            else:
                faults.append(_unknown(name, place))
    checked: dict[str, Any] = {}
    hints = get_type_hints(Settings, include_extras=True)
    for name in setting_names():
        if name not in chosen:
            faults.append(f"{name} is missing from {SOURCE_NAMES[base_source]}: put it back.")
            continue
        try:
            checked[name.lower()] = _check(hints[name.lower()], chosen[name])
        except ValueError as fault:
            faults.append(f"{name} = {shown(chosen[name])} ({SOURCE_NAMES[sources[name]]}): {fault}")
    faults += _conflicts(checked)
    if base_source != "run":  # a resumed run keeps its level anyway
        faults += _ignored_level(checked, assigned, sources)
    if faults:
        raise SettingsError(faults)
    return ChosenSettings(Settings(**checked), sources)


def _unknown(name: object, place: str) -> str:
    if not isinstance(name, str):
        return f"{place} has the key {shown(name)}: write names of settings in quotes."
    known = setting_names()
    nearest = _ALSO_KNOWN_AS.get(name) or next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.4)), None)
    advice = f"did you mean {nearest}?" if nearest else "config_optimized.py lists all names."
    return f"{shown(name)[1:-1]} ({place}) is not a setting: {advice}"


def _check(hint: Any, value: Any) -> Any:
    """The value in its right type; ValueError says in words what is wrong."""
    bounds: Between | None = None
    if get_origin(hint) is Annotated:
        hint, bounds = get_args(hint)
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        if value not in choices or isinstance(value, bool):
            raise ValueError(f"must be one of {', '.join(map(repr, choices))}.")
        return value
    if hint is bool:
        if not isinstance(value, bool):
            raise ValueError("must be True or False.")
        return value
    if hint == Levels:
        return _check_levels(value)
    if get_origin(hint) is tuple:
        length = len(get_args(hint))
        if not isinstance(value, tuple | list) or len(value) != length:
            raise ValueError(f"must be {length} whole numbers, as in (16, 32, 32).")
        return tuple(_check(Annotated[int, bounds], item) for item in value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 1e5 is a fine way to write 100,000
        if not is_number or not isinstance(value, int):
            raise ValueError("must be a whole number.")
    elif not is_number:
        raise ValueError("must be a number.")
    if bounds and not bounds.low <= value <= bounds.high:
        raise ValueError(f"must lie between {bounds.low:,} and {bounds.high:,}.")
    return hint(value)


def _check_levels(value: Any) -> Levels:
    if not isinstance(value, tuple | list) or not all(
        isinstance(pair, tuple | list) and len(pair) == 2 for pair in value
    ):
        raise ValueError("must be pairs of world and stage, as in [(1, 1), (1, 2)]; [] plays WORLD and STAGE.")
    for world, stage in value:
        whole = all(isinstance(number, int) and not isinstance(number, bool) for number in (world, stage))
        if not whole or not (1 <= world <= 8 and 1 <= stage <= 4):
            raise ValueError(f"must hold worlds 1 to 8 and stages 1 to 4; {shown((world, stage))} is no level.")
    levels = tuple((world, stage) for world, stage in value)
    for level in levels:
        if levels.count(level) > 1:  # tests count every level once
            raise ValueError(f"must name a level once; {level} is there {levels.count(level)} times.")
    return levels


def _ignored_level(checked: dict[str, Any], assigned: Mapping[str, Any], sources: Mapping[str, Source]) -> list[str]:
    """A level that the user has just asked for and that LEVELS hides."""
    asked = " and ".join(f"{name} = {shown(assigned[name])}" for name in ("WORLD", "STAGE") if name in assigned)
    levels = checked.get("levels")
    if not asked or not levels:
        return []
    return [
        f"{asked} (command line) would not be played: LEVELS = {shown(list(levels))} "
        f'({SOURCE_NAMES[sources["LEVELS"]]}) names the levels; add --set "LEVELS=[]".'
    ]


def _conflicts(checked: dict[str, Any]) -> list[str]:
    """Settings that are right alone and wrong together; faulty ones are left out, with the rules that need them."""
    partial = object.__new__(Settings)
    for name, value in checked.items():
        object.__setattr__(partial, name, value)
    faults = []
    for rule in (_steps_fit, _workers_fit, _rings_fit, _streams_fit, _warmup_fits, _ladder_fits):
        with contextlib.suppress(AttributeError):
            faults += rule(partial)
    return faults


def _steps_fit(s: Settings) -> list[str]:
    steps, accumulation = s.training_steps_per_sample, s.gradient_accumulation_steps
    if steps % accumulation == 0 or accumulation % steps == 0:
        return []
    return [
        f"TRAINING_STEPS_PER_SAMPLE = {steps} and GRADIENT_ACCUMULATION_STEPS = {accumulation}: "
        "one must divide the other; set both to the same number."
    ]


def _workers_fit(s: Settings) -> list[str]:
    if s.training_workers == 1 or not s.prioritized_replay:
        return []
    return [
        f"TRAINING_WORKERS = {s.training_workers} and PRIORITIZED_REPLAY = True: several workers would need a lock "
        "around the priorities; set TRAINING_WORKERS to 1 or PRIORITIZED_REPLAY to False."
    ]


def _rings_fit(s: Settings) -> list[str]:
    if s.ring_slots < 2:
        return [
            f"REP_Q_SIZE = {s.rep_q_size:,} leaves each ring {s.ring_slots} chunks of {s.chunk_experiences:,}: raise "
            f"REP_Q_SIZE to at least {s.num_processes * s.chunk_experiences:,} or lower CHUNK_DECISIONS."
        ]
    if s.ring_slots > MAX_RING_SLOTS:
        return [
            f"REP_Q_SIZE = {s.rep_q_size:,} gives each ring {s.ring_slots:,} chunks, more than {MAX_RING_SLOTS:,}: "
            "raise CHUNK_DECISIONS."
        ]
    return []


def _streams_fit(s: Settings) -> list[str]:
    shortest = s.chunk_decisions + 256 + s.n_step  # a chunk, the guard band and the window, with room to spare
    if s.buffer_size // s.num_streams >= shortest:
        return []
    return [
        f"BUFFER_SIZE = {s.buffer_size:,} is too small for {s.num_streams} emulators: raise it "
        f"to at least {shortest * s.num_streams:,} or use fewer emulators."
    ]


def _warmup_fits(s: Settings) -> list[str]:
    faults = []
    if s.warmup_experiences > s.buffer_size // 2:
        faults.append(
            f"WARMUP_EXPERIENCES = {s.warmup_experiences:,} is more than half of BUFFER_SIZE = {s.buffer_size:,}: "
            "lower it, or learning never begins."
        )
    fewest = s.num_streams * (s.n_step + 4)
    if s.warmup_experiences < fewest:
        faults.append(
            f"WARMUP_EXPERIENCES = {s.warmup_experiences:,} is too few for {s.num_streams} emulators and "
            f"N_STEP = {s.n_step}: raise it to at least {fewest:,}."
        )
    return faults


def _ladder_fits(s: Settings) -> list[str]:
    if s.epsilon_ladder_low <= s.epsilon_ladder_high:
        return []
    return [
        f"EPSILON_LADDER_LOW = {s.epsilon_ladder_low} is above "
        f"EPSILON_LADDER_HIGH = {s.epsilon_ladder_high}: swap them."
    ]
