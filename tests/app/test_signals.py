"""Signals at every moment of a run: real processes, as a shell, a terminal or a service manager sends them."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.small_runs import (
    alive,
    children_of,
    collectors_of,
    command,
    copy_project,
    finish,
    only_run,
    run,
    saved_numbers,
    segments,
    start,
    wait_for,
)

PATIENCE_SECONDS = 60.0


@pytest.fixture
def project(tmp_path):
    return copy_project(tmp_path)


# --- Ctrl-C, SIGTERM, SIGHUP


def starting(process, project):
    """The plan is printed; collectors are being started."""
    wait_for(process, r"emulator +fast")


def collecting(process, project):
    """Replay is being filled, nothing is trained yet."""
    wait_for(process, r"\[PROCESSOR\] Processed: [1-9]")


def training(process, project):
    wait_for(process, r"TD Error: \d")


def evaluating(process, project):
    wait_for(process, r"TD Error: \d")
    while len(collectors_of(process)) < 2:  # the second child is the evaluator
        time.sleep(0.01)


def evaluating_for_long(process, project):
    """On nes-py a test takes minutes, and this is in the middle of it."""
    evaluating(process, project)
    evaluator = max(collectors_of(process), key=lambda child: child.create_time())
    while evaluator.cpu_times().user < 10:  # torch is long imported
        time.sleep(0.1)


def saving(process, project):
    wait_for(process, r"TD Error: \d")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not list(project.glob("checkpoints/*/.saving-*")):
        assert time.monotonic() < deadline
    time.sleep(0.001)


MOMENTS = {
    starting: {},
    collecting: {"WARMUP_EXPERIENCES": 1_000},
    training: {"NUM_PROCESSES": 2},
    evaluating: {"EVALUATION_DECISIONS": 50},
    evaluating_for_long: {"EVALUATION_DECISIONS": 50, "EMULATOR": "nes_py"},
    saving: {"CHECKPOINT_EPOCHS": 1, "EPISODES_PER_EPOCH": 1},
}


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        (starting, signal.SIGTERM),
        (collecting, signal.SIGINT),
        pytest.param(training, signal.SIGTERM, marks=pytest.mark.long),
        (evaluating, signal.SIGINT),
        (saving, signal.SIGTERM),
        pytest.param(training, signal.SIGINT, marks=pytest.mark.long),
        pytest.param(training, signal.SIGHUP, marks=pytest.mark.long),
        pytest.param(evaluating_for_long, signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(saving, signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_a_signal_saves_and_leaves_nothing_behind(project, moment, number):
    segments_before = segments()
    process = start(command(project, **({"NUM_PROCESSES": 1} | MOMENTS[moment])))
    moment(process, project)
    children = children_of(process)
    os.killpg(process.pid, number)  # Ctrl-C, a service manager and a closed terminal all signal the whole group
    code, stdout, stderr = finish(process, timeout_seconds=10)
    assert code == 128 + number
    assert "Traceback" not in stderr
    assert not alive(children)
    assert segments() == segments_before
    if "nothing was saved" in stderr:
        assert moment is starting
        return
    assert f"{signal.Signals(number).name} was received" in stdout
    assert saved_numbers(only_run(project))["ledger"]["collected"] > 0 or moment is starting
    assert not list(only_run(project).glob(".saving-*"))


def test_ctrl_c_saves_even_when_it_has_also_ended_who_reads_the_output(project):
    # As in `python mario_rl_optimized.py 2>&1 | tee log`: the terminal signals tee, too, and it dies first.
    reading, writing = os.pipe()
    process = start(command(project, NUM_PROCESSES=1), stdout=writing, stderr=writing)
    os.close(writing)
    with open(reading) as output:
        for line in output:
            if "TD Error: 0" in line or "TD Error: 1" in line:
                break
    children = children_of(process)
    os.killpg(process.pid, signal.SIGINT)
    code, _, _ = finish(process, timeout_seconds=10)
    assert code == 128 + signal.SIGINT
    assert not alive(children)
    assert saved_numbers(only_run(project))["ledger"]["collected"] > 0


def _handles(process, number):
    (caught,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return bool(int(caught, 16) >> (number - 1) & 1)


def test_a_signal_while_torch_is_imported_ends_quietly(project):
    process = start(command(project))
    while not _handles(process, signal.SIGTERM):  # which Python alone does not
        time.sleep(0.01)
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    code, _, stderr = finish(process, timeout_seconds=10)
    assert code == 128 + signal.SIGINT
    assert "Traceback" not in stderr


def test_a_second_signal_ends_at_once(project):
    process = start(command(project, NUM_PROCESSES=1))
    wait_for(process, r"\[MAIN\]")
    children = children_of(process)
    # With its collectors frozen the run cannot stop politely within our patience.
    for collector in collectors_of(process):
        collector.suspend()
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    code, _, _ = finish(process, timeout_seconds=10)
    assert code == 128 + signal.SIGINT
    assert not alive(children)


# --- SIGKILL, SIGSTOP


def test_collectors_end_when_the_learner_is_killed_and_a_resume_goes_on_from_the_last_checkpoint(project):
    segments_before = segments()
    process = start(command(project, NUM_PROCESSES=1, CHECKPOINT_EPOCHS=1))
    wait_for(process, r"\[MAIN\]")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not list(project.glob("checkpoints/*/checkpoint-*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    children = children_of(process)
    process.kill()
    finish(process)
    assert not alive(children)  # which waits 5 s for them
    assert segments() == segments_before
    saved = saved_numbers(only_run(project))
    epochs = saved["progress"]["epoch"] + 1
    code, _, stderr = run([*command(project)[:2], "--resume", "--epochs", str(epochs)])
    assert code == 0, stderr
    resumed = saved_numbers(only_run(project))
    assert resumed["progress"]["epoch"] == epochs
    assert resumed["ledger"]["collected"] > saved["ledger"]["collected"]
    assert resumed["learner"]["num_updates"] >= saved["learner"]["num_updates"]


@pytest.mark.long
def test_a_run_that_was_stopped_and_continued_keeps_its_collectors(project):
    process = start(command(project, HANG_SECONDS=2.0))
    wait_for(process, r"\[MAIN\]")
    collectors = {collector.pid for collector in collectors_of(process)}
    os.killpg(process.pid, signal.SIGSTOP)  # Ctrl-Z
    time.sleep(3.0)
    os.killpg(process.pid, signal.SIGCONT)  # fg
    lines = []
    for _ in range(4):
        lines += wait_for(process, r"\[PROCESSOR\]")  # one a second
    assert not [line for line in lines if "[COLLECTOR]" in line]
    assert {collector.pid for collector in collectors_of(process)} == collectors
    os.killpg(process.pid, signal.SIGTERM)
    finish(process, timeout_seconds=10)
