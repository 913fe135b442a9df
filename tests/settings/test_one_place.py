"""A setting stands in two places: its value in config_optimized.py, and a field of the part that uses it."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from mario_rl.settings.choosing import SettingsError, choose_resumed_settings
from mario_rl.settings.settings import NAMES, PARTS
from tests.small_runs import PROJECT, SMALL, only_run, small_settings

VALUES = small_settings().flat()


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the project in which a part has one setting more, and nothing else was changed."""
    folder = tmp_path_factory.mktemp("project")
    shutil.copytree(PROJECT / "mario_rl", folder / "mario_rl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("mario_rl_optimized.py", "config_optimized.py"):
        shutil.copy(PROJECT / name, folder / name)
    part = folder / "mario_rl" / "agent" / "exploration.py"
    field = "    explore_max_hold: Annotated[int, Between(1, 1000)]\n"
    assert part.read_text().count(field) == 1
    part.write_text(part.read_text().replace(field, field + "    courage: Annotated[float, Between(0.0, 2.0)]\n"))
    config = folder / "config_optimized.py"
    line = "# --- Replay ---"
    assert config.read_text().count(line) == 1
    config.write_text(config.read_text().replace(line, f"COURAGE = 0.25  # a reason\n\n{line}"))
    return folder


def _run(project, *arguments):
    options = [f"--set={name}={value}" for name, value in (SMALL | {"EMULATOR": "nes_py"}).items()]
    return _python(project, "mario_rl_optimized.py", *options, "--serial", "--decisions", "1", *arguments)


def _python(project, *arguments):
    environment = os.environ | {"PYTHONPATH": str(project)}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, env=environment, check=False)


def test_a_new_setting_is_checked(project):
    answer = _run(project, "--set", "COURAGE=3")
    assert answer.returncode == 2
    assert answer.stderr == "error: COURAGE = 3 (command line): must lie between 0.0 and 2.0.\n"


def test_a_new_setting_is_read_from_the_file_and_the_command_line_printed_and_stored(project):
    code = (
        "import pathlib; from mario_rl.settings.choosing import choose_settings; "
        "from mario_rl.settings.config_file import load_config_file; "
        "chosen = choose_settings(*load_config_file(pathlib.Path()), {}, has_gpu=lambda: False).settings; "
        "print(chosen.exploration.courage)"
    )
    assert _python(project, "-c", code).stdout == "0.25\n"
    answer = _run(project, "--set", "COURAGE=1.5")
    assert "COURAGE=1.5" in answer.stdout.replace("\n", " ")
    record = only_run(project) / "run.json"
    assert json.loads(record.read_text())["settings"]["COURAGE"] == 1.5


def test_all_parts_have_names_of_their_own():
    assert len(NAMES) == sum(len(part.__dataclass_fields__) for part in PARTS.values())


# --- A run of another version


def _resume(saved, assigned=None):
    config = VALUES | {"GAMMA": 0.5, "NETWORK": "convolutions"}
    return choose_resumed_settings(saved, lambda: (config, {"SEED": 77}), assigned or {}, has_gpu=lambda: False)


def test_what_an_earlier_version_lacks_comes_from_the_file_and_is_named():
    saved = {name: value for name, value in VALUES.items() if name not in ("GAMMA", "SEED")}
    chosen = _resume(saved | {"BATCH_SIZE": 24})
    assert sorted(chosen.added) == ["GAMMA", "SEED"]
    assert chosen.settings.sampling.gamma == 0.5
    assert chosen.settings.run.seed == 77  # as on this machine, which has no GPU
    assert chosen.settings.learning.batch_size == 24
    assert (chosen.sources["GAMMA"], chosen.sources["BATCH_SIZE"]) == ("config", "run")
    changed = _resume(saved, {"GAMMA": 0.7})
    assert changed.settings.sampling.gamma == 0.7
    assert changed.added == ["SEED"]
    assert _resume(saved, {"DEVICE": "cuda"}).settings.run.seed == VALUES["SEED"]


def test_a_fault_in_the_file_that_the_run_does_not_need_does_not_matter():
    saved = {name: value for name, value in VALUES.items() if name != "GAMMA"}
    config = VALUES | {"BATCH_SIZE": "large", "NONSENSE": 1}
    chosen = choose_resumed_settings(saved, lambda: (config, {}), {}, has_gpu=lambda: False)
    assert chosen.added == ["GAMMA"]
    with pytest.raises(SettingsError, match=r"GAMMA is missing from config_optimized\.py: put it back"):
        choose_resumed_settings(saved, lambda: ({}, {}), {}, has_gpu=lambda: False)


def test_what_is_no_setting_any_more_is_named_and_left_out():
    chosen = _resume(VALUES | {"OLD_HABIT": 3})
    assert chosen.left_out == ["OLD_HABIT"]
    assert chosen.added == []
    assert chosen.settings.flat() == VALUES
