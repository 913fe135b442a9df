import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.learning.learner import Learner
from mario_rl.learning.rules import Execution
from mario_rl.learning.trainers import LoneTrainer
from mario_rl.replay.sampler import SampleBuffer
from tests import rules

SHAPE = NetworkShape((4, 8, 8), 16, 7)
RULES = rules.LEARNING
CPU = Execution(torch.device("cpu"))


def _learner(execution=CPU, **changes):
    torch.manual_seed(0)
    return Learner(SHAPE, replace(RULES, **changes), execution)


def _sample(size, seed=0):
    buffer = SampleBuffer(size)
    generator = torch.Generator().manual_seed(seed)
    buffer.pictures.copy_(torch.randint(0, 256, buffer.pictures.shape, generator=generator, dtype=torch.uint8))
    buffer.actions.copy_(torch.randint(0, SHAPE.num_actions, (size,), generator=generator))
    buffer.returns.copy_(torch.rand(size, generator=generator))
    buffer.discounts.fill_(0.9)
    return buffer


def _same(one, two):
    return all(torch.equal(a, b) for a, b in zip(one.values(), two.values(), strict=True))


@pytest.mark.parametrize("head", ["histogram", "quantiles"])
def test_repeated_updates_on_one_batch_lower_its_error(head):
    torch.manual_seed(0)
    learner = Learner(SHAPE._replace(value_head=head), replace(RULES, target_update_interval=10**6), CPU)
    sample = _sample(8)
    learner.train_on(sample)
    first = learner.take_figures().td_error
    for _ in range(100):
        learner.train_on(sample)
    learner.take_figures()
    learner.train_on(sample)
    assert learner.take_figures().td_error < first / 3


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_an_update_that_is_not_finite_is_left_out_and_counted(poison, accumulation):
    learner = _learner(
        gradient_accumulation_steps=accumulation, training_steps_per_sample=accumulation, weight_averaging=0.05
    )
    good, bad = _sample(8 * accumulation), _sample(8 * accumulation)
    bad.returns[-1] = poison  # in the last micro-batch
    learner.train_on(good)
    before = {name: tensor.clone() for name, tensor in learner.tensors().items() if "running" not in name}
    before = {name: tensor for name, tensor in before.items() if "num_batches" not in name}
    for _ in range(3):
        learner.train_on(bad)
    assert (learner.num_updates, learner.num_bad_updates, learner.num_bad_updates_in_a_row) == (1, 3, 3)
    for name, tensor in before.items():
        assert torch.equal(tensor, learner.tensors()[name]), name
    learner.train_on(good)
    assert (learner.num_updates, learner.num_bad_updates, learner.num_bad_updates_in_a_row) == (2, 3, 0)
    assert all(torch.isfinite(torch.tensor(figure)) for figure in learner.take_figures())


def test_gradients_that_are_not_finite_are_left_out_too():
    learner = _learner()
    sample = _sample(8)
    learner.train_on(sample)
    parameter = learner.networks.online.value.weight
    parameter.register_hook(lambda gradient: gradient * float("nan"))
    before = parameter.detach().clone()
    learner.train_on(sample)
    assert torch.equal(parameter, before)
    assert learner.num_bad_updates == 1


def test_the_rate_factor_lowers_the_learning_rate():
    learner = _learner()
    learner.set_learning_rate(0)
    full = learner.optimizer.param_groups[0]["lr"]
    learner.rate_factor = 0.5
    learner.set_learning_rate(0)
    assert learner.optimizer.param_groups[0]["lr"] == full / 2


def test_prioritized_samples_get_the_error_of_each_row_back():
    learner = _learner(training_steps_per_sample=3, target_update_interval=10**6)
    plain, sample = _sample(24), SampleBuffer(24, prioritized=True)
    for mine, theirs in zip(sample.tensors()[:4], plain.tensors(), strict=True):
        mine.copy_(theirs)
    sample.discounts.zero_()
    sample.returns[13] = 50.0  # in the second micro-batch: it could not be guessed
    learner.train_on(sample)
    errors = sample.td_errors
    assert torch.isfinite(errors).all()
    assert errors.argmax() == 13
    assert errors[13] > 10 * errors[torch.arange(24) != 13].max()


