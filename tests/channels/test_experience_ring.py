import contextlib
import itertools
import os
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mario_rl.channels.control import Control
from mario_rl.channels.doorbell import PeerGoneError
from mario_rl.channels.experience_ring import CollectorStat, RingShape, create_ring
from mario_rl.experience import FIELDS, Rows
from tests.channels import (
    PATIENCE_SECONDS,
    child,
    context,
    mapped_shared_memory,
    needs_shared_memory_folder,
    receive,
    shared_memory_names,
)

SHAPE = RingShape(num_slots=3, num_envs=2, chunk_decisions=2)
POISON = 0xFF


def chunk_content(number, shape):
    """What chunk `number` holds: every byte of every column depends on the number, no column is like another."""
    columns = []
    for column, field in enumerate(FIELDS):
        full_shape = (shape.num_envs, shape.chunk_decisions, *field.shape)
        values = np.arange(np.prod(full_shape)).reshape(full_shape) * 7 + number * 31 + column
        columns.append((values % 251).astype(field.dtype))
    return Rows(*columns)


def fill(rows, number, shape):
    for column, content in zip(rows, chunk_content(number, shape), strict=True):
        column[...] = content


def is_chunk(rows, number, shape):
    pairs = zip(rows, chunk_content(number, shape), strict=True)
    return all(column.dtype == content.dtype and np.array_equal(column, content) for column, content in pairs)


def poison(rows):
    for column in rows:
        column[...] = np.full(column.nbytes, POISON, np.uint8).view(column.dtype).reshape(column.shape)


def poison_ring(memory):
    for slot in range(memory.shape.num_slots):
        poison(memory.slot(slot))


@contextlib.contextmanager
def new_ring(shape=SHAPE):
    writer, reader = create_ring(context, shape)
    try:
        yield writer, reader
    finally:
        writer.close()
        reader.close()


def hear(reader):
    """Wait until the writer has rung or died, and take note."""
    reader.filled.wait(PATIENCE_SECONDS)
    reader.answer()


def read_until_gone(reader):
    """Numbers of the chunks in the order they came, once the writer is gone and all is read."""
    numbers = []
    while True:
        while chunk := reader.next_chunk():
            numbers += [number for number in range(20) if is_chunk(chunk.rows, number, SHAPE)] or ["damaged"]
            reader.release()
        try:
            hear(reader)
        except PeerGoneError:
            assert reader.next_chunk() is None
            return numbers


def write_chunks(writer, num_chunks):
    for number in range(num_chunks):
        while writer.is_full:
            writer.freed.wait()
            writer.answer()
        fill(writer.free_slot(), number, SHAPE)
        writer.memory.stats.array[CollectorStat.DECISIONS_WRITTEN] = number + 1
        writer.publish()
    writer.close()


def publish_and_then_fill_half_a_slot(writer, num_chunks, told):
    for number in range(num_chunks):
        fill(writer.free_slot(), number, SHAPE)
        writer.publish()
    poison(Rows(*(column[:1] for column in writer.free_slot())))
    told.send("half")
    time.sleep(PATIENCE_SECONDS)


def be_a_reader_that_does_nothing(_reader, told):
    told.send("started")
    time.sleep(PATIENCE_SECONDS)


def create_a_ring(told):
    ring = create_ring(context, SHAPE)
    told.send(len(ring))
    time.sleep(PATIENCE_SECONDS)


def hold(_writer, _control, told):
    told.send("started")
    time.sleep(PATIENCE_SECONDS)


def test_chunks_of_a_child_arrive_intact_and_in_order_although_the_reader_is_slow():
    num_chunks = 7 * SHAPE.num_slots
    with new_ring() as (writer, reader), child(write_chunks, writer, num_chunks):
        writer.close()
        poison_ring(reader.memory)
        numbers = []
        while len(numbers) < num_chunks:
            if (chunk := reader.next_chunk()) is None:
                hear(reader)
                continue
            time.sleep(0.003)  # the writer goes ahead and, if the ring is broken, over this slot
            assert is_chunk(chunk.rows, len(numbers), SHAPE)
            assert chunk.continues
            numbers.append(len(numbers))
            reader.release()
            with contextlib.suppress(PeerGoneError):  # it may have ended: its last chunks still lie here
                reader.wake_writer()
        assert read_until_gone(reader) == []
        assert reader.stats[CollectorStat.DECISIONS_WRITTEN] == num_chunks


