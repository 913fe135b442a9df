import pytest
import torch
from torch import nn

from mario_rl.agent.network import NetworkShape, QNetwork, eval_twin
from mario_rl.agent.pictures import scale_pictures

SHAPE = NetworkShape((4, 8, 8), 16, 7)


def test_every_convolution_has_no_bias_and_is_followed_by_batchnorm_and_an_inplace_relu():
    layers = list(QNetwork(SHAPE).features)
    assert [type(layer) for layer in layers] == [nn.Conv2d, nn.BatchNorm2d, nn.ReLU] * 3
    assert all(layer.bias is None for layer in layers[::3])
    assert all(layer.inplace for layer in layers[2::3])


def test_convolutions_start_with_he_variance():
    torch.manual_seed(0)
    weight = QNetwork(NetworkShape((32, 64, 64), 16, 7)).features[3].weight  # fan-in 32 * 4 * 4
    assert abs(weight.std().item() / (2 / (32 * 16)) ** 0.5 - 1) < 0.05


def test_advantages_are_centred_so_the_mean_histogram_is_the_value():
    network = QNetwork(SHAPE).eval()
    pictures = torch.rand(3, 4, 84, 84)
    outputs = network.outputs(pictures)
    assert outputs.shape == (3, 7, 60)
    hidden = torch.relu(network.hidden_norm(network.hidden(network.features(pictures).flatten(1))))
    torch.testing.assert_close(outputs.mean(dim=1), network.value(hidden[:, :16]))
    torch.testing.assert_close(network(pictures), network.head.mean(outputs))


def test_the_first_guess_of_every_value_is_near_zero():
    assert QNetwork(SHAPE).eval()(torch.rand(8, 4, 84, 84)).abs().max() < 0.5


def test_pictures_are_scaled_and_channels_last_with_and_without_a_buffer():
    stacks = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    fresh = scale_pictures(stacks)
    buffer = torch.empty(2, 4, 84, 84).to(memory_format=torch.channels_last)
    reused = scale_pictures(stacks, out=buffer)
    torch.testing.assert_close(fresh, stacks / 127.5 - 1)
    torch.testing.assert_close(reused, fresh)
    assert reused.data_ptr() == buffer.data_ptr()
    assert fresh.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pictures_are_scaled_alike_wherever_they_lie(dtype):
    memory = torch.randint(0, 256, (3, 2, 84, 84, 4), dtype=torch.uint8).permute(0, 1, 4, 2, 3)
    for stacks in (memory[:, 1], memory[1:, 0].contiguous(), torch.arange(28_224).view(1, 4, 84, 84).to(torch.uint8)):
        for layout in (torch.channels_last, torch.contiguous_format):
            out = scale_pictures(stacks, torch.empty(stacks.shape, dtype=dtype).to(memory_format=layout))
            assert torch.equal(out, ((stacks.float() - 127.5) * (1 / 127.5)).to(dtype))


def test_the_eval_twin_follows_every_change_and_never_touches_the_statistics():
    network = QNetwork(SHAPE).train()
    twin = eval_twin(network)
    pictures = torch.rand(4, 4, 84, 84)
    before = network.features[1].running_mean.clone()
    twin(pictures)
    assert torch.equal(network.features[1].running_mean, before)
    network(pictures)  # train mode moves the running statistics, and with them the twin
    assert not torch.equal(network.features[1].running_mean, before)
    with torch.no_grad():
        network.value.bias[40] += 5
    torch.testing.assert_close(twin(pictures), network.eval()(pictures))
