"""What becomes of a study's result: tables on the console, and a JSON file that grows with every study and run."""

import datetime
import json
import math
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.measure import UNITS, Ratio, StudyResult
from benchmarks.noise import Noise
from mario_rl.storage.files import replace_durably

FORMAT = "mario-rl benchmarks, format 1"  # by which a file is known to be ours

Machine = dict[str, str | int]


class Record(NamedTuple):
    """A study's result, and what it is of."""

    date: str  # the day, UTC
    commit: str
    machine: Machine
    quick: bool
    seconds: float | None  # that the study took
    noise: Noise | None
    result: StudyResult


class Results(NamedTuple):
    """All that a file holds, by the names of studies."""

    studies: dict[str, Record]
    left_out: dict[str, str]  # why, in the last run that tried


class ForeignFileError(Exception):
    """A file that no run of the benchmarks has written."""


def show(console: Console, result: StudyResult) -> None:
    """Ratios first, then the tables behind them."""
    ratios = Table("figure", "value", "quartiles", "threshold", "")
    for name, ratio in result.ratios.items():
        verdict = "" if ratio.reached is None else ("reached" if ratio.reached else "[red]not reached[/red]")
        ratios.add_row(
            escape(name),
            in_words(ratio.value, ratio.unit),
            f"{in_words(ratio.low, ratio.unit)} - {in_words(ratio.high, ratio.unit)}",
            ratio.threshold or "",
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


def in_words(value: float, unit: str) -> str:
    """A figure as tables show it."""
    if math.isnan(value):
        return "unknown"
    if unit == "share":
        return f"{value:.2%}"
    return f"{value:,.0f}" if value >= 100 or unit == "count" else f"{value:.3g}{UNITS.get(unit, '')}"


class ResultsFile:
    """The JSON of a run, and of the runs before it: a study that is measured again replaces its entry, others stay.

    Each study is on disk as soon as it is over, and a crash leaves the file as it was before.
    """

    def __init__(self, path: Path | None, machine: Machine, commit: str, *, quick: bool) -> None:
        """ForeignFileError where there is a file that is not ours."""
        self._path = path
        self._machine = machine
        self._commit = commit
        self._quick = quick
        self._content = Results({}, {}) if path is None or not path.exists() else read_results(path)

    def add(self, name: str, result: StudyResult, noise: Noise, seconds: float) -> None:
        """Keep a study's result; OSError where it cannot be written."""
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        record = Record(today, self._commit, self._machine, self._quick, seconds, noise, result)
        self._content.studies[name] = record
        self._content.left_out.pop(name, None)
        self._write()

    def leave_out(self, name: str, reason: str) -> None:
        """Keep why there is no result; one of an earlier run stays."""
        self._content.left_out[name] = reason
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            write_results(self._path, self._content)


def write_results(path: Path, results: Results) -> None:
    """Put them in the file's place."""
    studies = {name: _entry(record) for name, record in results.studies.items()}
    content = {"format": FORMAT, "studies": studies, "left_out": results.left_out}
    replace_durably(path, (json.dumps(content, indent=2) + "\n").encode())


def read_results(path: Path) -> Results:
    """What a file holds; ForeignFileError where it is not ours, OSError where it cannot be read."""
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ForeignFileError(path)
        studies = {name: _record(entry) for name, entry in content["studies"].items()}
        return Results(studies, {name: str(reason) for name, reason in content["left_out"].items()})
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        raise ForeignFileError(path) from None


def _entry(record: Record) -> dict[str, Any]:
    result = record.result
    return {
        "date": record.date,
        "commit": record.commit,
        "machine": record.machine,
        "quick": record.quick,
        "seconds": None if record.seconds is None else round(record.seconds, 1),
        "noise": None if record.noise is None else {k: _rounded(v) for k, v in record.noise._asdict().items()},
        "ratios": {
            label: {field: _json_value(value) for field, value in ratio._asdict().items()}
            for label, ratio in result.ratios.items()
        },
        "rows": result.rows,
        "notes": result.notes,
    }


def _record(entry: dict[str, Any]) -> Record:
    noise = entry["noise"]
    ratios = {label: _ratio(**fields) for label, fields in entry["ratios"].items()}
    rows = [dict(row.items()) for row in entry["rows"]]
    return Record(
        date=str(entry["date"]),
        commit=str(entry["commit"]),
        machine=dict(entry["machine"].items()),
        quick=bool(entry["quick"]),
        seconds=None if entry["seconds"] is None else float(entry["seconds"]),
        noise=None if noise is None else Noise(**{field: _number(value) for field, value in noise.items()}),
        result=StudyResult(rows, ratios, [str(note) for note in entry["notes"]]),
    )


def _ratio(
    *,
    value: float | None,
    low: float | None,
    high: float | None,
    unit: str,
    threshold: str | None,
    reached: bool | None,
) -> Ratio:
    return Ratio(_number(value), _number(low), _number(high), unit, threshold, reached)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _json_value(value: Any) -> Any:
    """JSON has no word for what is not a number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