def test_a_full_ring_is_full_until_the_reader_releases_a_slot_and_rings():
    with new_ring() as (writer, reader):
        for number in range(SHAPE.num_slots):
            assert not writer.is_full
            fill(writer.free_slot(), number, SHAPE)
            writer.publish()
        assert writer.is_full
        reader.answer()
        reader.wake_writer()  # for a grant, say: nothing was released
        writer.answer()
        assert writer.is_full
        assert reader.next_chunk() is not None
        reader.release()
        writer.answer()
        assert writer.is_full  # it was not rung
        reader.wake_writer()
        writer.answer()
        assert not writer.is_full
        fill(writer.free_slot(), SHAPE.num_slots, SHAPE)
        writer.publish()
        assert writer.is_full
        assert reader.num_waiting_rows == (SHAPE.num_slots - 1) * SHAPE.rows_per_chunk
        reader.answer()
        assert reader.num_waiting_rows == SHAPE.num_slots * SHAPE.rows_per_chunk
        writer.close()
        assert read_until_gone(reader) == [1, 2, 3]


def test_a_child_that_waits_on_a_full_ring_is_woken_by_the_doorbell():
    with new_ring() as (writer, reader), child(write_chunks, writer, SHAPE.num_slots + 1) as process:
        writer.close()
        while reader.num_waiting_rows < SHAPE.num_slots * SHAPE.rows_per_chunk:
            hear(reader)
        assert process.is_alive()
        assert reader.next_chunk() is not None
        reader.release()
        reader.wake_writer()
        assert read_until_gone(reader) == [1, 2, 3]
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == 0


@pytest.mark.parametrize("num_published", [0, 2])
def test_a_writer_killed_while_filling_a_slot_leaves_what_it_published_and_nothing_else(num_published):
    ours, theirs = context.Pipe()
    with (
        new_ring() as (writer, reader),
        ours,
        theirs,
        child(publish_and_then_fill_half_a_slot, writer, num_published, theirs) as process,
    ):
        writer.close()
        assert receive(ours) == "half"
        process.kill()
        process.join(PATIENCE_SECONDS)
        assert (reader.memory.slot(num_published).marks == POISON).any()  # the half slot is really there
        assert read_until_gone(reader) == list(range(num_published))


def test_a_writer_that_waits_or_publishes_notices_that_its_reader_was_killed():
    ours, theirs = context.Pipe()
    with new_ring() as (writer, reader), ours, theirs, child(be_a_reader_that_does_nothing, reader, theirs) as process:
        reader.close()
        assert receive(ours) == "started"
        while not writer.is_full:
            fill(writer.free_slot(), 0, SHAPE)
            writer.publish()
        writer.answer()
        process.kill()
        writer.freed.wait(PATIENCE_SECONDS)
        with pytest.raises(PeerGoneError):
            writer.answer()
        process.join(PATIENCE_SECONDS)  # its two pipes do not close at the same moment
        with pytest.raises(PeerGoneError):
            writer.publish()


@pytest.mark.parametrize("num_dropped", [1, 2])
@pytest.mark.parametrize("num_before", [0, 1])
def test_only_the_chunk_after_dropped_ones_does_not_continue(num_before, num_dropped):
    with new_ring() as (writer, reader):
        for _ in range(num_before):
            writer.publish()
        for _ in range(num_dropped):
            writer.skip()
        writer.publish()
        writer.publish()
        reader.answer()
        seen = []
        while chunk := reader.next_chunk():
            seen.append(chunk.continues)
            assert reader.next_chunk().continues == chunk.continues  # looking twice changes nothing
            reader.release()
        assert seen == [True] * num_before + [False, True]


