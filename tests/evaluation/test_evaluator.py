"""The evaluator process: real children, real pipes."""

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace

import psutil
import pytest

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.emulation.choosing import choose_emulator
from mario_rl.emulation.rules import Level
from mario_rl.evaluation import evaluator_process, pace
from mario_rl.evaluation.episodes import GAMES_AT_ONCE, evaluate
from mario_rl.evaluation.evaluator import Answer, EvaluatorSetup, pack_weights
from mario_rl.evaluation.evaluator_process import EvaluatorProcess
from mario_rl.evaluation.inline_evaluator import InlineEvaluator
from mario_rl.evaluation.results import Goal
from tests.evaluation.test_episodes import LEVEL, PLAY, RUN, _network

SETUP = EvaluatorSetup(PLAY, (LEVEL,), NetworkShape((4, 8, 8), 16, 7), seed=4, cpu_share=1e9)  # in no time


@pytest.fixture
def evaluator():
    assert choose_emulator("fast", print) == "fast"  # compiled, as in a session
    arrived = threading.Semaphore(0)
    made = EvaluatorProcess(multiprocessing.get_context("spawn"), SETUP, arrived.release)
    made.arrived = arrived
    made.start()
    yield made
    made.stop()


def _children(pid=None):
    return [child for child in psutil.Process(pid).children() if "spawn_main" in " ".join(child.cmdline())]


def test_the_child_answers_what_the_same_evaluation_gives_here_and_can_be_asked_again(evaluator):
    assert evaluator.is_idle
    assert not _children()  # nothing is started before it is needed
    for decisions, network in ((1_000, _network(RUN)), (2_000, _network(seed=3))):
        evaluator.request(decisions, 1.5, network.state_dict())
        assert not evaluator.is_idle
        assert evaluator.arrived.acquire(timeout=60)
        assert evaluator.is_idle
        assert evaluator.has_results
        result = evaluator.take_result()
        assert result.request == (decisions, 1.5, pack_weights(network.state_dict()))
        assert result.evaluations == [evaluate(network, PLAY, LEVEL, SETUP.seed, sticky_episodes=0)]
        assert evaluator.take_result() is None


def test_a_stop_does_not_wait_for_the_answer(evaluator):
    evaluator.request(1, 0.0, _network(RUN).state_dict())
    _wait_for_child()
    begun = time.monotonic()
    evaluator.stop()
    assert time.monotonic() - begun < 3
    assert not _children()


def _wait_for_child():
    while not (found := _children()):
        time.sleep(0.01)
    return found[0]


def _kill_child():
    os.kill(_wait_for_child().pid, signal.SIGKILL)


def test_a_child_that_is_killed_is_replaced_with_the_next_request(evaluator, caplog):
    evaluator.request(1, 0.0, _network(RUN).state_dict())
    _kill_child()
    assert evaluator.arrived.acquire(timeout=10)
    assert "the next evaluation starts another" in caplog.text
    assert evaluator.is_idle
    assert not evaluator.has_results
    evaluator.request(2, 0.0, _network(RUN).state_dict())
    assert evaluator.arrived.acquire(timeout=60)
    assert evaluator.take_result().request.decisions == 2


@pytest.mark.parametrize("sizes", [((4, 8, 8), 16), ((16, 32, 32), 256)])  # the larger does not fit into the pipe
def test_a_child_that_hangs_is_killed_and_replaced(evaluator, monkeypatch, sizes):
    monkeypatch.setattr(evaluator_process, "MAX_SILENCE_SECONDS", 1.0)
    evaluator.request(1, 0.0, QNetwork(NetworkShape(*sizes, 7)).state_dict())
    child = _wait_for_child()
    child.suspend()
    assert evaluator.arrived.acquire(timeout=10)
    assert not child.is_running()
    assert not evaluator.has_results
    monkeypatch.undo()
    evaluator.request(2, 0.0, _network(RUN).state_dict())
    assert evaluator.arrived.acquire(timeout=60)
    assert evaluator.take_result().request.decisions == 2


def test_children_that_die_again_and_again_end_evaluation_and_nothing_else(evaluator, caplog):
    for number in range(evaluator_process.MAX_DEATHS):
        evaluator.request(number, 0.0, _network(RUN).state_dict())
        _kill_child()
        if number < evaluator_process.MAX_DEATHS - 1:
            assert evaluator.arrived.acquire(timeout=10)
    evaluator._thread.join(10)
    assert not evaluator._thread.is_alive()
    assert "training goes on without evaluation" in caplog.text
    assert not evaluator.is_idle  # so that it is not asked again


def _ask_and_wait():
    """A learner that has asked for an evaluation which takes minutes."""
    context = multiprocessing.get_context("spawn")
    slow = SETUP._replace(play=replace(PLAY, emulator="nes_py"))
    evaluator = EvaluatorProcess(context, slow, lambda: None)
    evaluator.start()
    evaluator.request(1, 0.0, _network(RUN).state_dict())
    time.sleep(600)


