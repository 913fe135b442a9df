import datetime
import json
import math
import multiprocessing
import os
import re
import subprocess
import sys
import time
import types
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.command_line import STUDIES, main, study_modules
from benchmarks.cost_split import Timed
from benchmarks.measure import (
    MissingPackageError,
    Sample,
    StudyResult,
    as_is,
    at_least,
    at_most,
    interleave,
    quotient,
)
from benchmarks.noise import Noise
from benchmarks.one_game import OneGame
from benchmarks.report import make_page
from benchmarks.results import FORMAT, Record, Results, read_results, write_results
from mario_rl.environment.episodes import Episodes
from mario_rl.experience import FIELDS, Mark, Rows
from tests.rules import PLAY, TASK
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


def test_thresholds_are_judged_by_the_median():
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
    study = content["studies"]["gil"]
    assert study["machine"]["cores"] >= 1
    assert study["quick"] is True
    assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?|unknown", study["commit"])
    assert study["seconds"] > 0
    assert len(study["rows"]) == 1 + 2 * 3  # no training; three ways of sampling with one worker and with four
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
    os.mkfifo(tmp_path / "pipe")  # a device would be lost if this were to fail
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
        module = types.SimpleNamespace(QUESTION="What?", TEACHES="This.", SECONDS={"quick": 1, "full": 1}, run=run)
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


def test_a_study_that_is_measured_again_replaces_its_entry_and_others_stay(monkeypatch, tmp_path):
    def missing(_quick):
        raise MissingPackageError("a package is not installed")

    result = tmp_path / "result.json"
    monkeypatch.setattr("benchmarks.command_line.git_commit", lambda: "first")
    use_studies(monkeypatch, gil=small_result, locks=small_result, replay=small_result, publish=missing)
    assert main(["--quick", "--json", str(result)]) == 0
    before = json.loads(result.read_text())
    monkeypatch.setattr("benchmarks.command_line.git_commit", lambda: "second")
    use_studies(monkeypatch, gil=small_result, locks=small_result, replay=missing, publish=small_result)
    assert main(["--study", "locks", "--study", "replay", "--study", "publish", "--json", str(result)]) == 0
    after = json.loads(result.read_text())
    assert {name: study["commit"] for name, study in after["studies"].items()} == {
        "gil": "first",
        "locks": "second",
        "replay": "first",  # left out this time
        "publish": "second",
    }
    assert after["studies"]["gil"] == before["studies"]["gil"]
    assert (before["studies"]["locks"]["quick"], after["studies"]["locks"]["quick"]) == (True, False)
    assert (list(before["left_out"]), list(after["left_out"])) == (["publish"], ["replay"])
    today = datetime.datetime.now(datetime.UTC).date()
    assert today - datetime.date.fromisoformat(after["studies"]["locks"]["date"]) <= datetime.timedelta(days=1)