ACTIONS = ["publish", "skip", "reader answers", "release", "wake writer", "writer answers"]
# Some in a row, as they happen in a run: without them, few lists would get the ring round even once.
SEQUENCES = [
    *([action] for action in ACTIONS),
    ["publish", "reader answers"],
    ["release", "wake writer"],
    ["release", "wake writer", "writer answers"],
    ["publish", "reader answers", "release", "wake writer", "writer answers"],
]


@given(
    num_slots=st.integers(1, 4),
    sequences=st.lists(st.sampled_from(SEQUENCES), min_size=4, max_size=20),
    times=st.integers(1, 20),
)
@settings(max_examples=120, deadline=None)
def test_any_order_of_publish_drop_and_release_behaves_like_a_list(num_slots, sequences, times):
    shape = RingShape(num_slots, num_envs=1, chunk_decisions=1)
    pending = []  # the model: (number, continues) of every chunk between the two ends
    numbers = itertools.count()
    gap = False
    num_told = 0  # of the pending ones, those the reader was told about
    num_untold_free = 0  # slots released, but the writer does not know
    writer_rung = False
    with new_ring(shape) as (writer, reader):
        poison_ring(reader.memory)
        for action in itertools.chain(*sequences * times):
            if action == "publish" and not writer.is_full:
                number = next(numbers)
                fill(writer.free_slot(), number, shape)
                writer.publish()
                pending.append((number, not gap))
                gap = False
            elif action == "skip":
                writer.skip()
                gap = True
            elif action == "reader answers":
                reader.answer()
                num_told = len(pending)
            elif action == "release" and num_told:
                released = reader.next_chunk()
                reader.release()
                poison(released.rows)  # "may change from now on"
                pending.pop(0)
                num_told -= 1
                num_untold_free += 1
            elif action == "wake writer":
                reader.wake_writer()
                writer_rung = True
            elif action == "writer answers":
                writer.answer()
                if writer_rung:
                    num_untold_free = 0
                writer_rung = False

            assert writer.is_full == (len(pending) + num_untold_free == num_slots)
            assert reader.num_waiting_rows == num_told * shape.rows_per_chunk
            chunk = reader.next_chunk()
            assert (chunk is None) == (num_told == 0)
            if chunk:
                assert is_chunk(chunk.rows, pending[0][0], shape)
                assert chunk.continues == pending[0][1]


def test_only_published_rows_are_read_from_poisoned_memory():
    with new_ring() as (writer, reader):
        poison_ring(reader.memory)
        assert reader.next_chunk() is None
        for number in range(4 * SHAPE.num_slots):
            fill(writer.free_slot(), number, SHAPE)
            reader.answer()
            assert reader.next_chunk() is None  # filled is not published
            writer.publish()
            reader.answer()
            chunk = reader.next_chunk()
            assert is_chunk(chunk.rows, number, SHAPE)
            reader.release()
            poison(chunk.rows)
            assert reader.next_chunk() is None
            reader.wake_writer()
            writer.answer()


@needs_shared_memory_folder
def test_a_ring_in_use_by_two_processes_has_no_name():
    before = shared_memory_names()
    control = Control(context, num_collectors=2)
    ours, theirs = context.Pipe()
    with new_ring() as (writer, _reader), ours, theirs:
        assert shared_memory_names() - before == set()
        with child(hold, writer, control, theirs) as process:
            assert receive(ours) == "started"
            assert shared_memory_names() - before == set()
            for pid in (os.getpid(), process.pid):
                assert mapped_shared_memory(pid)
                assert all(path.endswith("(deleted)") for path in mapped_shared_memory(pid))


@needs_shared_memory_folder
def test_a_killed_creator_leaves_no_shared_memory_behind():
    before = shared_memory_names()
    ours, theirs = context.Pipe()
    with ours, theirs, child(create_a_ring, theirs) as process:
        assert receive(ours) == 2
        process.kill()
        process.join(PATIENCE_SECONDS)
        assert shared_memory_names() - before == set()