def test_the_child_ends_in_the_middle_of_an_evaluation_when_the_learner_is_killed():
    learner = multiprocessing.get_context("spawn").Process(target=_ask_and_wait)
    learner.start()
    try:
        while not (found := _children(learner.pid)):
            time.sleep(0.01)
        (child,) = found
        while child.nice() != evaluator_process.NICENESS:  # imported, and about to play
            time.sleep(0.01)
        time.sleep(1.0)
    finally:
        learner.kill()
        learner.join()
    psutil.wait_procs([child], timeout=5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_serial_mode_gives_an_evaluation_up_when_the_run_should_stop():
    asked = []
    evaluator = InlineEvaluator(SETUP, lambda: asked.append(None) or len(asked) > 3)
    evaluator.request(7, 0.5, _network(RUN).state_dict())
    assert not evaluator.has_results
    assert len(asked) < 10  # ticks that were played


def test_serial_mode_answers_at_once():
    evaluator = InlineEvaluator(SETUP._replace(levels=(LEVEL, Level(1, 2))))
    evaluator.start()
    network = _network(RUN)
    evaluator.request(7, 0.5, network.state_dict())
    assert evaluator.has_results
    expected = [evaluate(network, PLAY, level, SETUP.seed, sticky_episodes=0) for level in (LEVEL, Level(1, 2))]
    assert evaluator.take_result().evaluations == expected
    assert evaluator.take_result() is None
    evaluator.stop()


def _compute(seconds):
    begun = time.process_time()
    while time.process_time() - begun < seconds:
        pass


def test_an_evaluation_takes_no_more_than_its_share_of_the_machine(monkeypatch):
    monkeypatch.setattr(pace, "BEAT_SECONDS", 0.1)
    beats = []
    begun, cpu_begun = time.monotonic(), time.process_time()
    slow = pace.Pace(0.2, lambda: beats.append(time.monotonic()))
    for seconds in (0.001, 0.1, 0.01, 0.01):
        _compute(seconds)
        assert slow.wait_for_turn()
        assert (time.process_time() - cpu_begun) / (time.monotonic() - begun) < 0.25
    assert 4 <= len(beats) <= 8  # in some 0.6 seconds, also in the middle of the one long sleep
    time.sleep(0.5)  # as when others have the cores: that is not saved up for later
    begun, cpu_begun = time.monotonic(), time.process_time()
    slow.wait_for_turn()
    _compute(0.05)
    slow.wait_for_turn()
    assert (time.process_time() - cpu_begun) / (time.monotonic() - begun) < 0.25


def _run_slow_child(setup, connection):
    """Answers the first request at once, and the second after seconds, with signs of life in between."""
    connection.recv()
    connection.send(Answer([], None))
    connection.recv()
    for _ in range(15):
        time.sleep(0.2)
        connection.send(None)
    connection.send(Answer([], None))
    connection.recv()


def test_a_slow_evaluation_that_gives_signs_of_life_is_not_taken_for_a_hang(evaluator, monkeypatch):
    monkeypatch.setattr(evaluator_process, "run_evaluator", _run_slow_child)
    for decisions in (1, 2):
        evaluator.request(decisions, 0.0, {})
        assert evaluator.arrived.acquire(timeout=60)
        assert evaluator.take_result().request.decisions == decisions
        monkeypatch.setattr(evaluator_process, "MAX_SILENCE_SECONDS", 1.0)


def test_a_policy_that_reaches_the_goal_is_confirmed_at_full_speed_with_other_starts(monkeypatch):
    monkeypatch.setattr(evaluator_process, "NICENESS", 0)
    arrived = threading.Semaphore(0)
    slow = SETUP._replace(goal=Goal(0.0, 0.0), cpu_share=0.5)
    evaluator = EvaluatorProcess(multiprocessing.get_context("spawn"), slow, arrived.release)
    evaluator.start()
    try:
        evaluator.request(1, 0.0, _network(RUN).state_dict())
        seen = []
        while not arrived.acquire(timeout=0.01):
            seen.append(evaluator.is_confirming)
    finally:
        evaluator.stop()
    result = evaluator.take_result()
    assert True in seen
    assert not evaluator.is_confirming
    (evaluation,), (confirmation,) = result.evaluations, result.confirmation
    assert (len(evaluation.starts), len(confirmation.starts)) == (31, 30)
    assert len(evaluation.sticky) == len(confirmation.sticky) == 100


def test_a_hurried_evaluation_does_not_sleep():
    slow = pace.Pace(0.01, lambda: None)
    slow.hurry()
    begun = time.monotonic()
    _compute(0.05)
    assert slow.wait_for_turn()
    assert time.monotonic() - begun < 1.0  # five seconds at a hundredth of a core


def test_a_policy_that_misses_the_goal_makes_room_for_the_next_at_once():
    evaluator = InlineEvaluator(SETUP._replace(goal=Goal(0.5, 0.0)))
    evaluator.request(7, 0.5, _network(RUN).state_dict())
    (evaluation,), confirmation = evaluator.take_result()[1:]
    assert (len(evaluation.starts), evaluation.sticky, confirmation) == (31, [], None)


@pytest.mark.parametrize(("sticky_goal", "episodes"), [(0.2, 100), (0.6, GAMES_AT_ONCE)])
def test_sticky_episodes_of_a_policy_that_clears_none_of_the_first_are_not_played_on(sticky_goal, episodes):
    evaluator = InlineEvaluator(SETUP._replace(goal=Goal(0.0, sticky_goal)))
    evaluator.request(7, 0.5, _network(RUN).state_dict())
    (evaluation,) = evaluator.take_result().evaluations
    assert len(evaluation.sticky) == episodes
