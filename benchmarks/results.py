"""What becomes of a study's result: tables on the console, and a JSON file that grows with every study."""

import json
import math
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.measure import UNITS, Ratio, StudyResult
from benchmarks.noise import Noise
from mario_rl.storage.files import replace_durably


def show(console: Console, result: StudyResult) -> None:
    """Ratios first, then the tables behind them."""
    ratios = Table("figure", "value", "quartiles", "goal", "")
    for name, ratio in result.ratios.items():
        verdict = "" if ratio.reached is None else ("reached" if ratio.reached else "[red]not reached[/red]")
        ratios.add_row(
            escape(name),
            _figure(ratio.value, ratio),
            f"{_figure(ratio.low, ratio)} - {_figure(ratio.high, ratio)}",
            ratio.goal or "",
            verdict,
        )
    console.print(ratios)
    for columns, rows in groupby(result.rows, key=tuple):
        table = Table(*columns)
        for row in rows:
            table.add_row(*(escape(str(value)) for value in row.values()))
        console.print(table)
    for note in result.notes:
        console.print(note, style="dim", markup=False)


def _figure(value: float, ratio: Ratio) -> str:
    if math.isnan(value):
        return "unknown"
    if ratio.unit == "share":
        return f"{value:.2%}"
    return f"{value:,.0f}" if value >= 100 or ratio.unit == "count" else f"{value:.3g}{UNITS.get(ratio.unit, '')}"


class ResultsFile:
    """The JSON of a run. Each study is on disk as soon as it is over, and a crash leaves the file as it was before."""

    def __init__(self, path: Path | None, machine: dict[str, str | int], quick: bool) -> None:
        self._path = path
        self._content: dict[str, Any] = {"machine": machine, "quick": quick, "studies": {}, "left_out": {}}

    def add(self, name: str, result: StudyResult, noise: Noise) -> None:
        """Keep a study's result; OSError where it cannot be written."""
        self._content["studies"][name] = {
            "rows": result.rows,
            "ratios": {
                label: {field: _json_value(value) for field, value in ratio._asdict().items()}
                for label, ratio in result.ratios.items()
            },
            "notes": result.notes,
            "noise": {field: round(value, 4) for field, value in noise._asdict().items()},
        }
        self._write()

    def leave_out(self, name: str, reason: str) -> None:
        """Keep why there is no result."""
        self._content["left_out"][name] = reason
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            replace_durably(self._path, (json.dumps(self._content, indent=2) + "\n").encode())


def _json_value(value: Any) -> Any:
    """JSON has no word for what is not a number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
