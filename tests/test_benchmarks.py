import json
import subprocess
import sys

import pytest

from benchmarks.command_line import STUDIES, main
from benchmarks.measure import Sample, at_least, at_most, interleave, quotient
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


@pytest.mark.parametrize("arguments", [["--study", "rings"], ["--study", "gil", "--json", "/nowhere/at/all.json"]])
def test_wrong_input_is_refused_in_one_sentence(arguments, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


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