def test_rows_of_weight_zero_teach_nothing():
    trained = []
    for wrong_return in (0.0, 100.0):
        learner = _learner()
        plain, sample = _sample(8), SampleBuffer(8, prioritized=True)
        for mine, theirs in zip(sample.tensors()[:4], plain.tensors(), strict=True):
            mine.copy_(theirs)
        sample.returns[3] = wrong_return
        sample.weights[3] = 0.0
        learner.train_on(sample)
        trained.append({name: tensor.clone() for name, tensor in learner.networks.online.state_dict().items()})
    assert _same(*trained)


@pytest.mark.parametrize(("accumulation", "steps", "updates", "calls"), [(1, 4, 4, 1), (4, 4, 1, 1), (4, 2, 1, 2)])
def test_a_round_is_whole_sample_calls_and_whole_updates(accumulation, steps, updates, calls):
    learner = _learner(gradient_accumulation_steps=accumulation, training_steps_per_sample=steps)
    drawn = []

    class Samples:
        def next(self):
            drawn.append(_sample(8 * steps))
            return drawn[-1]

    assert LoneTrainer(learner, Samples()).train() == 32
    assert learner.num_updates == updates
    assert len(drawn) == calls


def test_accumulated_micro_batches_make_the_gradient_of_their_mean():
    # Identical micro-batches: the mean of four equal gradients is that gradient, so one step must equal one step.
    # A large Adam epsilon makes the step proportional to the gradient instead of to its sign.
    single = _learner(adam_epsilon=1.0)
    accumulated = _learner(adam_epsilon=1.0, gradient_accumulation_steps=4, training_steps_per_sample=4)
    sample = _sample(8)
    sample.discounts.zero_()  # otherwise the targets follow the running statistics, which each micro-batch moves
    four = SampleBuffer(32)
    for mine, theirs in zip(four.tensors(), sample.tensors(), strict=True):
        mine.copy_(theirs.repeat(4, *[1] * (theirs.dim() - 1)))
    single.train_on(sample)
    accumulated.train_on(four)
    for one, two in zip(single.networks.online.parameters(), accumulated.networks.online.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)


def test_gradients_are_clipped():
    learner = _learner(max_gradient_norm=1e-3)
    seen = []
    step = learner.optimizer.step
    learner.optimizer.step = lambda *a, **k: (
        seen.append(
            torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in learner.networks.online.parameters()]))
        ),
        step(*a, **k),
    )
    sample = _sample(8)
    sample.returns.fill_(100.0)
    learner.train_on(sample)
    assert learner.take_figures().gradient_norm > 1e-3  # reported before clipping
    assert seen[0] <= 1e-3 * 1.001


def test_a_hard_target_is_copied_every_interval_with_batchnorm_statistics():
    learner = _learner(target_update_interval=3)
    sample = _sample(8)
    start = copy.deepcopy(learner.networks.target.state_dict())
    for _ in range(2):
        learner.train_on(sample)
    assert _same(learner.networks.target.state_dict(), start)
    learner.train_on(sample)
    assert _same(learner.networks.target.state_dict(), learner.networks.online.state_dict())
    assert not torch.equal(learner.networks.target.features[1].running_mean, start["features.1.running_mean"])


def test_a_soft_target_follows_the_weights_and_takes_the_statistics():
    learner = _learner(target_update="soft", target_tau=0.25)
    before = learner.networks.target.value.weight.clone()
    sample = _sample(8)
    learner.train_on(sample)
    expected = before + 0.25 * (learner.networks.online.value.weight - before)
    torch.testing.assert_close(learner.networks.target.value.weight, expected.detach())
    assert torch.equal(learner.networks.target.features[4].running_var, learner.networks.online.features[4].running_var)


def test_next_states_do_not_enter_the_running_statistics():
    plain, other = _learner(), _learner()
    sample = _sample(8)
    plain.train_on(sample)
    sample.pictures[:, 1] = 0  # other next states, same states
    other.train_on(sample)
    for name, statistic in plain.networks.online.named_buffers():
        assert torch.equal(statistic, dict(other.networks.online.named_buffers())[name]), name


