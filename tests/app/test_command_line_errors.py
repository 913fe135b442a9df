"""What a user's mistake looks like from outside: exit code 2, one sentence a fault, no traceback, nothing written."""

import os
import signal
import subprocess
import sys

import pytest

from mario_rl.app import command_line, session
from mario_rl.app.signals import StopSignals
from mario_rl.settings import hardware
from mario_rl.storage import runs
from tests.small_runs import PROJECT, copy_project, small_settings

OPTIONS = ("--set", "--epochs", "--minutes", "--decisions", "--resume", "--init", "--seed", "--world", "--stage")
OPTIONS += ("--serial",)


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    copy_project(folder)
    (folder / "checkpoints").mkdir()
    (folder / "models").mkdir()
    return folder


@pytest.fixture
def elsewhere(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


@pytest.fixture
def main(project, monkeypatch, capsys):
    """`main` in this process, for the project's copy: exit code and the lines on stderr."""
    monkeypatch.setattr(sys, "path", [str(project), *sys.path])
    monkeypatch.delitem(sys.modules, "config_optimized", raising=False)  # the copy's is imported instead
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def run(*arguments):
        code = command_line.main(project, StopSignals(), list(arguments))
        output = capsys.readouterr()
        assert output.out == ""  # the plan is printed only when all is well
        return code, output.err.splitlines()

    yield run
    sys.modules.pop("config_optimized", None)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run_script(project, folder, *arguments):
    """The script as a user runs it, from any folder."""
    return subprocess.run(
        [sys.executable, str(project / "mario_rl_optimized.py"), *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def files_written(project):
    return [path for name in ("checkpoints", "models") for path in (project / name).rglob("*")]


def assert_refused(result, project, folder):
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert all(line.startswith("error: ") for line in result.stderr.splitlines())
    assert not files_written(project)
    assert not list(folder.iterdir())


# --- As a user runs it ------------------------------------------------------------------------------------------------


def test_help_says_what_a_limit_switches_off(project, capsys):
    with pytest.raises(SystemExit, match="0"):
        command_line.main(project, StopSignals(), ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "without --epochs, --minutes and --decisions ends when it has learned the level" in text
    assert "with any of them it goes on until that limit, learned or not" in text


def test_help_names_every_option(project, elsewhere):
    result = run_script(project, elsewhere, "--help")
    assert result.returncode == 0
    assert result.stderr == ""
    for option in OPTIONS:
        assert f"  {option}" in result.stdout
    assert "config_optimized.py" in result.stdout


def test_several_faults_come_together_from_any_folder(project, elsewhere):
    result = run_script(
        project, elsewhere, "--set", "BATCHSIZE=3", "--set", "GAMMA=2", "--set=REP_Q_SIZE=1", "--world", "9"
    )
    assert_refused(result, project, elsewhere)
    lines = result.stderr.splitlines()
    assert [line.split()[1] for line in lines] == ["BATCHSIZE", "WORLD", "GAMMA", "REP_Q_SIZE"]


def test_resume_without_any_run_says_so(project, elsewhere):
    result = run_script(project, elsewhere, "--resume")
    assert_refused(result, project, elsewhere)
    assert result.stderr == "error: There is no run in checkpoints/ to resume: start one without --resume.\n"


def test_a_file_that_is_no_model_is_refused(project, elsewhere, tmp_path):
    model = tmp_path / "model.safetensors"
    model.write_text("This is a letter to my aunt.\n" * 100)
    result = run_script(project, elsewhere, "--init", str(model))
    assert_refused(result, project, elsewhere)
    assert result.stderr.startswith(f"error: {model} is no model file")
    assert len(result.stderr.splitlines()) == 1


def test_a_config_file_with_a_syntax_error_is_named_with_its_line(project, elsewhere):
    config = project / "config_optimized.py"
    config.write_text(config.read_text().replace("BATCH_SIZE = 512", "BATCH_SIZE = = 512"))
    line = next(number for number, text in enumerate(config.read_text().splitlines(), 1) if "= =" in text)
    result = run_script(project, elsewhere)
    assert_refused(result, project, elsewhere)
    assert result.stderr == f"error: config_optimized.py, line {line}: invalid syntax.\n"


# --- The same in this process -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "BATCHSIZE=3"], "error: BATCHSIZE (--set) is not a setting: did you mean BATCH_SIZE?"),
        (["--set", "BATCH_SIZE"], "error: --set BATCH_SIZE: write it as NAME=VALUE"),
        (["--epochs", "0"], "error: --epochs 0: must be a whole number above 0."),
        (["--epochs", "1.5"], "error: --epochs 1.5: must be a whole number above 0."),
        (["--decisions", "-1"], "error: --decisions -1: must be a whole number above 0."),
        (["--minutes", "abc"], "error: --minutes abc: must be a number above 0."),
        (["--minutes", "nan"], "error: --minutes nan: must be a number above 0."),
        (["--minutes", "inf"], "error: --minutes inf: must be a number above 0."),
        (["--world", "9"], "error: WORLD = 9 (command line): must lie between 1 and 8."),
        (["--stage", "five"], "error: STAGE = 'five' (command line): must be a whole number."),
        (["--seed", "-1"], "error: SEED = -1 (command line): must lie between 0 and"),
        (["--init", "nowhere.safetensors"], "error: There is no model nowhere.safetensors: give the path"),
        (["--init", "x" * 300], f"error: {'x' * 300} cannot be read (File name too long): give a .safetensors"),
        (["--init", ""], "error: There is no model .: give the path"),
        (["--resume", "mario-1-1"], "error: There is no run in checkpoints/ to resume"),
        (["--set", "BUFFER_SIZE=1e9", "--set", "CHECKPOINT_REPLAY=False"], "error: Replay and rings need 7,0"),
        (["--set", "DEVICE=cuda"], "error: DEVICE = 'cuda', but torch sees no CUDA device"),
    ],
)
def test_a_wrong_input_is_refused_in_one_sentence(main, project, monkeypatch, arguments, expected):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 16 * 10**9}))
    code, lines = main(*arguments)
    assert code == 2
    assert len(lines) == 1
    assert lines[0].startswith(expected)
    assert not files_written(project)


