import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
import time
import types

import pytest

from benchmarks.command_line import STUDIES, main
from benchmarks.cost_split import Timed
from benchmarks.measure import (
    MissingPackageError,
    Sample,
    StudyResult,
    at_least,
    at_most,
    interleave,
    quotient,
)
from benchmarks.noise import Noise
from tests.small_runs import PROJECT


def run_script(*arguments):
    """The script as a user runs it."""
    return subprocess.run(
        [sys.executable, str(PROJECT / "benchmark_performance.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_variants_take_turns_and_the_warm_up_is_left_out():
    order = []

    def measure(name, values):
        def one():
            order.append(name)
            return values.pop(0)

        return one

    samples = interleave({"a": measure("a", [100.0, 1.0, 2.0]), "b": measure("b", [100.0, 4.0, 6.0])}, repeats=2)
    assert order == ["a", "b"] * 3
    assert samples["a"].values == [1.0, 2.0]
    assert quotient(samples["b"], samples["a"]).values == [4.0, 3.0]


def test_goals_are_judged_by_the_median():
    sample = Sample([1.0, 5.0, 6.0])
    assert at_least(sample, 5.0, "x").reached
    assert not at_least(sample, 5.5, "x").reached
    assert at_most(sample, 5.0, "x").reached
    assert not at_most(sample, 4.0, "x").reached


def test_the_script_measures_a_study_and_writes_what_it_found(tmp_path):
    result = tmp_path / "result.json"
    arguments = ["--quick", "--study", "gil", "--json", str(result), "--plots", str(tmp_path / "charts")]
    finished = run_script(*arguments)
    assert finished.returncode == 0, finished.stderr
    content = json.loads(result.read_text())
    assert content["machine"]["cores"] >= 1
    study = content["studies"]["gil"]
    assert len(study["rows"]) == 1 + 2 * 3  # nobody trains; three ways of sampling with one worker and with four
    assert all(ratio["value"] > 0 for ratio in study["ratios"].values())
    assert (tmp_path / "charts" / "gil.png").read_bytes().startswith(b"\x89PNG")


def test_the_studies_are_listed_with_their_questions(capsys):
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(STUDIES)
    assert all(line.endswith("?") for line in lines)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--study", "rings"],
        ["--study", "gil", "--json", "/nowhere/at/all.json"],
        ["--study", "gil", "--json", "/proc/results.json"],
        ["--study", "gil", "--json", "x" * 5_000],
        ["--study", "gil", "--json", "no\0name"],
        ["--study", "gil", "--plots", "/proc/charts"],
        ["--study", "gil", "--plots", "x" * 5_000],
    ],
)
def test_wrong_input_is_refused_in_one_sentence(arguments, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert not captured.out  # nothing was measured


def test_what_is_no_ordinary_file_is_never_replaced(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")  # a device would be lost for everybody if this were to fail
    assert main(["--study", "gil", "--json", str(tmp_path / "pipe")]) == 2
    assert "no ordinary file" in capsys.readouterr().err
    assert (tmp_path / "pipe").is_fifo()


def test_charts_are_not_drawn_into_a_file(tmp_path, capsys):
    (tmp_path / "charts").touch()
    assert main(["--study", "gil", "--plots", str(tmp_path / "charts")]) == 2
    assert "this is a file" in capsys.readouterr().err


def use_studies(monkeypatch, **studies):
    """Put other studies in the place of the real ones."""
    for name, run in studies.items():
        module = types.SimpleNamespace(QUESTION="What?", SECONDS={"quick": 1, "full": 1}, run=run)
        monkeypatch.setitem(sys.modules, f"benchmarks.{name}", module)
    monkeypatch.setattr("benchmarks.command_line.STUDIES", tuple(studies))


def small_result(_quick):
    return StudyResult([{"a": 1}, {"b": 2, "c": 3}], {"unknown": at_least(Sample([math.nan]), 1.0, "x")}, ["[note]"])


def refuse_constants(name):
    raise AssertionError(f"{name} is not JSON")


def test_a_study_that_fails_does_not_take_the_others_with_it(monkeypatch, tmp_path, capsys):
    def broken(_quick):
        raise ImportError("a [broken] package\nand more")

    def missing(_quick):
        raise MissingPackageError("a package is not installed")

    use_studies(monkeypatch, gil=small_result, locks=broken, replay=missing, publish=small_result)
    result = tmp_path / "result.json"
    assert main(["--json", str(result)]) == 1
    output = capsys.readouterr().out
    assert "failed: ImportError: a [broken] package\n" in output
    assert "left out: a package is not installed\n" in output
    content = json.loads(result.read_text(), parse_constant=refuse_constants)
    assert list(content["studies"]) == ["gil", "publish"]
    assert list(content["left_out"]) == ["locks", "replay"]
    assert content["studies"]["gil"]["rows"] == [{"a": 1}, {"b": 2, "c": 3}]
    assert 0 <= content["studies"]["gil"]["noise"]["others_share"] <= 1


def test_a_missing_package_is_no_failure(monkeypatch):
    def missing(_quick):
        raise MissingPackageError("a package is not installed")

    use_studies(monkeypatch, gil=missing)
    assert main([]) == 0


def test_an_interrupt_keeps_what_was_measured(monkeypatch, tmp_path, capsys):
    result = tmp_path / "result.json"

    def interrupted(_quick):
        assert "gil" in json.loads(result.read_text())["studies"]  # on disk before the next study begins
        raise KeyboardInterrupt

    use_studies(monkeypatch, gil=small_result, locks=interrupted, publish=small_result)
    assert main(["--json", str(result)]) == 130
    assert "interrupted" in capsys.readouterr().out
    assert list(json.loads(result.read_text())["studies"]) == ["gil"]
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_processes_that_a_failed_study_leaves_are_ended(monkeypatch):
    def leave_a_process(_quick):
        multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,), daemon=True).start()
        raise ValueError("halfway")

    use_studies(monkeypatch, gil=leave_a_process)
    assert main([]) == 1
    assert not multiprocessing.active_children()


def test_a_disk_that_fills_up_does_not_end_the_run(monkeypatch, capsys, tmp_path):
    def full(_path, _content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("benchmarks.results.replace_durably", full)
    use_studies(monkeypatch, gil=small_result, locks=small_result)
    assert main(["--json", str(tmp_path / "result.json")]) == 1
    assert capsys.readouterr().out.count("No space left on device") == 2


def test_a_noisy_machine_is_told_and_kept(monkeypatch, tmp_path, capsys):
    noise = Noise(others_share=0.4, stolen_share=0.0, gigaflops_before=100.0, gigaflops_after=99.0)
    monkeypatch.setattr("benchmarks.noise.NoiseWatch.noise", lambda self: noise)
    use_studies(monkeypatch, gil=small_result)
    result = tmp_path / "result.json"
    assert main(["--json", str(result)]) == 0
    assert "The machine was noisy" in capsys.readouterr().out
    assert json.loads(result.read_text())["studies"]["gil"]["noise"] == noise._asdict()


@pytest.mark.parametrize(
    ("noise", "loud"),
    [
        (Noise(0.01, 0.0, 100.0, 98.0), False),
        (Noise(0.1, 0.1, 100.0, 98.0), True),  # together too much
        (Noise(0.0, 0.0, 100.0, 60.0), True),  # the machine became slower
    ],
)
def test_noise_is_what_others_take_or_a_changing_speed(noise, loud):
    assert noise.is_loud == loud


def test_quartiles_stay_within_what_was_measured():
    sample = Sample([1.0, 2.0])
    assert (sample.low, sample.high) == (1.25, 1.75)
    assert (Sample([3.0]).low, Sample([3.0]).high) == (3.0, 3.0)


def test_a_goal_is_not_judged_by_what_is_not_a_number():
    nothing = quotient(Sample([1.0]), Sample([0.0]))
    assert at_least(nothing, 1.0, "x").reached is None
    assert at_most(nothing, 1.0, "x").reached is None


def test_the_cost_split_adds_up_what_a_function_takes_by_its_clock():
    timed = Timed(lambda amount, factor: amount * factor, iter([1.0, 3.5, 10.0, 10.25]).__next__)
    assert (timed(2, factor=3), timed(4, factor=1)) == (6, 4)
    assert timed.seconds == 2.75


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("study", STUDIES)
def test_every_study_ends_with_rows_and_ratios(study, tmp_path):
    result = tmp_path / "result.json"
    arguments = ["--quick", "--study", study, "--json", str(result), "--plots", str(tmp_path)]
    finished = run_script(*arguments)
    assert finished.returncode == 0, finished.stderr
    studies = json.loads(result.read_text())["studies"]
    if study not in studies:
        assert "left out" in finished.stdout  # a package is missing
        return
    assert studies[study]["rows"]
    assert studies[study]["ratios"]
    assert (tmp_path / f"{study}.png").exists()


def test_the_example_in_the_page_about_profiling_runs(capsys):
    text = (PROJECT / "docs" / "profiling.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(example.replace("2.0", "0.1"), {})
    assert "convolution_backward" in capsys.readouterr().out
