"""Collectors that die or hang, with real processes, real signals and real rings. Chunks carry checksums here."""

import copy
import functools
import os
import random
import resource
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from mario_rl.agent.exploration import EpsilonLadder
from mario_rl.app.wiring import connect
from mario_rl.channels.experience_ring import CollectorStat, RingShape
from mario_rl.emulation.choosing import choose_emulator
from mario_rl.settings.hardware import make_plan
from tests.small_runs import Lines, small_settings

PATIENCE_SECONDS = 60.0


class _FailsOnce(EpsilonLadder):
    """Travels to a collector like the real one, and there, once in all, something goes wrong in the middle of play."""

    marker: Path
    num_calls = 0

    def epsilons(self, decisions):
        self.num_calls += 1  # one a tick
        if self.num_calls > 50 and not self.marker.exists():
            self.marker.touch()
            self.go_wrong()
        return super().epsilons(decisions)


class Raises(_FailsOnce):
    def go_wrong(self):
        raise RuntimeError("the game has eaten itself")


class NeverReturns(_FailsOnce):
    def go_wrong(self):
        while True:
            pass


def sabotage(run, number, kind, marker):
    """Have a collector fail once, when it plays."""
    ladder = copy.copy(run.source._setups[number].ladder)
    ladder.__class__, ladder.marker = kind, marker
    run.source._setups[number] = run.source._setups[number]._replace(ladder=ladder)


class Run:
    """Collectors that play without limits, and a thread that looks after them as the main loop does."""

    def __init__(self, prepare=lambda run: None, **changes):
        settings = small_settings(**({"REPLAY_RATIO": 0.0, "BUFFER_SIZE": 4_800} | changes))
        assert choose_emulator(settings.play.emulator, print) == settings.play.emulator  # compiled, as in a session
        self.console = Lines()
        self.pipeline = connect(settings, make_plan(settings, serial=False), self.console, serial=False)
        self.ledger, self.source, self.replay = self.pipeline.ledger, self.pipeline.source, self.pipeline.saver.replay
        self.supervisor = self.source._supervisor
        prepare(self)
        self.pipeline.publisher.publish(0)
        self.pipeline.start()
        self.source.limit_collection(None)
        self._ending = False
        self._tending = threading.Thread(target=self._tend, daemon=True)
        self._tending.start()

    def _tend(self):
        self.source.wait_for_work(lambda: self._ending, None)

    def process(self, number):
        return self.supervisor._cares[number].process

    def wait_until(self, condition):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, "\n".join(self.console.lines)
            assert self.ledger.failure is None, self.ledger.failure
            time.sleep(0.01)

    def plays(self, number):
        """Whether the collector, as it was last started, has had a chunk committed."""
        consolidation = self.source.consolidation
        is_read = consolidation._readers[number] is self.supervisor.readers[number]
        return is_read and consolidation.committed[number] > 0

    def stop(self):
        if self._ending:
            return
        self._ending = True
        self.ledger.wake()
        self._tending.join(PATIENCE_SECONDS)
        assert not self._tending.is_alive()
        self.pipeline.stop()


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setattr("mario_rl.collecting.rules.RingShape", functools.partial(RingShape, checked=True))
    runs = []

    def start(*arguments, **changes):
        runs.append(Run(*arguments, **changes))
        return runs[-1]

    yield start
    for one in runs:
        one.stop()


def assert_accounts_balance(one):
    """Of a run that is stopped: nothing is counted twice, and what was lost is known."""
    assert one.source.num_lost >= 0
    assert one.source.num_written == one.ledger.collected + one.source.num_lost
    assert one.ledger.collected == one.replay.num_decisions + one.replay.num_overwritten


def test_a_killed_collector_is_started_again_and_plays_on_with_the_newest_weights(run, monkeypatch):
    monkeypatch.setattr(
        "mario_rl.collecting.parallel_source.TEND_SECONDS", 1e6
    )  # a death is heard of, not found by looking
    one = run()
    one.wait_until(lambda: one.plays(0) and one.plays(1))
    one.pipeline.publisher.publish(1)
    before = one.ledger.collected
    old = one.process(0)
    os.kill(old.pid, signal.SIGKILL)
    one.wait_until(lambda: one.source.num_restarts == 1 and one.plays(0))
    assert one.process(0).pid != old.pid
    assert one.ledger.collected > before
    assert one.supervisor.readers[0].stats[CollectorStat.WEIGHTS_VERSION] == one.pipeline.publisher.version == 2
    assert any("Collector 0 was killed by SIGKILL" in line for line in one.console.lines)
    one.stop()
    assert_accounts_balance(one)


