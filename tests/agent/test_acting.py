import pytest
import torch

from mario_rl.agent.acting import ActingNetwork
from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.agent.pictures import scale_pictures

SHAPE = NetworkShape((4, 8, 8), 16, 7)


def _trained(seed, shape=SHAPE):
    """A network whose statistics and every weight are other than at the start."""
    torch.manual_seed(seed)
    network = QNetwork(shape)
    for parameter in network.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    for _ in range(3):
        network(scale_pictures(_stacks(32)))
    return network.eval()


def _stacks(count):
    return torch.randint(0, 256, (count, 4, 84, 84), dtype=torch.uint8)


@pytest.mark.parametrize("head", ["histogram", "quantiles"])
def test_it_finds_the_actions_that_the_network_values_most(head):
    network = _trained(0, SHAPE._replace(value_head=head))
    stacks = _stacks(64)
    values = network(scale_pictures(stacks))
    chosen = ActingNetwork(network).best_actions(stacks)
    best = values.max(dim=1).values
    torch.testing.assert_close(values.gather(1, torch.from_numpy(chosen)[:, None])[:, 0], best, rtol=1e-4, atol=1e-4)
    assert len(set(chosen.tolist())) > 1


def test_folded_convolutions_give_the_same_features():
    network = _trained(1)
    stacks = _stacks(8)
    expected = network.features(scale_pictures(stacks))
    torch.testing.assert_close(network.features.frozen()(stacks), expected, rtol=1e-4, atol=1e-4)


def test_it_follows_the_network_when_it_is_told_to():
    network, stacks = _trained(2), _stacks(64)
    acting = ActingNetwork(network)
    before = acting.best_actions(stacks)
    network.load_state_dict(_trained(3).state_dict())
    acting.refresh()
    after = acting.best_actions(stacks)
    assert (after == ActingNetwork(network).best_actions(stacks)).all()
    assert (after != before).any()