def test_several_wrong_limits_come_together(main):
    code, lines = main("--epochs", "0", "--minutes", "abc", "--decisions", "x")
    assert code == 2
    assert [line.split()[1] for line in lines] == ["--epochs", "--decisions", "--minutes"]


def test_wrong_limits_and_wrong_settings_come_together(main):
    _, lines = main("--epochs", "0", "--set", "BATCHSIZE", "--world", "9")
    assert len(lines) == 3


def test_an_unknown_run_is_refused_with_the_names_of_those_there_are(main, project):
    for name in ("mario-1-2", "mario-1-1"):
        (project / "checkpoints" / name).mkdir()
        (project / "checkpoints" / name / "run.json").write_text("{}")
    code, lines = main("--resume", "mario-9-9")
    assert code == 2
    assert lines == ["error: There is no run 'mario-9-9' in checkpoints/; there are: mario-1-1, mario-1-2."]


@pytest.mark.parametrize("name", ["../elsewhere", "..", ".", "mario-1-1/checkpoint-000001", "*"])
def test_resume_takes_names_and_no_paths(main, project, elsewhere, name):
    (project / "checkpoints" / "mario-1-1").mkdir()
    for folder in (project / "checkpoints" / "mario-1-1", elsewhere, project):
        (folder / "run.json").write_text("{}")
    code, lines = main("--resume", name)
    assert code == 2
    assert lines[0].startswith(f"error: There is no run {name!r}")


@pytest.fixture
def run_of_1_1(project):
    """A run that plays 1-1; what is asked here is answered before its checkpoint is looked at."""

    def make(**changes):
        run = runs.Run("mario-a", project / "checkpoints" / "mario-a", project / "models")
        runs.write_record(run, small_settings(**changes).flat())
        (run.checkpoints / "checkpoint-000001").mkdir()
        return run

    yield make
    while runs._claims:
        runs._claims.pop().close()


@pytest.mark.parametrize(
    ("arguments", "wish"),
    [
        (["--stage", "2"], "--world 1 --stage 2"),
        (["--set", "WORLD=3"], "--world 3 --stage 1"),
        (["--set", "LEVELS=[(1,1),(1,2)]"], '--set "LEVELS=[(1, 1), (1, 2)]"'),
    ],
)
@pytest.mark.parametrize("kind", ["best", "newest", None])
def test_a_resumed_run_keeps_its_level(main, project, run_of_1_1, monkeypatch, arguments, wish, kind):
    run_of_1_1()
    monkeypatch.chdir(project)
    if kind:
        (project / "models" / f"mario-a-{kind}.safetensors").touch()
    init = f"--init models/mario-a-{kind}.safetensors " if kind else ""
    code, lines = main("--resume", *arguments)
    assert code == 2
    assert lines == [
        "error: Run mario-a plays 1-1, and its replay, evaluations and best model are of that: to play something "
        f"else, start a new run, for example with {init}{wish}."
    ]


