"""A search on disk, so that one that was stopped goes on where it was. Plain arrays in one .npz file, no pickle."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mario_rl.emulation.rules import Level
from mario_rl.environment.task import PlayRules
from mario_rl.searching.search import LevelSearch
from mario_rl.storage.files import replace_durably

FORMAT = 1


def save_search(file: Path, search: LevelSearch) -> None:
    """Write everything that `continue_search` needs."""
    buffer = io.BytesIO()
    np.savez(buffer, facts=np.array(json.dumps({"format": FORMAT, **search.facts})), **search.arrays())
    file.parent.mkdir(exist_ok=True)
    replace_durably(file, buffer.getvalue())


def continue_search(
    file: Path,
    play: PlayRules,
    level: Level,
    seed: int,
    num_starts: int,
    num_threads: int,
    on_line: Callable[[str], None],
) -> LevelSearch:
    """The search of this level that the file holds, or a new one where there is none that fits."""
    search = LevelSearch(play, level, seed, num_starts, num_threads)
    try:
        facts, arrays = _read(file)
        search.load(facts, arrays)
        on_line(f"Going on with {file.name}: {search.num_decisions:,} decisions so far (--afresh begins anew).")
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        on_line(f"{file.name} is damaged, or of another version: the search begins anew.")
        search.close()
        return LevelSearch(play, level, seed, num_starts, num_threads)
    return search


def _read(file: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as saved:
        arrays = {name: saved[name] for name in saved.files}
    facts = json.loads(str(arrays.pop("facts")))
    if facts["format"] != FORMAT:
        raise ValueError(f"format {facts['format']}")
    return facts, arrays
