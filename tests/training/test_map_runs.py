"""Runs that are rewarded by a map: the search comes first, the map is saved, and where there is none, x is."""

import json
import signal

import pytest

from tests.small_runs import command, copy_project, finish, only_run, run, saved_numbers, start, wait_for

MAP = {"PROGRESS": "map", "STAGE": 4}  # whose flag is found soonest


@pytest.fixture
def project(tmp_path):
    return copy_project(tmp_path)


@pytest.mark.parametrize("options", [["--serial"], []])
def test_a_run_searches_once_trains_by_the_map_and_goes_on_with_it(project, options):
    code, stdout, stderr = run(command(project, "--decisions", "300", *options, **MAP))
    assert code == 0, stderr
    assert "cells from the start" in stdout
    record = json.loads((only_run(project) / "run.json").read_text())
    assert record["sessions"][0]["search"]["decisions"] >= 60_000
    before = saved_numbers(only_run(project))["map"]
    assert before["published_edges"] > 1_000
    code, stdout, stderr = run([*command(project)[:2], "--resume", "--decisions", "600", *options])
    assert code == 0, stderr
    assert "[SEARCH]" not in stdout
    assert saved_numbers(only_run(project))["map"]["published_edges"] >= before["published_edges"]


def test_a_run_whose_flag_is_not_found_trains_by_x(project):
    settings = MAP | {"SEARCH_MINUTES": 0.01, "WORLD": 8}
    code, stdout, stderr = run(command(project, "--decisions", "100", **settings))
    assert code == 0, stderr
    assert 'No way to the flag of 8-4 was found, so this run trains with PROGRESS = "x"' in stdout
    record = json.loads((only_run(project) / "run.json").read_text())
    assert record["settings"]["PROGRESS"] == "x"
    assert "map" not in saved_numbers(only_run(project))


def test_ctrl_c_ends_a_search_before_training(project):
    process = start(command(project, **(MAP | {"WORLD": 8})))
    wait_for(process, r"\[SEARCH\]")
    process.send_signal(signal.SIGINT)
    code, stdout, stderr = finish(process, timeout_seconds=10)
    assert code == 128 + signal.SIGINT
    assert "Traceback" not in stdout + stderr


def test_a_named_run_that_was_stopped_in_its_search_can_be_started_again(project):
    settings = MAP | {"WORLD": 8}
    process = start(command(project, "--name", "castle", **settings))
    wait_for(process, r"\[SEARCH\]")
    process.send_signal(signal.SIGINT)
    finish(process, timeout_seconds=10)
    settings["SEARCH_MINUTES"] = 0.01
    code, _, stderr = run(command(project, "--name", "castle", "--decisions", "100", **settings))
    assert code == 0, stderr
    assert only_run(project).name == "castle"
    code, _, stderr = run(command(project, "--name", "castle", **settings))
    assert code == 2
    assert "--resume castle" in stderr
