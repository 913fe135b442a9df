"""Searching a run's levels before it trains: a graph of all of them, with a progress line. Main thread."""

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from mario_rl.emulation.rules import Level
from mario_rl.environment.task import PlayRules
from mario_rl.mapping.graph import CellGraph
from mario_rl.searching.saving import save_search
from mario_rl.searching.search import LevelSearch, SearchFigures

# The map is good enough when the way from the level's start has not become shorter for this share of all decisions.
SETTLED_SHARE = 1 / 3
FEWEST_DECISIONS = 60_000
LONGEST_SECONDS = 300.0
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
    search: LevelSearch, on_line: Callable[[str], None], max_seconds: float, file: Path | None = None
) -> bool:
    """Search until the way to the flag has settled, or the time is over; whether it has.

    What was found is saved to `file` now and then, and at the end.
    """
    settling, begun, reported = Settling(), time.monotonic(), time.monotonic()
    saved = begun
    while True:
        search.play_round()
        figures, seconds = search.figures, time.monotonic() - begun
        is_settled = settling.is_settled(figures)
        if is_settled or seconds >= max_seconds or time.monotonic() - reported >= REPORT_SECONDS:
            on_line(search_line(search.level, figures, seconds))
            reported = time.monotonic()
        is_over = is_settled or seconds >= max_seconds
        if file is not None and (is_over or time.monotonic() - saved >= SAVE_SECONDS):
            save_search(file, search)
            saved = time.monotonic()
        if is_over:
            return is_settled


class Maps(NamedTuple):
    """What searches have found, and what they took."""

    graph: CellGraph  # of all levels
    decisions: int
    seconds: float


def draw_maps(
    play: PlayRules,
    levels: tuple[Level, ...],
    seed: int,
    num_starts: int,
    num_threads: int,
    on_line: Callable[[str], None],
) -> Maps:
    """Search all these levels."""
    whole, num_decisions, begun = CellGraph(), 0, time.monotonic()
    for level in levels:
        with closing(LevelSearch(play, level, seed, num_starts, num_threads)) as search:
            search_level(search, on_line, LONGEST_SECONDS)
            whole.add_edges(search.graph.cells[search.graph.edges])
            num_decisions += search.num_decisions
    return Maps(whole, num_decisions, time.monotonic() - begun)


def search_line(level: Level, figures: SearchFigures, seconds: float) -> str:
    """The [SEARCH] line."""
    distance = "not found" if figures.start_distance is None else f"{figures.start_distance:,} cells from the start"
    return (
        f"[SEARCH] Level: {level} | Decisions: {figures.decisions:,} | Seconds: {seconds:.0f} | "
        f"Cells: {figures.cells:,} | Furthest: {figures.furthest_x:,} | Flag: {distance}"
    )
