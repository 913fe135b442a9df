"""Tests of replay. Every picture says whose it is, so that a wrong or half-overwritten one is noticed."""

from typing import NamedTuple

import numpy as np

from mario_rl.experience import FRAME_SIZE, Mark, Rows

_WORDS_PER_FRAME = FRAME_SIZE * FRAME_SIZE // 4


class Record(NamedTuple):
    """One row, as the tests write it down."""

    identity: int  # unique in a test; fills the whole picture
    action: int
    reward: float
    marks: Mark


def rows_of(records):
    """Records as the chunk of a collector with one emulator."""  # [1, T, ...]
    identities = np.array([record.identity for record in records], np.int32)
    frames = np.repeat(identities, _WORDS_PER_FRAME).view(np.uint8).reshape(len(records), FRAME_SIZE, FRAME_SIZE)
    columns = Rows(
        frame=frames,
        action=np.array([record.action for record in records], np.uint8),
        reward=np.array([record.reward for record in records], np.float32),
        marks=np.array([record.marks for record in records], np.uint8),
        episode_reward=np.zeros(len(records), np.float32),
        episode_distance=np.zeros(len(records), np.int32),
        episode_decisions=np.zeros(len(records), np.int32),
        episode_cleared=np.zeros(len(records), np.uint8),
        cell=np.zeros(len(records), np.int64),
    )
    return Rows(*(column[None] for column in columns))


def identities_of(pictures):
    """Whose pictures these are. Fails if one is put together from two."""  # [..., 84, 84] or [..., 7056] -> [...]
    words = pictures.reshape(-1, _WORDS_PER_FRAME * 4).view(np.int32)
    assert (words == words[:, :1]).all(), "a picture is torn"
    return words[:, 0]


class Player:
    """An emulator that plays episodes of given lengths and ends, over and over."""

    def __init__(self, stream, episodes):
        self._episodes = episodes  # (number of decisions, Mark.TERMINATED or Mark.TRUNCATED)
        self._first_identity = stream * 1_000_000
        self._num_played = 0
        self._num_episodes = 0
        self._decision = 0

    def play(self, count):
        return [self._next_record() for _ in range(count)]

    def restart(self):
        """Give the episode up and begin the next one."""
        self._num_episodes += 1
        self._decision = 0

    def _next_record(self):
        identity = self._first_identity + self._num_played
        action, reward = self._num_played * 7 % 251, float(self._num_played % 13 - 4)
        self._num_played += 1
        num_decisions, end = self._episodes[self._num_episodes % len(self._episodes)]
        if self._decision == num_decisions:
            self.restart()
            return Record(identity, 0, 0.0, Mark.FINAL)
        marks = Mark.START if self._decision == 0 else Mark(0)
        self._decision += 1
        if self._decision == num_decisions:
            marks |= end
        return Record(identity, action, reward, marks)


def poison(streams):
    """Fill all memory that append has not written with values that no record has."""
    streams.frames.fill_(0xFF)
    streams.action[:] = 0xFF
    streams.reward[:] = np.nan
    streams.marks[:] = 0xFF
    streams.history[:] = 0xFF
