import itertools
import json
import multiprocessing
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from mario_rl.agent.acting import ActingNetwork
from mario_rl.agent.exploration import EpsilonLadder, Explorer
from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.channels.control import UNLIMITED, Control
from mario_rl.channels.experience_ring import CollectorStat
from mario_rl.channels.weight_slots import WeightSlots
from mario_rl.collecting.collector import Collector, CollectorSetup
from mario_rl.collecting.supervisor import Supervisor
from mario_rl.emulation.choosing import choose_emulator
from mario_rl.environment.actions import ACTION_SETS, RIGHT, action_probabilities
from mario_rl.experience import FIELDS, Mark, Rows, finished_episodes
from tests import rules

PLAY = replace(rules.PLAY, no_progress_decisions=12)
TASK = replace(rules.TASK, noop_start_max_frames=10, reward_scale=1 / 15, flag_bonus=1.0)
SHAPE = NetworkShape((4, 8, 8), 16, 7)
CONTEXT = multiprocessing.get_context("spawn")


def _setup(number=0, num_envs=2, low=1.0, high=1.0, shape=SHAPE, streams=2, **collecting):
    exploration = replace(rules.EXPLORATION, epsilon_ladder_low=low, epsilon_ladder_high=high)
    return CollectorSetup(
        number=number,
        collecting=replace(rules.COLLECTING, envs_per_process=num_envs, **collecting),
        play=PLAY,
        task=TASK,
        exploration=exploration,
        network=shape,
        ladder=EpsilonLadder(exploration, streams),
        seed=np.random.SeedSequence(5),
    )


def _poisoned_rows(num_envs, length):
    rows = Rows(*(np.zeros((num_envs, length, *field.shape), field.dtype) for field in FIELDS))
    for column in rows:
        column.view(np.uint8).fill(0xAB)
    return rows


def _collect(setup, num_chunks):
    control, slots = Control(CONTEXT, 1), WeightSlots(CONTEXT, QNetwork(setup.network).state_dict())
    collector = Collector(setup, control, slots)
    chunks = []
    for _ in range(num_chunks):
        rows = _poisoned_rows(setup.num_envs, setup.collecting.chunk_decisions)
        assert collector.collect_chunk(rows)
        chunks.append(rows)
    collector.close()
    return Rows(*(np.concatenate(columns, axis=1) for columns in zip(*chunks, strict=True)))


def test_rows_tell_whole_episodes_with_a_final_picture_and_a_summary():
    rows = _collect(_setup(), num_chunks=20)
    for env in range(2):
        marks = rows.marks[env]
        finals = np.flatnonzero(marks & Mark.FINAL)
        assert len(finals) >= 1
        assert marks[0] & Mark.START
        for final in finals[finals < len(marks) - 1]:
            assert marks[final - 1] & (Mark.TERMINATED | Mark.TRUNCATED)
            assert marks[final] == Mark.FINAL
            assert marks[final + 1] & Mark.START
        ends = np.flatnonzero(marks & (Mark.TERMINATED | Mark.TRUNCATED))
        assert np.array_equal(ends[ends < len(marks) - 1] + 1, finals)
        # Nothing of the poison is left: every field of every row was written.
        assert rows.action[env].max() < 7
        assert np.isfinite(rows.reward[env]).all()
        assert set(np.unique(marks)) <= {0, 1, 2, 3, 4, 5, 8}
    summaries = finished_episodes(rows)
    lengths = []
    for env in range(2):
        finals = np.flatnonzero(rows.marks[env] & Mark.FINAL)
        lengths += np.diff(np.concatenate(([-1], finals))).tolist()
    assert [summary.decisions for summary in summaries] == [length - 1 for length in lengths]
    assert all(summary.distance >= 40 for summary in summaries)


def test_the_same_seed_plays_the_same_and_another_stream_differs():
    one, same = _collect(_setup(), 3), _collect(_setup(), 3)
    for ours, theirs in zip(one, same, strict=True):
        assert np.array_equal(ours, theirs)
    assert not np.array_equal(one.action[0], one.action[1])


def test_the_length_of_chunks_changes_nothing_but_the_chunks():
    short, long = _collect(_setup(), num_chunks=24), _collect(_setup(chunk_decisions=192), num_chunks=1)
    assert finished_episodes(short)
    for name, ours, theirs in zip(Rows._fields, short, long, strict=True):
        assert np.array_equal(ours, theirs), name


def _act_alike(one, other):
    stacks = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
    return torch.equal(one._features(stacks), other._features(stacks))


