"""Whether values may be what a rule class says: types, ranges, and what does not go together."""

import contextlib
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args, get_origin

from mario_rl.environment.task import Levels
from mario_rl.errors import shown
from mario_rl.ranges import Between, OneOf
from mario_rl.replay.streams import GUARD_ROWS
from mario_rl.settings.settings import HINTS, PARTS, Settings, make_part


def check_value(name: str, value: Any) -> Any:
    """A setting's value in its right type; ValueError says in words what is wrong."""
    return _check(HINTS[name], value)


def _check(hint: Any, value: Any) -> Any:
    bounds: Between | None = None
    if get_origin(hint) is Annotated:
        hint, bounds = get_args(hint)
    if get_origin(hint) is Literal or isinstance(bounds, OneOf):
        choices = tuple(bounds.names) if isinstance(bounds, OneOf) else get_args(hint)
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
        if levels.count(level) > 1:  # an evaluation counts every level once
            raise ValueError(f"must name a level once; {level} is there {levels.count(level)} times.")
    return levels


def find_conflicts(checked: dict[str, Any]) -> list[str]:
    """Settings that are right alone and wrong together; faulty ones are left out, with the rules that need them."""
    parts = {name: make_part(part, checked) for name, part in PARTS.items()}
    own: list[Callable[[], list[str]]] = [part.conflicts for part in parts.values() if hasattr(part, "conflicts")]
    settings = Settings(**parts)
    faults: list[str] = []
    for rule in (*own, *(lambda rule=rule: rule(settings) for rule in _BETWEEN_PARTS)):
        with contextlib.suppress(AttributeError):  # of a value that is not there
            faults += rule()
    return faults


def _workers_fit(s: Settings) -> list[str]:
    if s.hardware.training_workers == 1 or not s.priorities.prioritized_replay:
        return []
    return [
        f"TRAINING_WORKERS = {s.hardware.training_workers} and PRIORITIZED_REPLAY = True: several workers would need a "
        "lock around the priorities; set TRAINING_WORKERS to 1 or PRIORITIZED_REPLAY to False."
    ]


def _streams_fit(s: Settings) -> list[str]:
    # A chunk, the guard band and the window, with room to spare.
    shortest = s.collecting.chunk_decisions + 4 * GUARD_ROWS + s.sampling.n_step
    num_streams, size = s.collecting.num_streams, s.replay.buffer_size
    if size // num_streams >= shortest:
        return []
    return [
        f"BUFFER_SIZE = {size:,} is too small for {num_streams} emulators: raise it "
        f"to at least {shortest * num_streams:,} or use fewer emulators."
    ]


def _warmup_fits(s: Settings) -> list[str]:
    faults = []
    warmup, size, num_streams = s.flow.warmup_experiences, s.replay.buffer_size, s.collecting.num_streams
    if warmup > size // 2:
        faults.append(
            f"WARMUP_EXPERIENCES = {warmup:,} is more than half of BUFFER_SIZE = {size:,}: "
            "lower it, or learning never begins."
        )
    fewest = num_streams * (s.sampling.n_step + 4)
    if warmup < fewest:
        faults.append(
            f"WARMUP_EXPERIENCES = {warmup:,} is too few for {num_streams} emulators and "
            f"N_STEP = {s.sampling.n_step}: raise it to at least {fewest:,}."
        )
    return faults


_BETWEEN_PARTS = (_workers_fit, _streams_fit, _warmup_fits)
