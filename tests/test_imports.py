"""The architecture is the import direction: lower layers know nothing of higher ones."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "mario_rl"

# Lowest first. A module may import from its own layer's package and from lower layers, never upwards.
LAYERS = (
    ("errors", "compiling", "machine", "experience"),
    ("emulation", "channels", "replay"),
    ("environment", "agent"),
    ("storage", "telemetry", "settings", "accounts", "collecting", "learning", "evaluation"),
    ("app", "training"),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def _imports():
    """(importing part, imported part) for every import of our own package, inside functions too."""
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mario_rl"):
                modules = node.module.split(".")[1:2] or [alias.name for alias in node.names]
            elif isinstance(node, ast.Import):
                modules = [alias.name.split(".")[1] for alias in node.names if alias.name.startswith("mario_rl.")]
            else:
                continue
            yield from ((part, module) for module in modules if module != part)


def test_every_part_has_its_layer():
    parts = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert parts - {"__init__", "__pycache__"} == set(RANK)


def test_imports_go_down_only():
    upwards = {(part, module) for part, module in _imports() if RANK[module] > RANK[part]}
    assert not upwards


def test_collecting_and_learning_never_import_each_other():
    pairs = set(_imports())
    assert ("collecting", "learning") not in pairs
    assert ("learning", "collecting") not in pairs
    assert any(part == "collecting" for part, _ in pairs)  # the walk sees something
