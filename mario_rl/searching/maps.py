"""Searching a run's levels before it trains: a graph of all of them, with a progress line. Main thread."""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ActionSet
from mario_rl.environment.task import PlayRules
from mario_rl.mapping.graph import CellGraph
from mario_rl.searching.rules import SearchRules
from mario_rl.searching.saving import save_search
from mario_rl.searching.search import LevelSearch, SearchFigures

# The map is good enough when the way from the level's start has not become shorter for this share of all decisions.
SETTLED_SHARE = 1 / 3
FEWEST_DECISIONS = 60_000
# Without the flag after so many, more buttons are tried. No level whose flag the fewer ones reach took a third of it.
PATIENCE_DECISIONS = 1_000_000
REPORT_SECONDS = 5.0
SAVE_SECONDS = 20.0


class Settling:
    """Whether a search has found enough: the start's distance to the flag no longer falls."""

    def __init__(self) -> None:
        self._distance: int | None = None
        self._decisions = 0  # when it last fell

    def is_settled(self, figures: SearchFigures) -> bool:
        """Whether the search may end here."""
        if figures.start_distance != self._distance:
            self._distance, self._decisions = figures.start_distance, figures.decisions
        if self._distance is None or figures.decisions < FEWEST_DECISIONS:
            return False
        return figures.decisions - self._decisions >= SETTLED_SHARE * figures.decisions


def search_level(
    search: LevelSearch,
    on_line: Callable[[str], None],
    max_seconds: float,
    file: Path | None = None,
    patience_decisions: int | None = None,
) -> bool:
    """Search until the way to the flag has settled, or the time or the patience is over; whether it has settled.

    What was found is saved to `file` now and then, and at the end.
    """
    settling, begun, reported = Settling(), time.monotonic(), time.monotonic()
    saved = begun
    while True:
        search.play_round()
        figures, seconds = search.figures, time.monotonic() - begun
        is_settled = settling.is_settled(figures)
        is_hopeless = (
            patience_decisions is not None
            and figures.start_distance is None
            and figures.decisions >= patience_decisions
        )
        is_over = is_settled or is_hopeless or seconds >= max_seconds
        if is_over or time.monotonic() - reported >= REPORT_SECONDS:
            on_line(search_line(search.level, figures, seconds))
            reported = time.monotonic()
        if file is not None and (is_over or time.monotonic() - saved >= SAVE_SECONDS):
            save_search(file, search)
            saved = time.monotonic()
        if is_over:
            return is_settled


class Found(NamedTuple):
    """What the search of a level came to. It is the caller's to close."""

    search: LevelSearch
    has_settled: bool
    decisions: int  # of all searches that were tried

    @property
    def has_flag(self) -> bool:
        """Whether a way from the start to the flag is known."""
        return self.search.figures.start_distance is not None


def search_with(
    action_sets: Sequence[ActionSet],
    begin: Callable[[ActionSet], tuple[LevelSearch, Path | None]],
    on_line: Callable[[str], None],
    max_seconds: float,
) -> Found:
    """Search with the first of these action sets, and where that finds no flag with the next one.

    `begin` gives the search with an action set, and the file in which it is kept.
    """
    begun, earlier_decisions = time.monotonic(), 0
    for actions, following in zip(action_sets, [*action_sets[1:], None], strict=True):
        search, file = begin(actions)
        remaining = max(0.0, max_seconds - (time.monotonic() - begun))
        patience = None if following is None else PATIENCE_DECISIONS
        found = Found(search, search_level(search, on_line, remaining, file, patience), earlier_decisions)
        found = found._replace(decisions=earlier_decisions + search.num_decisions)
        if found.has_flag or following is None:
            return found
        on_line(f"[SEARCH] No way to the flag of {search.level} with {actions} actions: now with {following} ones.")
        earlier_decisions = found.decisions
        search.close()
    raise AssertionError("no action set was given")


class Maps(NamedTuple):
    """What searches have found, and what they took."""

    graph: CellGraph  # of all levels
    actions: ActionSet  # with which every flag was found
    without_flag: list[Level]
    decisions: int
    seconds: float


def draw_maps(
    play: PlayRules,
    rules: SearchRules,
    levels: tuple[Level, ...],
    seed: int,
    num_starts: int,
    num_threads: int,
    on_line: Callable[[str], None],
) -> Maps:
    """Search all these levels."""
    whole, num_decisions, begun = CellGraph(), 0, time.monotonic()
    actions, without_flag = play.actions, []
    for level in levels:

        def begin(actions: ActionSet, level: Level = level) -> tuple[LevelSearch, None]:
            return LevelSearch(replace(play, actions=actions), level, seed, num_starts, num_threads), None

        found = search_with(sets_to_try(actions, rules), begin, on_line, rules.search_minutes * 60)
        with closing(found.search) as search:
            whole.add_edges(search.graph.cells[search.graph.edges])
            num_decisions += found.decisions
            if found.has_flag:
                actions = search.actions
            else:
                without_flag.append(level)
    return Maps(whole, actions, without_flag, num_decisions, time.monotonic() - begun)


def sets_to_try(actions: ActionSet, rules: SearchRules) -> list[ActionSet]:
    """The run's actions, and those that may take their place."""
    return list(dict.fromkeys((actions, rules.fallback_actions)))


def search_line(level: Level, figures: SearchFigures, seconds: float) -> str:
    """The [SEARCH] line."""
    distance = "not found" if figures.start_distance is None else f"{figures.start_distance:,} cells from the start"
    return (
        f"[SEARCH] Level: {level} | Decisions: {figures.decisions:,} | Seconds: {seconds:.0f} | "
        f"Cells: {figures.cells:,} | Furthest: {figures.furthest_x:,} | Flag: {distance}"
    )
