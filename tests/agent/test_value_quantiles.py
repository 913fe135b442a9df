import pytest
import torch

from mario_rl.agent.value_quantiles import ValueQuantiles


def _learn(targets_of_step, count=8, steps=1500):
    """Quantiles after regression on targets that a function gives for each step."""
    head = ValueQuantiles(count)
    outputs = torch.zeros(1, count, requires_grad=True)
    optimizer = torch.optim.SGD([outputs], lr=0.5)
    kept = []
    for step in range(steps):
        targets = targets_of_step(step)
        optimizer.zero_grad()
        head.losses(outputs.expand(len(targets), count), targets).mean().backward()
        optimizer.step()
        kept.append(outputs.detach().clone())
    return torch.cat(kept[steps // 2 :]).mean(dim=0)


def test_quantiles_of_many_outcomes_are_found():
    # Outcomes evenly between -10 and 10, wide against the rounded tip of Huber's loss.
    outcomes = torch.linspace(-10, 10, 400)[:, None]
    found = _learn(lambda _: outcomes, steps=800)
    torch.testing.assert_close(found, 20 * ValueQuantiles(8).levels - 10, rtol=0, atol=0.6)


def test_a_rare_failure_is_seen_in_the_lowest_quantiles_only():
    outcomes = torch.tensor([[10.0]] * 7 + [[-10.0]])
    found = _learn(lambda _: outcomes)
    assert found[0] < 0
    assert (found[2:] > 9).all()


def test_the_loss_is_none_where_all_quantiles_agree_with_a_certain_target():
    head = ValueQuantiles(5)
    torch.testing.assert_close(head.losses(torch.full((2, 5), 3.0), torch.full((2, 5), 3.0)), torch.zeros(2))
    assert head.losses(torch.full((1, 5), 3.0), torch.full((1, 5), 2.0)).item() > 0


@pytest.mark.parametrize(("output", "target", "expected"), [(0.0, 2.0, 0.9 * 1.5), (2.0, 0.0, 0.1 * 1.5)])
def test_being_too_low_costs_a_high_quantile_more(output, target, expected):
    head = ValueQuantiles(5)  # the highest of them: 90 % of the returns should lie below
    outputs = torch.full((1, 5), target)
    outputs[0, 4] = output
    torch.testing.assert_close(head.losses(outputs, torch.full((1, 5), target)).item(), expected)


def test_nothing_is_saved_with_it():
    assert ValueQuantiles(5).state_dict() == {}
