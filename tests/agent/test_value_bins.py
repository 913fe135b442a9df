import pytest
import torch

from mario_rl.agent.value_bins import ValueBins

BINS = ValueBins(-3.0, 9.0, 60)


@pytest.mark.parametrize("value", [-1.0, 0.0, 0.05, 0.123, 5.0, 8.0])
def test_a_value_survives_being_a_histogram(value):
    histogram = BINS.histogram(torch.tensor([value]))
    assert histogram.min() >= 0
    torch.testing.assert_close(histogram.sum(dim=1), torch.ones(1))
    torch.testing.assert_close(BINS.mean(histogram.log()), torch.tensor([value]), rtol=0, atol=2e-3)


def test_a_histogram_is_narrow():
    histogram = BINS.histogram(torch.tensor([5.0]))[0]
    assert histogram[(BINS.centres - 5.0).abs() < 0.45].sum() > 0.99


@pytest.mark.parametrize(("value", "expected"), [(-50.0, -3.0), (50.0, 9.0), (-3.0, -3.0), (9.0, 9.0)])
def test_what_lies_outside_counts_as_the_nearest_inside(value, expected):
    histogram = BINS.histogram(torch.tensor([value]))
    assert torch.isfinite(histogram).all()
    torch.testing.assert_close(BINS.mean(histogram.log()), torch.tensor([expected]), rtol=0, atol=0.2)


def test_bins_move_with_their_module_but_are_not_saved_with_it():
    assert BINS.state_dict() == {}
    assert {name for name, _ in BINS.named_buffers()} == {"edges", "centres"}