def test_a_greedy_collector_follows_its_network():
    setup = _setup(low=0.0, high=0.0)
    control, slots = Control(CONTEXT, 1), WeightSlots(CONTEXT, QNetwork(SHAPE).state_dict())
    control.decisions = 10**6  # exploration has decayed
    collector = Collector(setup, control, slots)
    network = QNetwork(SHAPE)
    state = network.state_dict()
    state["advantage.bias"].view(7, -1)[3, -1] = 100.0  # run to the right, whatever is seen
    slots.publish(state)
    collector.take_news()
    rows = _poisoned_rows(2, 8)
    collector.collect_chunk(rows)
    collector.close()
    assert collector.weights_version == 1
    assert set(rows.action[(rows.marks & Mark.FINAL) == 0]) == {3}
    assert _act_alike(collector._acting, ActingNetwork(network))  # folded anew


def test_a_collector_continues_with_the_weights_of_a_checkpoint():
    control, slots = Control(CONTEXT, 1), WeightSlots(CONTEXT, QNetwork(SHAPE).state_dict())
    one, other = (Collector(_setup(), control, slots) for _ in range(2))
    slots.publish(QNetwork(SHAPE).state_dict())
    one.take_news()
    other.load(one.state(), one.tensors())
    assert _act_alike(one._acting, other._acting)
    one.close()
    other.close()


def test_a_stopped_collector_gives_up_its_chunk():
    control, slots = Control(CONTEXT, 1), WeightSlots(CONTEXT, QNetwork(SHAPE).state_dict())
    collector = Collector(_setup(), control, slots)
    control.stop = True
    assert not collector.collect_chunk(_poisoned_rows(2, 8))
    collector.close()


def test_the_ladder_decays_to_a_different_epsilon_for_each_emulator():
    ladder = EpsilonLadder(
        replace(rules.EXPLORATION, epsilon_ladder_low=0.01, epsilon_ladder_high=0.2, epsilon_decay_decisions=1_000), 4
    )
    assert np.allclose(ladder.epsilons(0), 1.0)
    final = ladder.epsilons(5_000)
    assert final[0] == pytest.approx(0.01)
    assert final[-1] == pytest.approx(0.2)
    assert (np.diff(final) > 0).all()
    assert ((final < ladder.epsilons(500)) & (ladder.epsilons(500) < 1)).all()


def test_random_actions_favour_the_right():
    for actions in ("right_only", "simple", "complex"):
        probabilities = action_probabilities(actions, 0.75)
        holds_right = [bool(buttons & RIGHT) for buttons in ACTION_SETS[actions]]
        assert probabilities[holds_right].sum() == pytest.approx(0.75)
        assert probabilities.sum() == pytest.approx(1.0)


GREEDY = 6  # "left" is what the policy would do in these tests


def _explore(max_hold, epsilon, sticky=0.0, num_ticks=4_000, num_envs=8, short_hold=None):
    held = replace(
        rules.EXPLORATION,
        explore_max_hold=max_hold,
        explore_short_hold=short_hold or max_hold,
        explore_sticky_probability=sticky,
    )
    explorer = Explorer(held, num_envs, "simple", np.random.default_rng(3))
    best = np.full(num_envs, GREEDY)
    return np.stack([explorer.decide(np.full(num_envs, epsilon), lambda: best).copy() for _ in range(num_ticks)])


@pytest.mark.parametrize(("max_hold", "short_hold"), [(1, 1), (8, 8), (8, 2)])
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.5, 1.0])
def test_epsilon_is_the_share_of_random_decisions_however_long_they_are_held(max_hold, short_hold, epsilon):
    actions = _explore(max_hold, epsilon, short_hold=short_hold)
    random_and_not_greedy = 1 - action_probabilities("simple", 0.75)[GREEDY]
    assert (actions != GREEDY).mean() == pytest.approx(epsilon * random_and_not_greedy, abs=0.02)


def _runs(column):
    """Lengths of stretches of one and the same action that is not the greedy one."""
    edges = np.flatnonzero(np.diff(column, prepend=-1, append=-1))
    return [end - begin for begin, end in itertools.pairwise(edges) if column[begin] != GREEDY]


def test_random_actions_are_held_for_up_to_their_longest_hold():
    lengths = {length for column in _explore(max_hold=6, epsilon=0.02).T for length in _runs(column)}
    assert {1, 2, 3, 4, 5, 6} <= lengths


def test_every_second_emulator_lets_go_of_its_buttons_soon():
    columns = _explore(max_hold=8, epsilon=0.02, short_hold=2).T
    longest = [max(_runs(column)) for column in columns]
    assert min(longest[0::2]) == 8
    assert max(longest[1::2]) < 8  # two short ones of the same action may follow each other


def test_a_sticky_action_repeats_the_one_before_instead_of_the_best():
    # A random action lasts exactly one decision here, so every longer stretch was sticky. (Two random actions in a row
    # that are equal are rare at this epsilon.)
    runs = [length for column in _explore(1, 0.02, sticky=0.25, num_ticks=20_000).T for length in _runs(column)]
    assert np.mean(np.array(runs) > 1) == pytest.approx(0.25, abs=0.03)
    assert np.mean(np.array(runs) > 2) == pytest.approx(0.25**2, abs=0.02)