def test_a_collector_that_raises_is_started_again_and_its_traceback_is_shown(run, tmp_path):
    one = run(lambda run: sabotage(run, 0, Raises, tmp_path / "raised"), NUM_PROCESSES=1)
    one.wait_until(lambda: one.source.num_restarts == 1 and one.plays(0))
    (notice,) = [line for line in one.console.lines if "[COLLECTOR]" in line]
    assert "Collector 0 failed" in notice
    assert "RuntimeError: the game has eaten itself" in notice
    assert "[COLLECTOR] 0 is started again (1 of 20 restarts within an hour)" in notice


def test_a_collector_whose_emulator_never_returns_is_killed_and_started_again(run, tmp_path):
    one = run(lambda run: sabotage(run, 0, NeverReturns, tmp_path / "hung"), NUM_PROCESSES=1, HANG_SECONDS=2.0)
    one.wait_until(lambda: one.source.num_restarts == 1 and one.plays(0))
    assert any("Collector 0 gave no sign of life" in line for line in one.console.lines)


@pytest.mark.long
def test_a_restart_for_which_the_machine_has_no_room_is_tried_again(run):
    one = run()
    one.wait_until(lambda: one.plays(0) and one.plays(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        # No file more than there are now: neither pipes nor processes can be made.
        resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds(), hard))
        os.kill(one.process(0).pid, signal.SIGKILL)
        one.wait_until(lambda: any("cannot be started again" in line for line in one.console.lines))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    one.wait_until(lambda: one.source.num_restarts == 1 and one.plays(0))
    assert one.ledger.failure is None


@pytest.mark.long
def test_a_stopped_collector_is_noticed_killed_and_started_again(run):
    one = run(HANG_SECONDS=2.0)
    one.wait_until(lambda: one.plays(0) and one.plays(1))
    frozen = one.process(1)
    os.kill(frozen.pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    one.wait_until(lambda: one.source.num_restarts == 1 and one.plays(1))
    assert time.monotonic() - stopped_at > 2.0
    assert not psutil.pid_exists(frozen.pid) or frozen.exitcode == -signal.SIGKILL
    assert any("Collector 1 gave no sign of life" in line for line in one.console.lines)


def test_a_collector_that_waits_is_not_taken_for_one_that_hangs(run):
    one = run(HANG_SECONDS=2.0, REPLAY_RATIO=1.0)
    one.source.limit_collection(200)
    one.wait_until(lambda: one.ledger.collected >= 100)
    time.sleep(4.0)  # nothing to do for any of them
    assert one.source.num_restarts == 0
    assert one.ledger.failure is None


def test_after_too_many_restarts_the_run_ends_with_the_reason(run):
    one = run(NUM_PROCESSES=1, MAX_RESTARTS_PER_HOUR=1)
    one.wait_until(lambda: one.plays(0))
    os.kill(one.process(0).pid, signal.SIGKILL)
    one.wait_until(lambda: one.source.num_restarts == 1 and one.plays(0))
    os.kill(one.process(0).pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while one.ledger.failure is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "Collector 0 was killed by SIGKILL." in one.ledger.failure
    assert "started again 1 times within an hour" in one.ledger.failure
    one.stop()
    assert_accounts_balance(one)


def test_a_restarted_collector_stays_within_what_is_granted(run):
    # Grants are counted from a collector's start: an old grant must not let a new one run ahead by what was written.
    one = run(REPLAY_RATIO=1.0)
    limit = 600
    one.source.limit_collection(limit)
    one.wait_until(lambda: one.ledger.collected >= 300)
    os.kill(one.process(0).pid, signal.SIGKILL)
    one.wait_until(lambda: one.source.num_restarts == 1)
    one.wait_until(lambda: one.ledger.collected >= limit - 2 * 16 - one.source.num_lost)
    time.sleep(1.0)
    assert one.ledger.collected <= limit + 2 * 2 * 16  # a chunk of each collector, which was begun in time


@pytest.mark.parametrize("num_kills", [5, pytest.param(95, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
def test_kills_at_random_moments_leave_no_torn_chunk_and_no_deadlock(run, num_kills):
    one = run(MAX_RESTARTS_PER_HOUR=1_000)
    chance = random.Random(num_kills)
    for kill in range(num_kills):
        number = chance.randrange(2)
        one.wait_until(lambda number=number: one.plays(number))
        time.sleep(chance.random() * 0.05)
        one.supervisor._cares[number].started_at -= 1_000  # it may be young, and would wait longer and longer
        os.kill(one.process(number).pid, signal.SIGKILL)
        one.wait_until(lambda kill=kill: one.source.num_restarts == kill + 1)
    one.wait_until(lambda: one.plays(0) and one.plays(1))
    one.stop()
    assert one.ledger.failure is None
    assert_accounts_balance(one)