def test_targets_that_come_with_the_sample_are_the_ones_that_count():
    with_targets, without = _learner(), _learner()
    sample = _sample(8)
    without.train_on(sample)
    with_targets.targets_ahead().fill(sample)
    sample.pictures[:, 1] = 0  # not looked at any more
    sample.returns.fill_(99.0)
    with_targets.train_on(sample)
    assert _same(with_targets.networks.online.state_dict(), without.networks.online.state_dict())


def test_figures_are_means_since_the_last_time_and_none_without_training():
    learner = _learner()
    assert learner.take_figures() is None
    sample = _sample(8)
    learner.train_on(sample)
    figures = learner.take_figures()
    assert np.isfinite([figures.loss, figures.td_error, figures.q_value, figures.gradient_norm]).all()
    assert learner.take_figures() is None


def test_a_loaded_learner_continues_bit_for_bit():
    learner, sample = _learner(), _sample(8)
    for _ in range(4):
        learner.train_on(sample)
    # As a file gives them back: copied, and in the one layout that it knows.
    tensors = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in learner.tensors().items()}
    twin = _learner()
    twin.load(learner.state(), tensors)
    for _ in range(4):
        learner.train_on(sample)
        twin.train_on(sample)
    assert _same(learner.tensors(), twin.tensors())
    assert twin.num_updates == learner.num_updates


def test_bfloat16_trains_and_keeps_float32_weights():
    learner, sample = _learner(Execution(torch.device("cpu"), torch.bfloat16)), _sample(8)
    before = learner.networks.online.value.weight.clone()
    learner.train_on(sample)
    assert learner.networks.online.value.weight.dtype is torch.float32
    assert not torch.equal(learner.networks.online.value.weight, before)


@pytest.mark.long
def test_a_compiled_learner_saves_what_a_plain_one_loads():
    compiled, sample = _learner(Execution(torch.device("cpu"), compile_mode="default")), _sample(8)
    compiled.train_on(sample)
    plain = _learner()
    plain.load(compiled.state(), compiled.tensors())
    assert not any("_orig_mod" in name for name in compiled.tensors())
    assert _same(plain.networks.online.state_dict(), compiled.networks.online.state_dict())
    QNetwork(SHAPE).load_state_dict(compiled.networks.online.state_dict())


def test_the_plain_loss_takes_over_when_compiling_fails(caplog):
    learner = _learner(Execution(torch.device("cpu"), compile_mode="default"))

    def failing(batch):
        raise RuntimeError("no compiler\nmore")

    learner._loss_function = failing
    sample = _sample(8)
    learner.train_on(sample)
    learner.train_on(sample)
    assert learner.num_updates == 2
    assert caplog.text.count("torch.compile failed (no compiler)") == 1


def test_the_learning_rate_falls_in_equal_ratios_and_stays():
    learner = Learner(SHAPE, RULES, CPU)
    rates = []
    for decisions in (0, 500, 1_000, 5_000):
        learner.set_learning_rate(decisions)
        rates.append(learner.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([1e-3, 10**-3.5, 1e-4, 1e-4])


def test_the_average_follows_the_online_network_quickly_at_first_and_slowly_later():
    learner, sample = _learner(), _sample(8)
    floats = {
        name: tensor for name, tensor in learner.networks.online.state_dict().items() if tensor.is_floating_point()
    }
    expected = {name: tensor.clone() for name, tensor in floats.items()}
    for update in range(1, 121):
        learner.train_on(sample)
        keep = 1 - 1 / (1 + RULES.weight_averaging * update)
        for name, tensor in floats.items():
            expected[name] = expected[name] * keep + tensor * (1 - keep)
        if update in (1, 120):
            averaged = learner.networks.averaged.state_dict()
            for name, tensor in expected.items():
                torch.testing.assert_close(averaged[name], tensor, rtol=1e-3, atol=1e-4, msg=name)
    changed = [
        not torch.equal(mine, theirs)
        for mine, theirs in zip(
            learner.networks.averaged.parameters(), learner.networks.online.parameters(), strict=True
        )
    ]
    assert all(changed)
    assert not learner.networks.averaged.training
