import pytest
import torch

from mario_rl.agent.value_bins import ValueBins
from mario_rl.agent.value_quantiles import ValueQuantiles
from mario_rl.learning.losses import MicroBatch, double_q_loss, double_q_targets

BINS = ValueBins(-2.0, 2.0, 40)


def _batch(returns, discounts, actions, targets=None):
    pictures = torch.zeros(len(returns), 4, 84, 84)
    return MicroBatch(
        states=pictures,
        actions=torch.tensor(actions),
        targets=targets,
        next_states=pictures + 1,
        returns=torch.tensor(returns),
        discounts=torch.tensor(discounts),
    )


def _certain(values):
    """Histograms of a network that is sure of these values."""  # [actions] -> [1, actions, bins]
    return (BINS.histogram(torch.tensor(values)) + 1e-9).log()[None]


def test_the_online_network_chooses_and_the_target_network_values():
    online_next = _certain([1.5, 1.0])  # prefers action 0 ...
    target_next = _certain([0.5, 1.5])  # ... which the target values at 0.5, not at its own maximum
    pictures = torch.zeros(1, 4, 84, 84)
    targets = double_q_targets(
        lambda _: online_next, lambda _: target_next, BINS, pictures, torch.tensor([0.25]), torch.tensor([0.9])
    )
    torch.testing.assert_close(targets, torch.tensor([0.25 + 0.9 * 0.5]), rtol=0, atol=1e-3)


def test_a_discount_of_zero_leaves_the_return_alone():
    large, pictures = _certain([1.9, 0.0]), torch.zeros(1, 4, 84, 84)
    targets = double_q_targets(
        lambda _: large, lambda _: large, BINS, pictures, torch.tensor([-1.0]), torch.tensor([0.0])
    )
    torch.testing.assert_close(targets, torch.tensor([-1.0]))


def test_the_action_taken_is_compared_with_its_target():
    next_values = _certain([0.5, 0.0])
    figures = double_q_loss(
        lambda _: _certain([1.0, -1.0]), lambda _: next_values, lambda _: next_values, BINS, _batch([0.25], [1.0], [1])
    )
    torch.testing.assert_close(figures.q_value, torch.tensor(-1.0), rtol=0, atol=1e-3)
    torch.testing.assert_close(figures.td_errors.mean(), torch.tensor(1.75), rtol=0, atol=1e-3)
    right = double_q_loss(
        lambda _: _certain([1.0, 0.75]), lambda _: next_values, lambda _: next_values, BINS, _batch([0.25], [1.0], [1])
    )
    assert right.loss < figures.loss


def test_targets_that_are_given_are_used():
    figures = double_q_loss(
        lambda _: _certain([1.0, -1.0]),
        lambda _: pytest.fail("asked"),
        lambda _: pytest.fail("asked"),
        BINS,
        _batch([0.25], [0.9], [0], targets=torch.tensor([1.5])),
    )
    torch.testing.assert_close(figures.td_errors.mean(), torch.tensor(0.5), rtol=0, atol=1e-3)


def test_what_is_learned_is_the_mean_however_rare_the_failure():
    # One action that ends at 1 four times of five, and at -1 the fifth time. Huber's loss would settle at 0.75.
    logits = torch.zeros(1, 1, 40, requires_grad=True)
    outcomes = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0])
    batch = _batch([0.0] * 5, [0.0] * 5, [0] * 5, targets=outcomes)
    optimizer = torch.optim.Adam([logits], lr=0.3)
    for _ in range(300):
        optimizer.zero_grad()
        double_q_loss(lambda _: logits.expand(5, 1, 40), None, None, BINS, batch).loss.backward()
        optimizer.step()
    torch.testing.assert_close(BINS.mean(logits).squeeze(), torch.tensor(0.6), rtol=0, atol=0.02)


def test_no_gradient_flows_through_the_target():
    next_values = torch.ones(1, 2, 40, requires_grad=True)
    logits = torch.zeros(1, 2, 40, requires_grad=True)
    double_q_loss(
        lambda _: logits, lambda _: next_values, lambda _: next_values, BINS, _batch([0.0], [1.0], [0])
    ).loss.backward()
    assert next_values.grad is None
    assert logits.grad is not None


def test_weights_say_how_much_each_sample_counts():
    values = [_certain([1.0]), _certain([-1.0])]
    batch = _batch([0.0, 0.0], [0.0, 0.0], [0, 0], targets=torch.tensor([0.0, 0.5]))
    outputs = torch.cat(values)
    alone = [
        double_q_loss(lambda _, own=own: own, None, None, BINS, _batch([0.0], [0.0], [0], targets=target[None])).loss
        for own, target in zip(values, batch.targets, strict=True)
    ]
    weighted = double_q_loss(lambda _: outputs, None, None, BINS, batch._replace(weights=torch.tensor([1.0, 0.25])))
    torch.testing.assert_close(weighted.loss, (alone[0] + 0.25 * alone[1]) / 2)
    torch.testing.assert_close(weighted.td_errors, torch.tensor([1.0, 1.5]), rtol=0, atol=1e-3)


def test_targets_of_quantiles_are_whole_distributions():
    head, pictures = ValueQuantiles(4), torch.zeros(1, 4, 84, 84)
    online_next = torch.tensor([[[9.0, 9.0, 9.0, 9.0], [0.0, 0.0, 0.0, 0.0]]])
    target_next = torch.tensor([[[-1.0, 0.0, 1.0, 4.0], [7.0, 7.0, 7.0, 7.0]]])
    targets = double_q_targets(
        lambda _: online_next, lambda _: target_next, head, pictures, torch.tensor([0.5]), torch.tensor([0.5])
    )
    torch.testing.assert_close(targets, torch.tensor([[0.0, 0.5, 1.0, 2.5]]))
    batch = _batch([0.0], [0.0], [1], targets=targets)
    figures = double_q_loss(lambda _: target_next, None, None, head, batch)
    torch.testing.assert_close(figures.td_errors, torch.tensor([6.0]))
    torch.testing.assert_close(figures.q_value, torch.tensor(7.0))
