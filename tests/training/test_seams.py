"""Seams that are real: another source of experience, another network and another reward term, each on its own."""

import inspect

import numpy as np
import pytest
import torch
from torch import nn

from mario_rl.agent import network as network_module
from mario_rl.agent.pictures import scale_pictures
from mario_rl.app import wiring
from mario_rl.emulation.choosing import choose_emulator
from mario_rl.environment import rewards
from mario_rl.evaluation.episodes import NOT_STICKY, play_episodes
from mario_rl.experience import FIELDS, EpisodeSummary, Mark, Rows
from mario_rl.settings.hardware import make_plan
from mario_rl.storage.checkpoints import CheckpointStore
from mario_rl.storage.policies import read_policy
from mario_rl.storage.runs import Run
from mario_rl.training.limits import Limits
from mario_rl.training.loop import train
from tests.small_runs import Lines, small_settings


class EpisodesFromMemory:
    """Endless episodes of noise in which action 3 earns 1: an experience source that plays no game."""

    num_restarts = num_lost = 0

    def __init__(self, replay, ledger):
        self._replay, self._ledger = replay, ledger
        self._rng = np.random.default_rng(0)
        self._stop_reason = None

    def start(self):
        pass

    def wait_for_work(self, condition, timeout_seconds):
        while not condition() and self._ledger.stop_reason is None:
            num_streams, length = self._replay.num_streams, 16  # an episode of 15 decisions, and its last picture
            rows = Rows(*(np.zeros((num_streams, length, *field.shape), field.dtype) for field in FIELDS))
            rows.frame[:] = self._rng.integers(256, size=rows.frame.shape)
            rows.action[:] = self._rng.integers(7, size=rows.action.shape)
            rows.reward[:] = rows.action == 3
            rows.marks[:, 0], rows.marks[:, -2], rows.marks[:, -1] = Mark.START, Mark.TERMINATED, Mark.FINAL
            self._replay.append(0, rows)
            summary = EpisodeSummary(float(rows.reward[0].sum()), 40, length - 1, cleared=False)
            self._ledger.add_collected(num_streams * (length - 1), [summary] * num_streams)
            if self._stop_reason is not None:
                self._ledger.request_stop(self._stop_reason)

    def limit_collection(self, limit):
        pass

    def request_stop(self, reason):
        self._stop_reason = reason

    def is_stopping(self):
        return self._stop_reason is not None

    def metrics(self):
        return {}

    def stop(self):
        pass

    kill = stop

    def state(self):
        return {}

    tensors = state

    def check(self, state, tensors):
        pass

    def load(self, state, tensors):
        return []


def _train(folder, limits, **changes):
    settings = small_settings(**changes)
    assert choose_emulator(settings.play.emulator, print) == "fast"  # compiled, as in a session
    pipeline = wiring.connect(settings, make_plan(settings, serial=True), Lines(), serial=True)
    run = Run("run", folder / "checkpoints", folder / "models")
    outcome = train(pipeline, settings.schedule, limits, run, CheckpointStore(run.checkpoints, keep=1))
    assert outcome.failure is None
    return pipeline, run


def test_a_source_of_experience_that_no_other_file_knows_of(tmp_path, monkeypatch):
    monkeypatch.setattr(
        wiring, "_make_source", lambda _c, _s, _w, replay, ledger, _l, _k, serial: EpisodesFromMemory(replay, ledger)
    )
    changes = {"GAMMA": 0.0, "N_STEP": 1, "REPLAY_RATIO": 8.0, "LEARNING_RATE": 1e-2, "PICTURE_SHIFT": 0}
    pipeline, _ = _train(tmp_path, Limits(epochs=10**6, decisions=900), **changes)
    assert pipeline.ledger.collected >= 900
    assert pipeline.progress.epoch > 10
    assert pipeline.learner.num_updates > 300
    pictures = scale_pictures(
        torch.from_numpy(np.random.default_rng(1).integers(256, size=(8, 4, 84, 84)).astype("u1"))
    )
    assert (pipeline.learner.networks.averaged(pictures).argmax(dim=1) == 3).all()  # it has learned what earns


class Average(nn.AvgPool2d):
    """A trunk that sees little: the mean of each field of 7 x 7 pixels."""

    num_features = 4 * 12 * 12

    def __init__(self, channels):
        super().__init__(kernel_size=7)

    def frozen(self):
        return lambda stacks: self(scale_pictures(stacks))


def test_a_second_network_is_a_file_and_an_entry(tmp_path, monkeypatch):
    monkeypatch.setitem(network_module.TRUNKS, "average", Average)
    pipeline, run = _train(tmp_path, Limits(epochs=10**6, decisions=250), NETWORK="average")
    assert pipeline.learner.num_updates > 5
    policy = read_policy(run.newest_model)
    assert policy.shape.network == "average"
    rules = small_settings(NETWORK="average").play
    starts = np.zeros(1, np.int32)
    assert play_episodes(policy.network(), rules, policy.levels[0], starts, NOT_STICKY, np.random.default_rng(0))


def hurry(_rules):
    """A quarter of a point for every decision that it takes."""
    return lambda player, _tick: np.where(player.at_start, 0.0, -0.25)


def test_a_second_reward_term_is_a_function_and_an_entry(tmp_path, monkeypatch):
    limits = Limits(epochs=10**6, decisions=90)  # all of them random: what is learned makes no difference yet
    plain, _ = _train(tmp_path / "plain", limits)
    monkeypatch.setattr(rewards, "TERMS", (*rewards.TERMS, hurry))
    hurried, _ = _train(tmp_path / "hurried", limits)
    before, after = plain.saver.replay, hurried.saver.replay
    is_decision = (before.marks & Mark.FINAL) == 0
    written = np.arange(len(before.reward)) % before.length < before.written_end[0]
    assert np.array_equal(before.action, after.action)
    difference = (after.reward - before.reward)[is_decision & written]
    assert len(difference) >= 90
    assert difference == pytest.approx(-0.25)


def test_the_source_of_the_first_test_is_short():
    assert len(inspect.getsource(EpisodesFromMemory).splitlines()) < 60
