"""One player: collecting, evaluation and films play the same episodes, because they play through the same code."""

from dataclasses import replace

import numpy as np
import torch

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.emulation.rules import Level
from mario_rl.environment.actions import ACTION_SETS
from mario_rl.environment.episodes import Episodes
from mario_rl.evaluation import episodes as evaluation
from mario_rl.evaluation.recording import play_greedily
from mario_rl.experience import Mark
from tests.environment.test_episodes import RUN, _play
from tests.rules import PLAY, game_rules

LEVEL = Level(1, 1)
PATIENT = replace(PLAY, no_progress_decisions=40)
# A stop, which is a cut for want of progress where the rules are strict; then a jump, and into the first enemy.
SCRIPT = [RUN] * 4 + [0] * 14 + [RUN] * 6 + [4] * 3 + [RUN] * 60


class _Script:
    """Acts in the place of a network: the same buttons, whatever it sees; and keeps what it saw."""

    def __init__(self):
        self.seen = []

    def best_actions(self, stacks):
        self.seen.append(stacks[0, -1].numpy().copy())
        return np.full(len(stacks), SCRIPT[len(self.seen) - 1])

    def best_action(self, stack):
        return int(self.best_actions(stack)[0]), 0.0


def _evaluate(monkeypatch, rules):
    script = _Script()
    monkeypatch.setattr(evaluation, "ActingNetwork", lambda network: script)
    (episode,) = evaluation.play_episodes(
        None, rules, LEVEL, np.zeros(1, np.int32), evaluation.NOT_STICKY, np.random.default_rng(0)
    )
    return episode, script.seen


def _collect(rules):
    play, task = game_rules(no_progress_decisions=rules.no_progress_decisions, reward_scale=1.0, flag_bonus=0.0)
    episodes = Episodes(play, task, 1, np.random.default_rng(0))
    rows = _play(episodes, np.array(SCRIPT)[:, None])
    episodes.close()
    final = int(np.flatnonzero(rows.marks[0] & Mark.FINAL)[0])
    return rows, final


def test_the_same_buttons_give_collecting_and_evaluation_the_same_pictures_rewards_and_end(monkeypatch):
    for rules, ending in ((PATIENT, Mark.TERMINATED), (replace(PATIENT, no_progress_decisions=5), Mark.TRUNCATED)):
        episode, seen = _evaluate(monkeypatch, rules)
        rows, final = _collect(rules)
        assert rows.marks[0, final - 1] & ending
        assert len(seen) == final == episode.decisions == rows.episode_decisions[0, final]
        for decision in range(final):
            assert np.array_equal(seen[decision], rows.frame[0, decision]), decision
        assert rows.reward[0, :final].sum() == episode.reward == rows.episode_reward[0, final]
        assert episode.distance == rows.episode_distance[0, final]
        assert episode.cleared == bool(rows.episode_cleared[0, final])


def test_films_show_the_episode_that_evaluation_plays(monkeypatch):
    episode, seen = _evaluate(monkeypatch, PATIENT)
    script = _Script()
    monkeypatch.setattr("mario_rl.evaluation.recording.ActingNetwork", lambda network: script)
    shots = list(play_greedily(None, PATIENT, LEVEL, 0))
    assert [shot.buttons for shot in shots[1:]] == [ACTION_SETS["simple"][action] for action in SCRIPT[: len(seen)]]
    assert (shots[-1].cleared, shots[-1].distance, shots[-1].num_decisions) == (
        episode.cleared,
        episode.distance,
        episode.decisions,
    )
    assert all(np.array_equal(one, other) for one, other in zip(seen, script.seen, strict=True))


def test_a_network_chooses_the_same_action_in_films_as_in_evaluation():
    torch.manual_seed(3)
    network = QNetwork(NetworkShape((4, 8, 8), 16, 7)).eval()
    (episode,) = evaluation.play_episodes(
        network, PATIENT, LEVEL, np.array([4], np.int32), evaluation.NOT_STICKY, np.random.default_rng(0)
    )
    *_, last = play_greedily(network, PATIENT, LEVEL, 4)
    assert (last.distance, last.num_decisions) == (episode.distance, episode.decisions)
