"""Replay as a list of lists, which samplers are compared with; and small replays to draw from."""

from typing import NamedTuple

from mario_rl.experience import STACK_SIZE, Mark
from mario_rl.replay.sampler import SampleBuffer
from mario_rl.replay.streams import GUARD_ROWS, ReplayStreams
from tests.replay import Player, Record, identities_of, poison, rows_of

GAMMA = 0.5  # a power of two: every return of the whole rewards here is exact
LONGEST_CHUNK = 16
LENGTH = 2 * GUARD_ROWS + LONGEST_CHUNK


# --- The model: a stream is a list of segments, a segment a list of rows without a hole. Nothing ever wraps.


class Sample(NamedTuple):
    """What a drawn row must look like."""

    stack: tuple[int, ...]
    action: int
    n_step_return: float
    discount: float
    next_stack: tuple[int, ...] | None  # None where nothing follows


class Row(NamedTuple):
    number: int  # rows that were appended before this one
    record: Record


class ModelStream:
    def __init__(self):
        self.segments = []
        self.num_rows = 0

    def append(self, records, continues):
        for index, record in enumerate(records):
            hole_before = index == 0 and not continues
            if not self.segments or hole_before or Mark.START in record.marks:
                self.segments.append([])
            self.segments[-1].append(Row(self.num_rows, record))
            self.num_rows += 1

    def samples(self, n_step, oldest=0):
        """All that may be drawn, by the state's identity, when rows before `oldest` must not be used."""
        samples = {}
        for segment in self.segments:
            for index in range(len(segment)):
                sample = self._sample(segment, index, n_step)
                oldest_needed = segment[max(0, index - STACK_SIZE + 1)].number
                if sample is not None and oldest_needed >= oldest:
                    samples[segment[index].record.identity] = sample
        return samples

    def _sample(self, segment, index, n_step):
        stack = self._stack(segment, index)
        record = segment[index].record
        if stack is None or Mark.FINAL in record.marks:
            return None
        n_step_return, discount = 0.0, 1.0
        for here in range(index, index + n_step):
            if here >= len(segment):
                return None  # not known yet, or lost
            n_step_return += discount * segment[here].record.reward
            discount *= GAMMA
            if Mark.TERMINATED in segment[here].record.marks:
                return Sample(stack, record.action, n_step_return, 0.0, None)
            if Mark.TRUNCATED in segment[here].record.marks:
                break
        if here + 1 >= len(segment):
            return None
        return Sample(stack, record.action, n_step_return, discount, self._stack(segment, here + 1))

    @staticmethod
    def _stack(segment, index):
        pictures = [row.record.identity for row in segment[: index + 1]][-STACK_SIZE:]
        missing = STACK_SIZE - len(pictures)
        if missing and Mark.START not in segment[0].record.marks:
            return None
        return (pictures[0],) * missing + tuple(pictures)


# --- Reading what the sampler gives.


def read_samples(buffer):
    """The buffer's samples, as the model writes them, with their states' identities."""
    stacks = identities_of(buffer.pictures.numpy()).reshape(buffer.size, 2, STACK_SIZE)
    columns = (stacks, buffer.actions.numpy(), buffer.returns.numpy(), buffer.discounts.numpy())
    for (stack, next_stack), action, n_step_return, discount in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        following = tuple(next_stack) if discount else None
        yield stack[-1], Sample(tuple(stack), action, n_step_return, discount, following)


def drawn_by(sampler, expected, buffer_size=64, prioritized=False):
    """Everything that is drawn, until all that is expected was seen or chance cannot be the reason that it was not."""
    buffer = SampleBuffer(buffer_size, prioritized=prioritized)
    drawn = {}
    for _ in range(2 + 40 * len(expected) // buffer_size):
        sampler.sample(buffer)
        for identity, sample in read_samples(buffer):
            assert drawn.setdefault(identity, sample) == sample
        if expected.keys() <= drawn.keys():
            break
    return drawn


def replay_of(*chunks, length=LENGTH):
    """One stream with these chunks in it."""
    replay = ReplayStreams(1, length)
    poison(replay)
    for chunk in chunks:
        replay.append(0, rows_of(chunk))
    return replay


def episode(rewards, end, first_identity=100):
    """An episode with its FINAL row; identities count up from the first."""
    records = [Record(first_identity + step, step, reward, Mark(0)) for step, reward in enumerate(rewards)]
    records[0] = records[0]._replace(marks=Mark.START)
    records[-1] = records[-1]._replace(marks=records[-1].marks | end)
    return [*records, Record(first_identity + len(rewards), 0, 0.0, Mark.FINAL)]


# --- Anything that can happen.


def append_chunk(replay, model, stream, player, chunk):
    count, event = chunk
    if event in ("restart", "restart unannounced"):
        player.restart()
    elif event is not None:
        player.play(event)  # lost
    continues = event in (None, "restart unannounced")
    if not continues:
        replay.interrupt(stream)
    records = player.play(count)
    replay.append(stream, rows_of(records))
    model[stream].append(records, continues)


def drawable(replay, model, n_step):
    samples = {}
    for stream in model:
        wrapped = stream.num_rows > replay.length
        samples |= stream.samples(n_step, oldest=stream.num_rows - replay.length + GUARD_ROWS if wrapped else 0)
    return samples


def filled_replay(num_chunks, num_streams=2):
    """Streams with all kinds of chunks, the model of them, and the players in mid-episode."""
    replay = ReplayStreams(num_streams, num_streams * LENGTH)
    model = [ModelStream() for _ in range(num_streams)]
    players = [Player(stream, [(7, Mark.TERMINATED), (11, Mark.TRUNCATED)]) for stream in range(num_streams)]
    for turn in range(num_chunks):
        for stream, player in enumerate(players):
            event = (None, None, 3, None, "restart")[(turn + stream) % 5]
            append_chunk(replay, model, stream, player, (9 + stream, event))
    return replay, model, players
