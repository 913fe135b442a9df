"""The page docs/benchmarks.md and its charts, written out of docs/benchmarks.json: `benchmark_performance.py --report`.

A study's question and what it teaches stand in its module; every figure comes from the file.
"""

import textwrap
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.charts import chart_ratios, draw_chart
from benchmarks.measure import Ratio, StudyResult
from benchmarks.results import ForeignFileError, Machine, Record, Results, in_words, read_results
from mario_rl.errors import UserError
from mario_rl.storage.files import replace_durably

DOCS = Path(__file__).resolve().parent.parent / "docs"
RESULTS, PAGE, CHARTS = "benchmarks.json", "benchmarks.md", Path("media") / "benchmarks"
WIDTH = 120

MEASURING = (
    "Each study imports the product's own parts. Variants are measured in turn (A B A B …) in one run, the first round "
    "is left out where it warms something up, and a figure is a median with its quartiles; trust ratios, within their "
    "spread. All sides of a comparison train on the device that the product would choose (`locks` uses the CPU for "
    "all). A threshold that is missed is told, not failed: a timing is never a test.",
    "Around each study the run notes how much of the CPU other processes used meanwhile, what the host of a virtual "
    "machine took, and the speed of one and the same matrix product before and after. A study whose package is missing "
    "is left out, one that fails makes the exit code 1, and the others run. `--json FILE` is written after each study: "
    "Ctrl-C loses no more than the study in hand, and studies that the file already holds stay until they are measured "
    "again.",
)


def write_report(modules: Mapping[str, Any], docs: Path) -> Path:
    """Write the page and its charts; UserError where the results cannot be read or the page not be written."""
    source = docs / RESULTS
    try:
        results = read_results(source)
        (docs / CHARTS).mkdir(parents=True, exist_ok=True)
        for name in modules.keys() & results.studies.keys():
            draw_chart(name, results.studies[name].result, docs / CHARTS)
        replace_durably(docs / PAGE, make_page(results, modules).encode())
    except ForeignFileError:
        raise UserError(f"--report {source}: this is not a results file; make one with --json.") from None
    except OSError as error:
        message = (
            f"--report {error.filename or source}: {error.strerror or error}; it needs {RESULTS}, made with --json."
        )
        raise UserError(message) from None
    return docs / PAGE


def make_page(results: Results, modules: Mapping[str, Any]) -> str:
    """The page's text. Studies come in the order of the modules, whatever their order in the file."""
    records = {name: results.studies[name] for name in modules if name in results.studies}
    blocks = [
        "# Benchmarks",
        _wrapped(
            "This page is written by `python benchmark_performance.py --report` out of [benchmarks.json]"
            "(benchmarks.json). What the columns of its tables mean, and figures that no study gives, are in "
            "[measurements.md](measurements.md)."
        ),
        _commands(modules),
        *map(_wrapped, MEASURING),
        *_machines(records),
    ]
    for name, record in records.items():
        blocks += _study(name, modules[name], record)
    return "\n\n".join(blocks) + "\n"


def _commands(modules: Mapping[str, Any]) -> str:
    full, quick = (sum(module.SECONDS[length] for module in modules.values()) / 60 for length in ("full", "quick"))
    lines = {
        "pip install -r requirements-bench.txt": "",
        "python benchmark_performance.py": f"all {len(modules)} studies, some {full:.0f} minutes on 2 cores",
        "python benchmark_performance.py --quick": f"{quick:.0f} minutes",
        "python benchmark_performance.py --list": "what each one asks",
        "python benchmark_performance.py --study replay --json results.json --plots charts": "",
    }
    return "\n".join(["```", *(f"{line:50} # {remark}" if remark else line for line, remark in lines.items()), "```"])


def _machines(records: Mapping[str, Record]) -> list[str]:
    """Which machines the figures are of; and of which studies, where there are several."""
    studies: dict[str, list[str]] = {}
    for name, record in records.items():
        studies.setdefault(_machine(record.machine), []).append(f"`{name}`")
    if not studies:
        return []
    if len(studies) == 1:
        text = _wrapped(f"All figures are of one machine: {next(iter(studies))}.")
    else:
        text = "\n".join(
            ["Machines:", *(_wrapped(f"- {machine}: {', '.join(names)}", "  ") for machine, names in studies.items())]
        )
    has_gpu = any(record.machine.get("gpu", "none") != "none" for record in records.values())
    return [text] if has_gpu else [text, "Nothing here has been run on a GPU."]


def _machine(machine: Machine) -> str:
    gpu = machine.get("gpu", "none")
    bfloat16 = {"yes": " with bfloat16 arithmetic", "no": " without bfloat16 arithmetic"}.get(
        str(machine.get("bfloat16", "")), ""
    )
    return (
        f"{machine.get('cpu', 'an unknown CPU')}{bfloat16}, {machine.get('cores', '?')} cores, "
        f"{machine.get('memory_gib', '?')} GiB, {'no GPU' if gpu == 'none' else gpu}; {machine.get('system', '?')}, "
        f"Python {machine.get('python', '?')}, torch {machine.get('torch', '?')}"
    )


def _study(name: str, module: Any, record: Record) -> list[str]:
    result = record.result
    blocks = [f"## `{name}`: {module.QUESTION}", *_tables(result)]
    if chart_ratios(result):
        blocks.append(f"![{name}]({(CHARTS / name).as_posix()}.png)")
    return [*blocks, _wrapped(_origin(record)), _wrapped(module.TEACHES)]


def _tables(result: StudyResult) -> list[str]:
    """Ratios first; a row with other columns than the one before it begins another table."""
    tables = [
        _table(("figure", "median", "quartiles", "threshold"), ([n, *_cells(r)] for n, r in result.ratios.items()))
    ]
    for columns, rows in groupby(result.rows, key=tuple):
        tables.append(_table(columns, (row.values() for row in rows)))
    return tables


def _table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    columns = list(columns)
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _cells(ratio: Ratio) -> list[str]:
    median, low, high = (in_words(v, ratio.unit).replace("x", "×") for v in (ratio.value, ratio.low, ratio.high))
    threshold = (ratio.threshold or "").replace(">=", "≥").replace("<=", "≤")
    verdict = {None: "", True: " ✓", False: " **missed**"}[ratio.reached]
    return [f"**{median}**", f"{low} – {high}", threshold + verdict]


def _origin(record: Record) -> str:
    """One line: what the figures are of, and what disturbed them."""
    commit, _, dirty = record.commit.partition("-")
    parts = [f"Commit {commit[:7]}{' with changes' if dirty else ''}, {record.date}"]
    parts += ["a quick run"] if record.quick else []
    parts += [f"{record.seconds:,.0f} s"] if record.seconds is not None else []
    noise = "noise was not recorded" if record.noise is None else str(record.noise)
    loud = ": a noisy machine, trust it less" if record.noise is not None and record.noise.is_loud else ""
    return f"{', '.join(parts)}; {noise}{loud}."


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
