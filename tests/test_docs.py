"""The documents stay readable: short lines, short table cells, links that lead somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mario_rl.app.levels_report import cards_of, page

ROOT = Path(__file__).parent.parent
MAX_README_LINES = 120
MAX_LINE = 120
MAX_CELL = 160
SKIPPED_FOLDERS = {"runs"}  # what trainings printed, kept as it was

DOCUMENTS = sorted(
    path
    for folder in (".", "docs", "models", "checkpoints", "benchmarks", "tests")
    for path in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")
    if not SKIPPED_FOLDERS & set(path.relative_to(ROOT).parts)
)
_LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
_CODE = re.compile(r"`[^`]*`")


def _lines(document: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines outside of code fences."""
    in_fence = False
    for number, line in enumerate(document.read_text().splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_fence = not in_fence
        elif not in_fence:
            yield number, line


def _is_table(line: str) -> bool:
    return line.lstrip().startswith("|")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


documents = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def test_the_documents_are_found():
    names = {str(path.relative_to(ROOT)) for path in DOCUMENTS}
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/architecture.md", "models/README.md"} <= names


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


@documents
def test_prose_is_wrapped(document):
    too_long = [f"{n}: {len(line)}" for n, line in _lines(document) if not _is_table(line) and len(line) > MAX_LINE]
    assert not too_long


@documents
def test_table_cells_are_short(document):
    too_long = [
        f"{n}: {cell[:60]}..."
        for n, line in _lines(document)
        if _is_table(line)
        for cell in _cells(line)
        if len(cell) > MAX_CELL
    ]
    assert not too_long


@documents
def test_relative_links_lead_somewhere(document):
    text = "\n".join(line for _, line in _lines(document))  # as a whole: the words of a link may be wrapped
    targets = set(_LINK.findall(_CODE.sub("", text)))
    paths = {target.partition("#")[0] for target in targets if "://" not in target and not target.startswith("mailto:")}
    missing = {path for path in paths if path and not (document.parent / path).exists()}
    assert not missing


def test_the_page_of_levels_is_that_of_the_models():
    """`python mario_rl_optimized.py levels --report docs` writes it."""
    assert (ROOT / "docs" / "levels.md").read_text() == "\n".join(page(cards_of(ROOT)))
