import threading
import time

import pytest

from mario_rl.telemetry.locks import LockReport, LockRules, TimedLock, lock_warning


def report_of(lock):
    with lock:
        return lock.take_report()


def in_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    return thread


def hold_until_someone_waits(lock, hold_seconds=0.2):
    """Hold the lock while another thread asks for it; how long it was held after the asking had begun."""
    asking = threading.Event()

    def ask():
        asking.set()
        with lock:
            pass

    with lock:
        thread = in_thread(ask)
        asking.wait()
        begun = time.perf_counter()
        time.sleep(hold_seconds)
        held = time.perf_counter() - begun
    thread.join()
    return held


# --- The lock ---------------------------------------------------------------------------------------------------------


def test_it_excludes():
    lock, inside, overlaps = TimedLock(), [], []

    def enter():
        for _ in range(200):
            with lock:
                inside.append(1)
                overlaps.append(len(inside))
                inside.pop()

    threads = [in_thread(enter) for _ in range(4)]
    for thread in threads:
        thread.join()
    assert set(overlaps) == {1}
    assert report_of(lock).acquisitions == 800 + 1  # no acquisition is lost between threads; one is the report's own


def test_it_measures_how_long_it_was_held():
    lock = TimedLock()
    with lock:
        begun = time.perf_counter()
        time.sleep(0.02)
        inside = time.perf_counter() - begun
    report = report_of(lock)
    assert report.hold_seconds >= inside
    assert report.wait_seconds < report.hold_seconds


def test_a_contended_lock_reports_more_waiting_than_an_uncontended_one():
    contended, uncontended = TimedLock(), TimedLock()
    held = hold_until_someone_waits(contended)
    for hold_seconds in (held, 0.0):
        with uncontended:
            time.sleep(hold_seconds)
    busy, idle = report_of(contended), report_of(uncontended)
    assert busy.acquisitions == idle.acquisitions
    assert busy.wait_seconds > idle.wait_seconds
    assert busy.wait_seconds > held / 4  # a part of the time, since the other thread may be slow to ask
    assert busy.contention_ratio > idle.contention_ratio
    assert busy.mean_wait_milliseconds > idle.mean_wait_milliseconds


def test_a_lock_that_nobody_waits_for_has_no_contention():
    lock = TimedLock()
    for _ in range(100):
        with lock:
            pass
    assert report_of(lock).contention_ratio == 0.0


def test_a_report_starts_the_figures_anew():
    lock = TimedLock()
    hold_until_someone_waits(lock, hold_seconds=0.05)
    first = report_of(lock)
    second = report_of(lock)
    assert first.acquisitions == 3
    assert second.acquisitions == 1  # the report's own
    assert second.wait_seconds < first.wait_seconds
    assert second.hold_seconds < first.hold_seconds


def test_the_time_until_the_release_counts_for_the_report_after_it():
    lock = TimedLock()
    with lock:
        lock.take_report()
        time.sleep(0.02)
    assert report_of(lock).hold_seconds > report_of(lock).hold_seconds


def test_an_attempt_that_fails_counts_for_nothing():
    lock = TimedLock()
    with lock:
        assert lock.locked()
        assert lock.acquire(blocking=False) is False
        assert lock.acquire(timeout=0.01) is False
    assert not lock.locked()
    assert lock.acquire(blocking=False) is True
    lock.release()
    report = report_of(lock)
    assert report.acquisitions == 3
    assert report.wait_seconds < report.hold_seconds


def test_it_is_released_when_its_block_raises():
    lock = TimedLock()
    with pytest.raises(ZeroDivisionError), lock:
        _ = 1 / 0
    assert not lock.locked()


# --- Inside a condition -----------------------------------------------------------------------------------------------


def test_sleeping_in_a_condition_is_neither_waiting_for_the_lock_nor_holding_it():
    lock = TimedLock()
    condition = threading.Condition(lock)
    with condition:
        begun = time.perf_counter()
        condition.wait(timeout=0.2)
        slept = time.perf_counter() - begun
    report = report_of(lock)
    assert report.wait_seconds < slept / 2
    assert report.hold_seconds < slept / 2
    assert report.acquisitions == 3  # before the sleep, after it, and the report's own


def test_a_sleeper_in_a_condition_is_woken_and_others_may_enter_meanwhile():
    lock = TimedLock()
    condition = threading.Condition(lock)
    order = []
    asleep = threading.Event()

    def sleep():
        with condition:
            asleep.set()  # no other thread gets in before the sleep has begun
            assert condition.wait_for(lambda: "news" in order, timeout=30)
            order.append("woken")

    thread = in_thread(sleep)
    asleep.wait(timeout=30)
    with condition:
        order.append("news")
        condition.notify_all()
    thread.join(timeout=30)
    assert order == ["news", "woken"]
    assert not lock.locked()


def test_the_way_back_into_a_held_lock_after_a_sleep_is_waiting():
    lock = TimedLock()
    condition = threading.Condition(lock)
    asleep = threading.Event()

    def sleep():
        with condition:
            asleep.set()
            condition.wait(timeout=30)

    thread = in_thread(sleep)
    asleep.wait(timeout=30)
    with condition:
        lock.take_report()
        condition.notify_all()  # awake, but the lock is not free yet
        begun = time.perf_counter()
        time.sleep(0.2)
        held = time.perf_counter() - begun
    thread.join(timeout=30)
    assert report_of(lock).wait_seconds > held / 4


def test_notify_without_the_lock_is_refused_as_with_a_plain_lock():
    condition = threading.Condition(TimedLock())
    with pytest.raises(RuntimeError):
        condition.notify()


# --- Reports and warnings ---------------------------------------------------------------------------------------------


def test_a_report_without_acquisitions_is_all_zero():
    report = LockReport(0, 0.0, 0.0)
    assert (report.mean_wait_milliseconds, report.contention_ratio) == (0.0, 0.0)


def test_the_contention_ratio_is_wait_over_wait_and_work():
    report = LockReport(4, 1.0, 3.0)
    assert report.contention_ratio == 0.25
    assert report.mean_wait_milliseconds == 250.0


def test_a_warning_comes_above_the_wait_limit_and_says_how_long():
    assert "11.0 ms" in lock_warning(LockReport(100, 1.1, 9.0), LockRules(10.0, 0.5))


def test_a_warning_comes_above_the_ratio_and_says_how_much():
    assert "60%" in lock_warning(LockReport(1_000, 6.0, 4.0), LockRules(10.0, 0.5))


@pytest.mark.parametrize(
    "report",
    [
        LockReport(0, 0.0, 0.0),
        LockReport(100, 1.0, 9.0),  # exactly 10 ms
        LockReport(1_000, 5.0, 5.0),  # exactly half
        LockReport(1_000, 0.001, 0.0001),  # a high ratio of next to nothing is noise
    ],
)
def test_below_its_limits_the_lock_is_silent(report):
    assert lock_warning(report, LockRules(10.0, 0.5)) is None
