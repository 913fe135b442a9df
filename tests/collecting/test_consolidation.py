import multiprocessing
import threading
from dataclasses import replace

import numpy as np
import pytest

from mario_rl.accounts.ledger import Ledger
from mario_rl.channels.experience_ring import RingShape, create_ring
from mario_rl.collecting.consolidation import Consolidation, ConsolidationThread
from mario_rl.experience import EpisodeSummary, Mark, Rows
from mario_rl.replay.streams import ReplayStreams
from tests import rules

CONTEXT = multiprocessing.get_context("spawn")
SHAPE = RingShape(num_slots=6, num_envs=2, chunk_decisions=5)


def _fill(rows: Rows, marks) -> None:
    for column in rows:
        column[...] = 0
    rows.marks[...] = marks


class _Setup:
    def __init__(self, num_rings=2, commit_size=20, interval=1e6):
        rings = [create_ring(CONTEXT, SHAPE) for _ in range(num_rings)]
        self.writers, self.readers = [writer for writer, _ in rings], [reader for _, reader in rings]
        self.ledger = Ledger()
        self.replay = ReplayStreams(num_rings * SHAPE.num_envs, num_rings * SHAPE.num_envs * 300)
        self.consolidation = Consolidation(self.readers, self.replay, self.ledger)
        self.gone = []
        self.lines = []
        self.reported = threading.Event()
        self.thread = ConsolidationThread(
            CONTEXT,
            replace(rules.COLLECTING, experience_batch_size=commit_size, processor_log_seconds=interval),
            self.consolidation,
            self.readers,
            self.ledger,
            self.gone.append,
            self._on_line,
        )

    def _on_line(self, line):
        self.lines.append(line)
        self.reported.set()

    def write(self, ring=0, marks=0):
        _fill(self.writers[ring].free_slot(), marks)
        self.writers[ring].publish()

    def wait_for(self, condition):
        self.ledger.wait_until(condition, 20)
        assert condition()


@pytest.fixture
def setup():
    made = []

    def make(**options):
        made.append(_Setup(**options))
        return made[-1]

    yield make
    for one in made:
        one.thread.end()
        one.thread.close()
        for end in (*one.writers, *one.readers):
            end.close()


def test_a_commit_moves_everything_that_waits_and_frees_the_slots(setup):
    one = setup()
    for _ in range(3):
        one.write(ring=0)
    one.write(ring=1)
    for reader in one.readers:
        reader.answer()
    assert one.consolidation.num_waiting == 40
    one.consolidation.commit()
    assert one.consolidation.figures == (40, 1, 0, 40, 0)
    assert one.ledger.collected == 40
    assert one.replay.written_end.tolist() == [15, 15, 5, 5]
    one.writers[0].answer()
    for _ in range(SHAPE.num_slots):
        one.write(ring=0)  # all slots are free again


def test_final_pictures_are_no_decisions_and_tell_of_their_episode(setup):
    one = setup()
    marks = np.zeros((2, 5), np.uint8)
    marks[1, 3], marks[1, 4] = Mark.TERMINATED, Mark.FINAL
    rows = one.writers[0].free_slot()
    _fill(rows, marks)
    rows.episode_reward[1, 4], rows.episode_distance[1, 4] = 321.5, 777
    rows.episode_decisions[1, 4], rows.episode_cleared[1, 4] = 88, 1
    one.writers[0].publish()
    one.readers[0].answer()
    one.consolidation.commit()
    assert one.ledger.collected == 9
    assert one.ledger.take_episodes(5) == [EpisodeSummary(321.5, 777, 88, True)]


def test_the_thread_commits_when_enough_waits_and_soon_when_little_does(setup):
    one = setup(commit_size=10**6)
    one.thread.start()
    one.write()
    one.wait_for(lambda: one.ledger.collected == 10)  # by its timer: nothing else ever comes
    enough = setup(commit_size=10)
    enough.thread.start()
    enough.write()
    enough.wait_for(lambda: enough.ledger.collected == 10)


def test_what_waits_at_the_end_is_committed(setup):
    one = setup(commit_size=10**6)
    one.thread.start()
    one.write(ring=0)
    one.write(ring=1)
    one.thread.end()
    assert one.ledger.collected == 20


def test_a_writer_that_is_gone_is_reported_once_after_all_it_wrote(setup):
    one = setup(commit_size=1)
    one.thread.start()
    one.write(ring=1)
    one.writers[1].close()
    one.wait_for(lambda: one.ledger.collected == 10)
    one.write(ring=0)  # the others go on
    one.wait_for(lambda: one.ledger.collected == 20)
    assert one.gone == [1]


def test_a_ring_of_the_stop_doorbell_reaches_the_ledger(setup):
    one = setup()
    one.thread.start()
    one.thread.stop_reason = "SIGINT was received"
    one.thread.stop_ringer.ring()
    one.wait_for(lambda: one.ledger.stop_reason is not None)
    assert one.ledger.stop_reason == "SIGINT was received"


def test_figures_are_reported_although_nothing_arrives(setup):
    one = setup(interval=0.05)
    one.thread.start()
    assert one.reported.wait(20)
    assert one.lines[0].startswith("[PROCESSOR] Processed: 0 |")


def test_a_failure_of_the_thread_ends_the_run(setup, caplog):
    one = setup(commit_size=1)
    one.replay.append = None
    one.thread.start()
    one.write()
    one.wait_for(lambda: one.ledger.failure is not None)
    assert "consolidation" in one.ledger.failure
