import queue

import pytest
import torch

from mario_rl.agent.network import NetworkShape, QNetwork
from mario_rl.agent.pictures import scale_pictures
from mario_rl.learning.losses import double_q_targets
from mario_rl.learning.sampling import SampleAhead
from mario_rl.learning.targets import TargetsAhead
from mario_rl.replay.sampler import SampleBuffer

SHAPE = NetworkShape((4, 8, 8), 16, 7)


@pytest.fixture(params=["histogram", "quantiles"])
def networks(request):
    torch.manual_seed(0)
    shape = SHAPE._replace(value_head=request.param)
    return QNetwork(shape).train(), QNetwork(shape).eval()


def _sample(size):
    buffer = SampleBuffer(size)
    generator = torch.Generator().manual_seed(1)
    buffer.pictures.copy_(torch.randint(0, 256, buffer.pictures.shape, generator=generator, dtype=torch.uint8))
    buffer.returns.copy_(torch.rand(size, generator=generator))
    buffer.discounts.copy_(torch.rand(size, generator=generator))
    return buffer


def _targets(online, target, sample):
    next_states = scale_pictures(sample.pictures[:, 1])
    was_training = online.training
    targets = double_q_targets(
        online.eval().outputs, target.outputs, target.head, next_states, sample.returns, sample.discounts
    )
    online.train(was_training)
    return targets


def test_targets_are_those_of_the_networks_in_eval_mode(networks):
    online, target = networks
    statistics = [buffer.clone() for buffer in online.buffers()]
    ahead, sample = TargetsAhead(online, target, batch_size=8, autocast_dtype=None), _sample(24)  # three micro-batches
    ahead.fill(sample)
    torch.testing.assert_close(sample.targets, _targets(online, target, sample))
    assert all(torch.equal(one, two) for one, two in zip(statistics, online.buffers(), strict=True))


def test_networks_count_as_they_were_at_the_last_refresh(networks):
    online, target = networks
    ahead, sample = TargetsAhead(online, target, batch_size=8, autocast_dtype=None), _sample(8)
    before = _targets(online, target, sample)
    with torch.no_grad():
        for network in networks:
            network.value.bias[50] += 5.0
            network.features[1].running_mean += 0.5
            network.advantage.weight.normal_()
    ahead.fill(sample)
    torch.testing.assert_close(sample.targets, before)
    ahead.refresh()
    ahead.fill(sample)
    torch.testing.assert_close(sample.targets, _targets(online, target, sample))
    assert not torch.allclose(sample.targets, before)


class _Counting:
    """A sampler that numbers its batches, and targets that note in what order they are used."""

    def __init__(self):
        self.num_drawn = 0
        self.busy = False
        self.log = queue.SimpleQueue()

    def new_buffer(self, size, *, pinned):
        return SampleBuffer(size, pinned)

    def sample(self, buffer):
        self.busy = True
        self.num_drawn += 1
        buffer.returns.fill_(self.num_drawn)

    def refresh(self):
        assert not self.busy
        self.log.put("refresh")

    def fill(self, buffer):
        buffer.targets = -buffer.returns
        self.log.put("fill")
        self.busy = False


def test_networks_are_copied_while_the_sampling_thread_rests_and_before_each_of_its_batches():
    counting = _Counting()
    ahead = SampleAhead(counting, 4, pinned=False, targets=counting)
    for number in range(1, 20):
        batch = ahead.next()
        assert batch.returns[0] == number
        assert batch.targets[0] == -number
    ahead.close()
    log = [counting.log.get() for _ in range(counting.log.qsize())]
    assert log == ["refresh", "fill"] * 20
