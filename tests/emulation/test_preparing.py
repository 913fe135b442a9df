"""The first start compiles once and says so; later ones load. Where that cannot be, nes-py is used, and we say why."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parent.parent.parent
CHOOSE = "from mario_rl.emulation.choosing import choose_emulator; print(choose_emulator('fast', print))"
FOLDER = "from mario_rl.machine.compiling import CACHE_FOLDER; print(CACHE_FOLDER.name)"


def _start(code, project=PROJECT, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=project,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _run(code, project=PROJECT, **environment):
    process = _start(code, project, **environment)
    output = process.communicate(timeout=110)[0]
    assert process.returncode == 0, output
    return output.splitlines()


def test_a_later_start_is_silent_and_ready():
    _run(CHOOSE)  # compiles when no other test has done so yet
    assert _run(CHOOSE) == ["fast"]


def test_a_cache_folder_that_cannot_be_used_leads_to_nes_py(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    sentence, remedy, chosen = _run(CHOOSE, XDG_CACHE_HOME=str(blocked))
    assert "cannot keep its compiled code" in sentence
    assert "using nes-py instead" in sentence
    assert "XDG_CACHE_HOME" in remedy
    assert chosen == "nes_py"


def test_without_numba_nes_py_is_used():
    sentence, chosen = _run(f"import sys; sys.modules['numba'] = None; {CHOOSE}")
    assert "needs numba" in sentence
    assert "pip install -r requirements.txt" in sentence
    assert chosen == "nes_py"


def test_an_edit_in_any_source_gives_another_cache_folder(tmp_path):
    shutil.copytree(PROJECT / "mario_rl", tmp_path / "mario_rl", ignore=shutil.ignore_patterns("__pycache__"))
    before = _run(FOLDER, tmp_path)
    assert _run(FOLDER, tmp_path) == before
    for name in ("fast/sprites.py", "rules.py"):
        source = tmp_path / "mario_rl" / "emulation" / name
        stat = source.stat()
        source.write_text(source.read_text() + "\n# edited\n")
        os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # the content counts, not only the time
        after = _run(FOLDER, tmp_path)
        assert after != before
        before = after


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_first_starts_compile_once(tmp_path):
    processes = [_start(CHOOSE, XDG_CACHE_HOME=str(tmp_path)) for _ in range(2)]
    outputs = [process.communicate(timeout=280)[0].splitlines() for process in processes]
    assert [output[-1] for output in outputs] == ["fast", "fast"]
    assert sorted(len(output) for output in outputs) == [1, 4]  # one compiled and told about it, the other waited
    compiling = max(outputs, key=len)
    assert compiling[0].startswith("Compiling the emulator")
    assert _run(CHOOSE, XDG_CACHE_HOME=str(tmp_path)) == ["fast"]
