import torch

from mario_rl.learning.losses import MicroBatch, double_q_loss


def _batch(returns, discounts, actions):
    pictures = torch.zeros(len(returns), 4, 84, 84)
    return MicroBatch(
        states=pictures,
        actions=torch.tensor(actions),
        goals=None,
        next_states=pictures + 1,
        returns=torch.tensor(returns),
        discounts=torch.tensor(discounts),
    )


def test_the_online_network_chooses_and_the_target_network_values():
    online = torch.tensor([[1.0, 2.0]])  # Q of the state; action 0 is taken: 1.0
    online_next = torch.tensor([[5.0, 3.0]])  # prefers action 0 ...
    target_next = torch.tensor([[0.5, 100.0]])  # ... which the target values at 0.5, not at its own maximum
    figures = double_q_loss(lambda _: online, lambda _: online_next, lambda _: target_next, _batch([0.25], [0.9], [0]))
    td_error = 0.25 + 0.9 * 0.5 - 1.0
    torch.testing.assert_close(figures.td_error, torch.tensor(abs(td_error)))
    torch.testing.assert_close(figures.loss, torch.tensor(0.5 * td_error**2))


def test_a_discount_of_zero_leaves_the_return_alone():
    figures = double_q_loss(
        lambda _: torch.tensor([[0.0, 0.0]]),
        lambda _: torch.tensor([[1e6, 0.0]]),
        lambda _: torch.tensor([[1e6, 0.0]]),
        _batch([-1.0], [0.0], [1]),
    )
    torch.testing.assert_close(figures.td_error, torch.tensor(1.0))


def test_large_errors_count_linearly():
    figures = double_q_loss(
        lambda _: torch.tensor([[0.0]]),
        lambda _: torch.zeros(1, 1),
        lambda _: torch.zeros(1, 1),
        _batch([10.0], [0.0], [0]),
    )
    torch.testing.assert_close(figures.loss, torch.tensor(9.5))  # Huber: |10| - 0.5


def test_no_gradient_flows_through_the_goal():
    next_values = torch.ones(1, 2, requires_grad=True)
    taken = torch.zeros(1, 2, requires_grad=True)
    double_q_loss(
        lambda _: taken, lambda _: next_values, lambda _: next_values, _batch([0.0], [1.0], [0])
    ).loss.backward()
    assert next_values.grad is None
    assert taken.grad is not None
