import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mario_rl.experience import Mark, Rows
from mario_rl.replay.streams import GUARD_ROWS, ReplayStreams
from tests.replay import Player, identities_of, poison, rows_of

LONGEST_CHUNK = 12
LENGTH = 2 * GUARD_ROWS + LONGEST_CHUNK
EPISODES = [(5, Mark.TERMINATED), (1, Mark.TRUNCATED), (9, Mark.TRUNCATED)]


def content(stored):
    """Stored rows as comparable tuples, without the sampler's own column."""
    columns = (identities_of(stored.frame), stored.action, stored.reward, stored.marks)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def same_rows(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


@given(
    extra_length=st.integers(0, 9),
    chunks=st.lists(
        st.tuples(st.integers(1, LONGEST_CHUNK), st.sampled_from([False, False, True])), min_size=1, max_size=12
    ),
    num_rows=st.lists(st.integers(0, 5 * LENGTH), min_size=1, max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_a_stream_is_the_newest_part_of_the_list_of_all_rows_ever_appended(extra_length, chunks, num_rows):
    length, num_streams = LENGTH + extra_length, len(num_rows)
    replay = ReplayStreams(num_streams, num_streams * length + num_streams - 1)
    assert replay.length == length  # what does not divide by the streams is not used
    poison(replay)
    appended = [[] for _ in num_rows]
    players = [Player(stream, EPISODES) for stream in range(num_streams)]
    for count, interrupted in itertools.islice(itertools.cycle(chunks), max(num_rows)):
        for stream, player in enumerate(players):
            if len(appended[stream]) >= num_rows[stream]:
                continue
            records = player.play(count)
            broken = interrupted or not appended[stream]
            if interrupted:
                replay.interrupt(stream)
            replay.append(stream, rows_of(records))
            for index, record in enumerate(records):
                marks = record.marks | Mark.BREAK if broken and index == 0 else record.marks
                appended[stream].append((record.identity, record.action, record.reward, int(marks)))

    assert replay.num_rows == sum(min(len(rows), length) for rows in appended)
    for stream, rows in enumerate(appended):
        oldest = max(0, len(rows) - length)
        assert replay.oldest(stream) == oldest
        assert replay.written_end[stream] == replay.claimed_end[stream] == len(rows)
        assert content(replay.read(stream, oldest, len(rows))) == rows[oldest:]


def test_a_chunk_of_several_emulators_is_the_same_as_one_chunk_for_each():
    together, one_by_one = ReplayStreams(3, 3 * LENGTH), ReplayStreams(3, 3 * LENGTH)
    players = [Player(stream, EPISODES[stream:] + EPISODES[:stream]) for stream in range(3)]
    for number in range(3 * LENGTH // LONGEST_CHUNK):  # three laps
        if number in (4, 11):
            together.interrupt(2)
            one_by_one.interrupt(2)
        chunks = [rows_of(player.play(LONGEST_CHUNK)) for player in players]
        together.append(0, Rows(*(np.concatenate(columns) for columns in zip(*chunks, strict=True))))
        for stream, chunk in enumerate(chunks):
            one_by_one.append(stream, chunk)
    assert together.counters() == one_by_one.counters()
    for column in ("frames", "action", "reward", "marks", "history"):
        assert np.array_equal(getattr(together, column), getattr(one_by_one, column)), column


def test_append_does_not_change_the_chunk_it_is_given():
    replay = ReplayStreams(1, LENGTH)
    rows = rows_of(Player(0, EPISODES).play(4))
    before = rows.marks.copy()
    replay.append(0, rows)
    assert replay.read(0, 0, 1).marks[0] & Mark.BREAK
    assert np.array_equal(rows.marks, before)


def test_rows_are_claimed_before_and_counted_after_they_are_written():
    replay = ReplayStreams(1, LENGTH)
    player = Player(0, EPISODES)
    seen = set()

    class WatchedFrames(np.ndarray):
        """Notes the counters whenever pictures are taken out of the chunk."""

        def __getitem__(self, key):
            seen.add((int(replay.claimed_end[0]), int(replay.written_end[0])))
            return np.asarray(self)[key]

    for begin in range(0, 2 * LENGTH, 9):  # also across the block's end
        rows = rows_of(player.play(9))
        replay.append(0, rows._replace(frame=rows.frame.view(WatchedFrames)))
        assert seen == {(begin + 9, begin)}
        seen.clear()


def test_an_interruption_concerns_only_its_own_stream():
    replay = ReplayStreams(2, 2 * LENGTH)
    players = [Player(0, EPISODES), Player(1, EPISODES)]
    for stream in (0, 1):
        replay.append(stream, rows_of(players[stream].play(3)))
    replay.interrupt(1)
    for stream in (0, 1):
        replay.append(stream, rows_of(players[stream].play(3)))
    breaks = [((replay.read(stream, 0, 6).marks & Mark.BREAK) != 0).tolist() for stream in (0, 1)]
    assert breaks == [[True] + 5 * [False], [True, False, False, True, False, False]]


def test_a_chunk_that_would_leave_no_guarded_room_is_refused():
    replay = ReplayStreams(1, LENGTH)
    with pytest.raises(AssertionError, match="much shorter"):
        replay.append(0, rows_of(Player(0, EPISODES).play(LONGEST_CHUNK + 1)))
    assert replay.num_rows == 0
    replay.append(0, rows_of(Player(0, EPISODES).play(LONGEST_CHUNK)))
    assert replay.num_rows == LONGEST_CHUNK


@pytest.mark.parametrize("num_chunks", [3, 40])  # the second wraps several times
@pytest.mark.parametrize("interrupted", [False, True])
def test_a_restored_copy_goes_on_exactly_like_the_original(num_chunks, interrupted):
    original = ReplayStreams(2, 2 * LENGTH)
    players = [Player(0, EPISODES), Player(1, EPISODES)]
    for _ in range(num_chunks):
        for stream, player in enumerate(players):
            original.append(stream, rows_of(player.play(11)))
    if interrupted:
        original.interrupt(1)

    copy = ReplayStreams(2, 2 * LENGTH)
    poison(copy)
    for stream in (0, 1):
        begin, end = original.oldest(stream), int(original.written_end[stream])
        middle = (begin + end) // 2
        for part in ((middle, end), (begin, middle)):  # a checkpoint moves blocks, newest first
            copy.restore(stream, part[0], original.read(stream, *part))
    copy.restore_counters(json.loads(json.dumps(original.counters())))

    for _ in range(2):
        assert copy.num_rows == original.num_rows
        for stream, player in enumerate(players):
            begin, end = original.oldest(stream), int(original.written_end[stream])
            assert (copy.oldest(stream), int(copy.written_end[stream])) == (begin, end)
            assert same_rows(copy.read(stream, begin, end), original.read(stream, begin, end))
            following = rows_of(player.play(7))
            original.append(stream, following)
            copy.append(stream, following)


def test_rows_that_a_checkpoint_left_out_do_not_count():
    original = ReplayStreams(1, LENGTH)
    original.append(0, rows_of(Player(0, EPISODES).play(LONGEST_CHUNK)))
    copy = ReplayStreams(1, LENGTH)
    copy.restore(0, 5, original.read(0, 5, LONGEST_CHUNK))
    copy.restore_counters(original.counters() | {"first_kept": [5]})
    assert copy.oldest(0) == 5
    assert copy.num_rows == LONGEST_CHUNK - 5
