import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from mario_rl.learning.learner import Learner
from mario_rl.learning.rules import Execution
from mario_rl.learning.sampling import SampleInline
from mario_rl.learning.trainers import LoneTrainer
from mario_rl.learning.worker_team import WorkerTeam
from mario_rl.replay.streams import ReplayStreams
from mario_rl.replay.uniform import UniformSampler
from tests import rules
from tests.learning.test_learner import SHAPE
from tests.replay import Player, rows_of

RULES = replace(rules.LEARNING, training_steps_per_sample=2, weight_averaging=0.05)


@pytest.fixture
def replay():
    streams = ReplayStreams(1, 400)
    player = Player(0, [(30, 4), (7, 2)])
    for _ in range(10):
        streams.append(0, rows_of(player.play(20)))
    streams.action %= SHAPE.num_actions
    return streams


def _learner(**changes):
    torch.manual_seed(0)
    return Learner(SHAPE, replace(RULES, **changes), Execution(torch.device("cpu")))


def _samples(replay, seed):
    sampler = UniformSampler(replay, rules.SAMPLING, np.random.default_rng(seed))
    return SampleInline(sampler, RULES.sample_size)


def test_a_team_of_one_trains_as_a_lone_trainer_does(replay):
    # The same batches, the same weights, the same statistics: replicas change nothing but where things are computed.
    lone, in_team = _learner(gradient_accumulation_steps=2), _learner(gradient_accumulation_steps=2)
    team = WorkerTeam(in_team, [_samples(replay, 5)], threads_each=1)
    worker = LoneTrainer(lone, _samples(replay, 5))
    for _ in range(4):
        assert worker.train() == team.train()
    team.close()
    assert lone.num_updates == in_team.num_updates == 4
    for name, tensor in lone.tensors().items():
        torch.testing.assert_close(tensor, in_team.tensors()[name], rtol=1e-5, atol=1e-6, msg=name)
    assert lone.take_figures() == pytest.approx(in_team.take_figures(), rel=1e-4)


def test_every_worker_makes_its_updates_and_all_are_counted(replay):
    learner = _learner()
    team = WorkerTeam(learner, [_samples(replay, seed) for seed in range(4)], threads_each=1)
    trained = sum(team.train() for _ in range(5))
    team.close()
    assert trained == 5 * 4 * RULES.sample_size
    assert learner.num_updates == 5 * 4 * RULES.training_steps_per_sample
    reading, writing = team.lock.take_report()
    assert reading.acquisitions == writing.acquisitions == learner.num_updates
    assert all(torch.isfinite(tensor).all() for tensor in learner.tensors().values())
    for name, tensor in learner.networks.online.state_dict().items():
        if "running_var" in name:
            assert (tensor > 0).all(), name


def test_workers_learn(replay):
    replay.reward[:] = 1.0
    learner = _learner(target_update_interval=10**6)
    team = WorkerTeam(learner, [_samples(replay, seed) for seed in range(3)], threads_each=1)
    errors = []
    for _ in range(40):
        team.train()
        errors.append(learner.take_figures().td_error)
    team.close()
    assert sum(errors[-5:]) < 0.8 * sum(errors[:5])


def test_an_error_in_a_worker_is_raised_where_training_was_asked_for_and_the_threads_end(replay):
    class Faulty:
        def next(self):
            raise ZeroDivisionError

    team = WorkerTeam(_learner(), [_samples(replay, 0), Faulty()], threads_each=1)
    with pytest.raises(ZeroDivisionError):
        team.train()
    team.close()
    assert not any(thread.name.startswith("training ") for thread in threading.enumerate())