OURS = {"format": FORMAT, "studies": {}, "left_out": {}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe\x00",
        b"[]",
        b"[" * 100_000,
        json.dumps(OURS | {"format": "another"}).encode(),
        json.dumps({"machine": {}, "studies": {}}).encode(),
        json.dumps(OURS | {"studies": {"gil": {"rows": []}}}).encode(),
        json.dumps(OURS | {"studies": []}).encode(),
    ],
)
def test_a_file_that_is_not_ours_is_refused_and_stays_as_it_is(content, tmp_path, capsys):
    file = tmp_path / "result.json"
    file.write_bytes(content)
    assert main(["--study", "gil", "--json", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert "not a results file" in captured.err
    assert not captured.out  # nothing was measured
    assert file.read_bytes() == content


def test_what_is_written_is_read_back(tmp_path):
    ratios = {
        "a": at_least(Sample([1.0, 2.0]), 1.0, "x"),
        "b": as_is(Sample([0.5]), "share"),
    }
    machine = {"cpu": "some", "cores": 2}
    noise = Noise(0.25, 0.0, 100.0, 98.0)
    record = Record("2026-11-18", "abc", machine, False, 1.5, noise, StudyResult([{"a": "1"}], ratios, ["note"]))
    results = Results({"gil": record, "locks": record._replace(noise=None, seconds=None)}, {"replay": "left out"})
    write_results(tmp_path / "result.json", results)
    assert read_results(tmp_path / "result.json") == results


def test_figures_that_are_not_a_number_are_read_back_as_such(tmp_path):
    noise = Noise(0.25, math.nan, math.nan, math.nan)
    record = Record("2026-11-18", "abc", {}, False, None, noise, small_result(False))
    write_results(tmp_path / "result.json", Results({"gil": record}, {}))
    read = read_results(tmp_path / "result.json").studies["gil"]
    assert math.isnan(read.result.ratios["unknown"].value)
    assert str(read.noise) == "other processes used 25% of the CPU"
    assert read.noise.is_loud


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


def test_a_threshold_is_not_judged_by_what_is_not_a_number():
    nothing = quotient(Sample([1.0]), Sample([0.0]))
    assert at_least(nothing, 1.0, "x").reached is None
    assert at_most(nothing, 1.0, "x").reached is None


def test_the_cost_split_adds_up_what_a_function_takes_by_its_clock():
    timed = Timed(lambda amount, factor: amount * factor, iter([1.0, 3.5, 10.0, 10.25]).__next__)
    assert (timed(2, factor=3), timed(4, factor=1)) == (6, 4)
    assert timed.seconds == 2.75


def test_a_design_that_plays_one_game_sees_and_earns_what_the_product_trains_on():
    num_ticks = 400
    rng = np.random.default_rng(0)
    rows = Rows(*(np.zeros((1, num_ticks + 1, *field.shape), field.dtype) for field in FIELDS))
    num_terminated = num_truncated = 0
    with closing(Episodes(PLAY, TASK, 1, rng)) as episodes, closing(OneGame(PLAY, TASK, 0)) as game:
        episodes.draw(rows.frame, 0)
        stack, over = game.reset(), False
        shown = [rows.frame[0, 0]] * 4
        for tick in range(num_ticks):
            assert np.array_equal(stack, shown)
            # Now and then the joypad is left alone until the episode is cut.
            action = 0 if tick % 80 < 40 else int(rng.integers(game.num_actions))
            episodes.play(np.array([action]), rows, tick, rows.frame, tick + 1)
            picture = rows.frame[0, tick + 1]
            if over:  # the product spends a tick on the last picture, and begins anew meanwhile
                assert rows.marks[0, tick] & Mark.FINAL
                stack, over = game.reset(), False
                shown = [picture] * 4
                continue
            stack, reward, terminated, truncated = game.step(action)
            assert reward == pytest.approx(rows.reward[0, tick], rel=1e-6)
            assert terminated == bool(rows.marks[0, tick] & Mark.TERMINATED)
            assert (truncated and not terminated) == bool(rows.marks[0, tick] & Mark.TRUNCATED)
            over = terminated or truncated
            num_terminated += terminated
            num_truncated += truncated
            shown = [*shown[1:], picture]
    assert num_terminated
    assert num_truncated


def test_a_design_that_plays_one_game_is_shown_the_buttons_that_it_holds():
    with closing(OneGame(PLAY, TASK, 0)) as game:
        assert not game.reset()[:, :8, :16].any()
        stack = game.step(2)[0]  # right and A
        assert (stack[-1, :8, :8] == 255).all()
        assert not stack[-1, :8, 8:16].any()
        assert not stack[:-1, :8, :16].any()  # nor was anything held before


def test_one_game_begins_after_some_idle_frames_as_the_product_s_do():
    rules = replace(TASK, noop_start_max_frames=30)
    with closing(OneGame(PLAY, rules, 0)) as game:
        beginnings = {game.reset().tobytes() for _ in range(40)}
    assert len(beginnings) > 1


def test_the_page_about_benchmarks_is_made_of_the_results_file():
    """Edit benchmarks/ or measure again, then run `python benchmark_performance.py --report`."""
    docs = PROJECT / "docs"
    assert (docs / "benchmarks.md").read_text() == make_page(read_results(docs / "benchmarks.json"), study_modules())


def test_the_page_about_benchmarks_fits_a_screen():
    for line in (PROJECT / "docs" / "benchmarks.md").read_text().splitlines():
        if line.startswith("|"):
            assert max(len(cell.strip()) for cell in line.split("|")) <= 160
        elif not line.startswith("#"):
            assert len(line) <= 120


@pytest.mark.parametrize("study", STUDIES)
def test_what_a_study_teaches_takes_three_sentences_at_most(study):
    assert 1 <= len(re.findall(r"[.!?](?:\s|$)", study_modules()[study].TEACHES)) <= 3


def test_the_report_is_written_with_its_charts(monkeypatch, tmp_path, capsys):
    ratios = {
        "gain": at_least(Sample([2.0, 3.0]), 1.0, "x"),
        "loss | waste": at_most(Sample([0.5]), 0.1, "share"),
        "unknown": at_least(Sample([math.nan]), 1.0, "x"),
    }
    rows = [{"a": "1", "b": "2"}, {"c": "3"}]
    record = Record("2026-11-18", "0123456789-dirty", {"cpu": "one"}, True, 5.0, None, StudyResult(rows, ratios, []))
    loud = Noise(others_share=0.4, stolen_share=0.0, gigaflops_before=100.0, gigaflops_after=99.0)
    others = {"locks": record._replace(machine={"cpu": "another"}, noise=loud)}
    write_results(tmp_path / "benchmarks.json", Results(others | {"gil": record}, {}))
    use_studies(monkeypatch, gil=small_result, locks=small_result, replay=small_result)
    monkeypatch.setattr("benchmarks.command_line.DOCS", tmp_path)
    assert main(["--report"]) == 0
    page = (tmp_path / "benchmarks.md").read_text()
    assert str(tmp_path / "benchmarks.md") in capsys.readouterr().out
    assert re.findall(r"^## `(\w+)`: What\?$", page, flags=re.MULTILINE) == ["gil", "locks"]
    assert "| gain | **2.5×** | 2.25× – 2.75× | ≥ 1 ✓ |" in page
    assert r"| loss \| waste | **50.00%** | 50.00% – 50.00% | ≤ 0.1 **missed** |" in page
    assert "| unknown | **unknown** | unknown – unknown | ≥ 1 |" in page
    assert "| a | b |\n| --- | --- |\n| 1 | 2 |\n\n| c |\n| --- |\n| 3 |\n" in page
    assert "Commit 0123456 with changes, 2026-11-18, a quick run, 5 s; noise was not recorded." in page
    assert "other processes used 40% of the CPU" in page
    assert "one, ? cores" in page
    assert "another, ? cores" in page
    assert (tmp_path / "media" / "benchmarks" / "gil.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("content", [None, b"{}"])
def test_a_report_without_results_is_refused_in_one_sentence(content, monkeypatch, tmp_path, capsys):
    if content is not None:
        (tmp_path / "benchmarks.json").write_bytes(content)
    monkeypatch.setattr("benchmarks.command_line.DOCS", tmp_path)
    assert main(["--report"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "benchmarks.md").exists()


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
