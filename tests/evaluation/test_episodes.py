from dataclasses import replace

import numpy as np
import pytest
import torch

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.emulation.emulator import NO_RESTART, make_emulator
from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ACTION_SETS
from mario_rl.environment.observation import show_buttons
from mario_rl.environment.player import Player
from mario_rl.evaluation.episodes import NOT_STICKY, STARTS, UNSEEN_STARTS, Sticky, evaluate, play_episodes
from mario_rl.evaluation.results import Episode, Evaluation
from tests import rules

PLAY = replace(rules.PLAY, no_progress_decisions=25)
NOOP, RUN, LEFT = 0, 3, 6
LEVEL = Level(1, 1)


def _network(action=None, seed=0):
    """A network that always wants the same action, or one that wants whatever its first weights say."""
    torch.manual_seed(seed)
    network = QNetwork(NetworkShape((4, 8, 8), 16, 7)).eval().requires_grad_(False)
    if action is not None:
        network.advantage.bias.view(7, -1)[action, -1] = 100.0
    return network


def _by_hand(action, idle_frames):
    """One game, step by step."""
    emulator = make_emulator("fast", [Level(1, 1)])
    pictures = np.empty((1, 1, 84, 84), np.uint8)
    emulator.step(np.zeros(1, np.uint8), 4, np.array([idle_frames], np.int32), pictures, 0)
    distance, reward, decisions = int(emulator.outcomes.x[0]), 0.0, 0
    while True:
        emulator.step(
            np.array([ACTION_SETS["simple"][action]], np.uint8), 4, np.full(1, NO_RESTART, np.int32), pictures, 0
        )
        reward += float(emulator.outcomes.reward[0])
        decisions += 1
        distance = max(distance, int(emulator.outcomes.x[0]))
        if emulator.outcomes.done[0]:
            emulator.close()
            return Episode(False, distance, reward, decisions)


def test_every_game_of_the_batch_plays_its_own_episode_to_its_own_end():
    starts = np.array([0, 7, 30], np.int32)
    episodes = play_episodes(_network(RUN), PLAY, LEVEL, starts, NOT_STICKY, np.random.default_rng(0))
    assert episodes == [_by_hand(RUN, idle) for idle in starts]


def test_a_game_that_is_done_plays_the_next_episode_that_waits(monkeypatch):
    starts, network = np.array([0, 7, 30, 12, 3], np.int32), _network(seed=3)
    at_once = play_episodes(network, PLAY, LEVEL, starts, NOT_STICKY, np.random.default_rng(0))
    monkeypatch.setattr("mario_rl.evaluation.episodes.GAMES_AT_ONCE", 2)
    assert play_episodes(network, PLAY, LEVEL, starts, NOT_STICKY, np.random.default_rng(0)) == at_once
    in_turn = play_episodes(_network(RUN), PLAY, LEVEL, starts, NOT_STICKY, np.random.default_rng(0))
    assert in_turn == [_by_hand(RUN, idle) for idle in starts]


def test_who_gets_no_further_is_stopped():
    (episode,) = play_episodes(_network(LEFT), PLAY, LEVEL, np.zeros(1, np.int32), NOT_STICKY, np.random.default_rng(0))
    assert episode.decisions == PLAY.no_progress_decisions
    assert not episode.cleared


class _Recorder:
    """Acts in the place of a network: wants another action at every call, and keeps what it saw."""

    def __init__(self):
        self.seen = []

    def best_actions(self, stacks):
        self.seen.append(stacks.clone())
        return np.full(len(stacks), len(self.seen) % 5)


@pytest.fixture
def recorder(monkeypatch):
    made = _Recorder()
    monkeypatch.setattr("mario_rl.evaluation.episodes.ActingNetwork", lambda network: made)
    return made


def test_sticky_actions_repeat_the_one_before_and_depend_on_the_seed(recorder):
    def play(sticky, seed):
        recorder.seen.clear()
        return play_episodes(
            _network(), PLAY, LEVEL, np.zeros(6, np.int32), Sticky(sticky), np.random.default_rng(seed)
        )

    assert len(set(play(0.0, 1))) == 1  # without them, a greedy policy has one episode
    assert play(0.5, 1) == play(0.5, 1)
    assert play(0.5, 1) != play(0.5, 2)
    assert len(set(play(0.5, 1))) > 1


def test_buttons_that_come_late_by_frames_are_held_from_the_frame_that_does_not_stick(monkeypatch):
    """With a chance of one half by frame, 1/16 of all decisions stick for all four frames."""
    seen = []
    tick = Player.tick

    def watch(player, actions, idle_frames, pictures, number, delays=None):
        before = player.held.copy()
        result = tick(player, actions, idle_frames, pictures, number, delays)
        if delays is not None:
            played = idle_frames == NO_RESTART
            wanted = np.array(ACTION_SETS["simple"], np.uint8)[actions]
            assert np.array_equal(player.held[played], np.where(delays < 4, wanted, before)[played])
            seen.extend(delays[played & (player.num_decisions > 1)].tolist())
        return result

    monkeypatch.setattr(Player, "tick", watch)
    sticky = Sticky(0.5, by_frame=True)
    play_episodes(_network(RUN), PLAY, LEVEL, np.zeros(32, np.int32), sticky, np.random.default_rng(0))
    shares = np.bincount(seen, minlength=5) / len(seen)
    assert shares == pytest.approx([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16], abs=0.05)


def test_the_network_sees_the_stack_that_training_sees(recorder):
    play_episodes(_network(), PLAY, LEVEL, np.array([3], np.int32), NOT_STICKY, np.random.default_rng(0))
    emulator = make_emulator("fast", [Level(1, 1)])
    picture = np.empty((1, 1, 84, 84), np.uint8)
    emulator.step(np.zeros(1, np.uint8), 4, np.array([3], np.int32), picture, 0)
    show_buttons(picture[:, 0], np.zeros(1, np.uint8))
    stack = [picture[0, 0].copy()] * 4  # an episode's first picture fills its stack
    for tick in range(6):
        assert np.array_equal(recorder.seen[tick][0], np.stack(stack)), tick
        action = (tick + 1) % 5
        held = np.array([ACTION_SETS["simple"][action]], np.uint8)
        emulator.step(held, 4, np.full(1, NO_RESTART, np.int32), picture, 0)
        show_buttons(picture[:, 0], held)
        stack = [*stack[1:], picture[0, 0].copy()]
    emulator.close()


def test_an_evaluation_plays_each_start_once_and_sticky_episodes_only_when_they_are_worth_it():
    evaluation = evaluate(_network(RUN), PLAY, LEVEL, seed=1, sticky_episodes=3)
    assert (len(evaluation.starts), len(evaluation.sticky)) == (len(STARTS), 3)
    assert evaluation.clear_rate == 0.0
    assert evaluation.mean_distance == pytest.approx(np.mean([episode.distance for episode in evaluation.starts]))
    assert evaluation == evaluate(_network(RUN), PLAY, LEVEL, seed=1, sticky_episodes=3)
    assert not set(STARTS.tolist()) & set(UNSEEN_STARTS.tolist())


def test_the_rates_are_shares_of_their_own_half():
    won, lost = Episode(True, 3_161, 3_000.0, 250), Episode(False, 600, 500.0, 60)
    evaluation = Evaluation(Level(1, 1), [won, won, lost, won], [won, lost])
    assert (evaluation.clear_rate, evaluation.sticky_clear_rate) == (0.75, 0.5)
    assert evaluation.mean_reward == pytest.approx(2_375.0)
