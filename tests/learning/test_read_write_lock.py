import random
import threading
import time

import pytest

from mario_rl.learning.read_write_lock import ReadWriteLock

PATIENCE = 20.0  # seconds after which a test that hangs has failed


def start(target, *arguments):
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def finish(*threads):
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread hangs"


def hold(lock_side, entered, may_leave):
    with lock_side():
        entered.set()
        assert may_leave.wait(PATIENCE)


def waiting(lock, number):
    """Until this many writers wait."""
    deadline = time.monotonic() + PATIENCE
    while lock._num_waiting_writers != number:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_readers_are_together():
    lock, meeting = ReadWriteLock(), threading.Barrier(4, timeout=PATIENCE)

    def read():
        with lock.reading():
            meeting.wait()  # broken if any of the four has to wait outside

    finish(*(start(read) for _ in range(4)))
    assert not meeting.broken


def test_the_last_reader_to_leave_lets_a_waiting_writer_in():
    # With one condition for readers and another for writers, leaving readers wake no thread that waits to write.
    lock, written = ReadWriteLock(), threading.Event()
    entered, may_leave = [threading.Event() for _ in range(2)], [threading.Event() for _ in range(2)]
    readers = [start(hold, lock.reading, *events) for events in zip(entered, may_leave, strict=True)]
    assert all(event.wait(PATIENCE) for event in entered)

    def write():
        with lock.writing():
            written.set()

    writer = start(write)
    waiting(lock, 1)
    may_leave[0].set()
    finish(readers[0])
    assert not written.is_set()
    may_leave[1].set()
    finish(readers[1], writer)
    assert written.is_set()


def test_a_waiting_writer_keeps_new_readers_out():
    lock, order = ReadWriteLock(), []
    entered, may_leave = threading.Event(), threading.Event()
    first = start(hold, lock.reading, entered, may_leave)
    assert entered.wait(PATIENCE)

    def write():
        with lock.writing():
            order.append("writer")

    def read():
        with lock.reading():
            order.append("reader")

    writer = start(write)
    waiting(lock, 1)
    late = [start(read) for _ in range(3)]
    late[0].join(0.05)
    assert order == []
    may_leave.set()
    finish(first, writer, *late)
    assert order == ["writer", "reader", "reader", "reader"]


def test_a_writer_is_not_starved_by_readers_that_never_pause():
    lock, stop = ReadWriteLock(), threading.Event()

    def read():
        while not stop.is_set():
            with lock.reading():
                time.sleep(0.002)

    readers = [start(read) for _ in range(4)]
    try:
        for _ in range(20):
            with lock.writing():
                pass
    finally:
        stop.set()
    finish(*readers)


@pytest.mark.parametrize("seed", range(3))
def test_under_many_threads_nobody_reads_what_is_half_written_and_nothing_is_lost(seed):
    lock, numbers, torn = ReadWriteLock(), [0] * 8, []
    writers_inside, rounds = [], 60

    def work(worker):
        chance = random.Random(100 * seed + worker)
        for _ in range(rounds):
            if chance.random() < 0.5:
                with lock.reading():
                    before = list(numbers)
                    time.sleep(chance.random() * 2e-4)
                    if len(set(before)) != 1 or before != numbers:
                        torn.append(before)
            else:
                with lock.writing():
                    writers_inside.append(worker)
                    for index in range(len(numbers)):
                        value = numbers[index]
                        if index == 4:
                            time.sleep(chance.random() * 2e-4)
                        numbers[index] = value + 1
                    assert writers_inside.pop() == worker
                    assert not writers_inside

    finish(*(start(work, worker) for worker in range(12)))
    assert not torn
    report = lock.take_report()
    assert numbers == [report.writing.acquisitions] * 8
    assert report.reading.acquisitions + report.writing.acquisitions == 12 * rounds


def test_an_error_inside_lets_go():
    lock = ReadWriteLock()
    for side in (lock.reading, lock.writing, lock.writing, lock.reading):
        with pytest.raises(KeyError), side():
            raise KeyError


def test_waits_and_holds_are_told_apart():
    lock = ReadWriteLock()
    entered, may_leave = threading.Event(), threading.Event()
    holder = start(hold, lock.writing, entered, may_leave)
    assert entered.wait(PATIENCE)

    def read():
        with lock.reading():
            pass

    reader = start(read)
    time.sleep(0.05)
    may_leave.set()
    finish(holder, reader)
    report = lock.take_report()
    assert report.writing.wait_seconds < 0.04 <= report.writing.hold_seconds
    assert report.reading.hold_seconds < 0.04 <= report.reading.wait_seconds
    assert lock.take_report().reading.acquisitions == 0
