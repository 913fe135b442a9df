import multiprocessing

import pytest
import torch

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.channels.weight_slots import WeightSlots
from mario_rl.learning.publishing import WeightPublisher

CONTEXT = multiprocessing.get_context("spawn")


@pytest.fixture(params=["thread", "inline"])
def published(request):
    network = QNetwork(NetworkShape((4, 8, 8), 16, 7))
    slots = WeightSlots(CONTEXT, network.state_dict())
    publisher = WeightPublisher(slots, network, inline=request.param == "inline")
    yield network, slots, publisher
    publisher.close()


def _taken(slots, network):
    state = {name: torch.zeros_like(tensor) for name, tensor in network.state_dict().items()}
    return slots.take(state, 0), state


def test_weights_and_statistics_arrive_as_they_were_at_the_call(published):
    network, slots, publisher = published
    network.train()(torch.rand(4, 4, 84, 84))  # moves the running statistics
    expected = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    assert publisher.publish(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)  # training goes on meanwhile
    publisher.close()  # finishes what was begun
    version, state = _taken(slots, network)
    assert version == 1
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.items())


def test_nothing_is_published_twice(published):
    _, slots, publisher = published
    assert publisher.publish(5)
    assert not publisher.publish(5)
    assert publisher.publish(6)
    publisher.close()  # finishes what was begun
    assert slots.version == 2


def test_a_failure_in_the_thread_is_raised_by_the_next_publication_and_nothing_hangs():
    network = QNetwork(NetworkShape((4, 8, 8), 16, 7))
    slots = WeightSlots(CONTEXT, network.state_dict())
    publisher = WeightPublisher(slots, network)
    slots._bytes = None  # the shared memory is gone
    publisher.publish(1)
    with pytest.raises(AttributeError):
        publisher.publish(2)
    publisher.close()