@pytest.mark.parametrize("arguments", [["--stage", "2"], ["--set", "LEVELS=[]"], ["--set", "LEVELS=[(1,1)]"]])
def test_a_resumed_run_keeps_its_levels(main, run_of_1_1, arguments):
    run_of_1_1(LEVELS=[(1, 1), (1, 2)])
    code, (line,) = main("--resume", *arguments)
    assert code == 2
    assert line.startswith("error: Run mario-a plays 1-1 and 1-2, and its replay")


def test_a_resumed_run_may_be_told_the_level_that_it_plays(main, run_of_1_1):
    run_of_1_1()
    _, (line,) = main("--resume", "--world", "1", "--stage", "1")
    assert "checkpoint-000001 is damaged" in line  # which is looked at next


def test_a_level_that_levels_hide_is_refused_with_the_remedy(main):
    code, (line,) = main("--world", "1", "--stage", "2", "--set", "LEVELS=[(1,1)]")
    assert code == 2
    assert line.startswith("error: WORLD = 1 and STAGE = 2 (command line) would not be played: LEVELS = [(1, 1)]")
    assert line.endswith('add --set "LEVELS=[]".')


class WorkBeginsError(Exception):
    """All checks are passed."""


@pytest.mark.parametrize(
    ("emulator", "arguments", "advised"),
    [
        ("nes_py", [], True),
        ("fast", [], False),
        ("nes_py", ["--set", "NUM_PROCESSES=1"], False),  # that was the user's wish
        ("nes_py", ["--serial"], False),
    ],
)
def test_a_run_on_nes_py_is_told_how_all_cores_collect(project, monkeypatch, capsys, emulator, arguments, advised):
    def begin_work(*_arguments, **_options):
        raise WorkBeginsError

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(session, "choose_emulator", lambda *_: emulator)  # as where numba is missing
    monkeypatch.setattr(session, "connect", begin_work)
    monkeypatch.setattr(session, "num_cores", lambda: 6)
    monkeypatch.setattr(hardware, "prepare", lambda _: None)
    with pytest.raises(WorkBeginsError):
        command_line.main(project, StopSignals(), [*arguments, "--set=USE_AMP=False"])  # nothing to measure
    out = capsys.readouterr().out
    assert ("NUM_PROCESSES = 1 of 6 cores collect. Remedy: --set NUM_PROCESSES=6" in out) is advised


def test_a_run_whose_record_is_damaged_is_refused(main, project):
    run = project / "checkpoints" / "mario-1-1"
    run.mkdir()
    (run / "run.json").write_text('{"settings": ')
    (run / "checkpoint-000001").mkdir()
    code, lines = main("--resume")
    assert code == 2
    assert len(lines) == 1
    assert "run.json cannot be read" in lines[0]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("SEED = 1\nBATCH_SIZE = (512\n", "line 2: '(' was never closed."),
        ("X = BATCHSIZE * 2\n", "line 1: NameError: name 'BATCHSIZE' is not defined."),
        ("import a_package_nobody_has\n", "cannot be imported (No module named 'a_package_nobody_has')"),
        ("CPU_OVERRIDES = [1]\n", "CPU_OVERRIDES must be a dictionary of settings, not [1]."),
        ("", "SEED is missing from config_optimized.py: put it back."),
    ],
)
def test_a_config_file_that_does_not_work_is_named_with_the_reason(main, project, line, expected):
    (project / "config_optimized.py").write_text(line)
    code, lines = main()
    assert code == 2
    assert expected in lines[-1]
    assert not files_written(project)


def test_an_unknown_option_is_refused_and_options_are_not_abbreviated(main, capsys):
    for arguments in (["--epoch", "3"], ["--fast"]):
        with pytest.raises(SystemExit, match="2"):
            main(*arguments)
        assert f"unrecognized arguments: {arguments[0]}" in capsys.readouterr().err