def test_the_policy_is_not_asked_when_all_emulators_explore():
    explorer = Explorer(rules.EXPLORATION, 3, "simple", np.random.default_rng(3))
    explorer.decide(np.ones(3), lambda: pytest.fail("asked"))


def test_an_explorer_continues_exactly_from_its_state():
    sticky = replace(rules.EXPLORATION, explore_max_hold=8, explore_sticky_probability=0.3)
    one, other = (Explorer(sticky, 4, "simple", np.random.default_rng(seed)) for seed in (1, 2))
    best = np.arange(4)
    for _ in range(5):
        one.decide(np.full(4, 0.5), lambda: best)
    other.load(json.loads(json.dumps(one.state())))
    for _ in range(20):
        assert np.array_equal(*(explorer.decide(np.full(4, 0.5), lambda: best) for explorer in (one, other)))


def _supervisor(collecting, control, on_failure=pytest.fail):
    """A supervisor that starts no collector again."""
    return Supervisor(CONTEXT, collecting, control, print, on_failure, pytest.fail)


@pytest.fixture
def supervisor():
    assert choose_emulator(PLAY.emulator, print) == PLAY.emulator  # compiled, as in a session
    started = []

    def start(setup, granted=UNLIMITED):
        control, slots = Control(CONTEXT, 1), WeightSlots(CONTEXT, QNetwork(setup.network).state_dict())
        control.grant_decisions(0, granted)
        one = _supervisor(setup.collecting, control)
        started.append(one)
        one.start([setup], slots)
        return one, one.readers[0], control

    yield start
    for one in started:
        one.stop()
        one.close()


def _wait_for_chunks(reader, count):
    while reader.num_waiting_rows < count * reader.memory.shape.rows_per_chunk:
        reader.filled.wait(30)
        reader.answer()


def test_a_full_ring_makes_the_collector_wait_and_nothing_is_dropped(supervisor):
    _, reader, _ = supervisor(_setup(rep_q_size=16))
    _wait_for_chunks(reader, 2)
    for _ in range(3):
        time.sleep(0.2)  # a slot may be freed before the collector has begun to wait for it; not every time
        assert reader.next_chunk().continues
        reader.release()
        reader.wake_writer()
        _wait_for_chunks(reader, 2)
    stats = reader.stats
    assert stats[CollectorStat.DECISIONS_WRITTEN] >= 4 * 16  # five chunks of 16 rows, less final pictures
    assert stats[CollectorStat.DECISIONS_DROPPED] == 0
    assert stats[CollectorStat.RING_WAIT_SECONDS] > 0


def test_in_drop_mode_the_game_goes_on_and_the_gap_is_marked(supervisor):
    _, reader, _ = supervisor(_setup(when_ring_full="drop", rep_q_size=16))
    _wait_for_chunks(reader, 2)
    while reader.stats[CollectorStat.DECISIONS_DROPPED] == 0:
        reader.filled.wait(0.05)
    first = [reader.next_chunk().continues]
    reader.release()
    first.append(reader.next_chunk().continues)
    reader.release()
    reader.wake_writer()
    _wait_for_chunks(reader, 1)
    assert first == [True, True]
    assert not reader.next_chunk().continues
    assert reader.stats[CollectorStat.RING_WAIT_SECONDS] == 0


def test_a_collector_waits_for_its_grant_and_that_is_counted_apart(supervisor):
    _, reader, control = supervisor(_setup(rep_q_size=64), granted=1)
    _wait_for_chunks(reader, 1)
    assert not reader.filled.answer()
    for granted in (17, 33, 49):  # a grant may come before the collector has begun to wait for it; not every time
        time.sleep(0.2)
        control.grant_decisions(0, granted)
        reader.wake_writer()
        _wait_for_chunks(reader, 1)
        reader.release()
    assert reader.stats[CollectorStat.THROTTLE_SECONDS] > 0
    assert reader.stats[CollectorStat.RING_WAIT_SECONDS] == 0


def test_a_collectors_traceback_reaches_the_parent(supervisor):
    broken = _setup(shape=SHAPE._replace(hidden_units=-1))
    control = Control(CONTEXT, 1)
    slots = WeightSlots(CONTEXT, QNetwork(SHAPE).state_dict())
    failures = []
    one = _supervisor(rules.COLLECTING, control, failures.append)
    one.start([broken], slots)
    one.readers[0].filled.wait(30)
    one.note_gone(0)
    one.tend()
    one.stop()
    one.close()
    (failure,) = failures
    assert "Collector 0 failed" in failure
    assert "Traceback" in failure
    assert "Error" in failure
