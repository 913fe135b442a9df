"""The architecture is the import direction: lower folders know nothing of higher ones."""

import ast
from functools import cache
from pathlib import Path

import pytest

from mario_rl.machine.compiling import SOURCES

PACKAGE = Path(__file__).parent.parent / "mario_rl"

# Lowest first. A folder imports from lower ranks only: neither upwards nor from its neighbours in the same rank.
RANKS = (
    ("errors", "ranges", "experience"),
    ("saved_part", "machine"),
    ("emulation", "channels", "replay"),
    ("mapping",),
    ("environment",),
    ("agent",),
    ("storage",),
    ("telemetry",),
    ("accounts",),
    ("collecting", "learning", "evaluation", "searching"),
    ("training",),
    ("settings",),
    ("app",),
)
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}
MODULES = {path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"}


@cache
def _imported(path):
    """The modules of our own package that a file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            module = PACKAGE.parent / (name.replace(".", "/") + ".py")
            if module in MODULES:
                found.add(module)
    return found


def _part(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_part_has_its_rank_and_few_modules_lie_at_the_root():
    assert {_part(path) for path in MODULES} == set(RANK)
    assert len([path for path in MODULES if path.parent == PACKAGE]) <= 4


@pytest.mark.parametrize("part", sorted(RANK))
def test_imports_go_down_only(part):
    pairs = [(path, module) for path in MODULES if _part(path) == part for module in _imported(path)]
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {module.relative_to(PACKAGE)}"
        for path, module in pairs
        if _part(module) != part and RANK[_part(module)] >= RANK[part]
    ]
    assert not wrong


def test_the_walk_sees_imports():
    assert PACKAGE / "errors.py" in _imported(PACKAGE / "emulation" / "rom.py")
    assert PACKAGE / "settings" / "hardware.py" in _imported(PACKAGE / "app" / "session.py")  # from a folder
    assert PACKAGE / "emulation" / "nes_py.py" in _imported(PACKAGE / "emulation" / "emulator.py")  # in a function


def test_all_that_compiled_code_is_made_of_counts_for_the_cache():
    """An edit in a file that the fingerprint misses would leave old code in the cache."""
    compiling = PACKAGE / "machine" / "compiling.py"
    needed = {path for path in MODULES if compiling in _imported(path)} | {compiling}
    while more := {module for path in needed for module in _imported(path)} - needed:
        needed |= more
    assert len(needed) > 20
    assert not {str(path.relative_to(PACKAGE)) for path in needed - set(SOURCES)}
