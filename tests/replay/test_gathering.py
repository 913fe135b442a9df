import numpy as np
import pytest
import torch

from mario_rl.replay import gathering


@pytest.mark.parametrize("compiled", [True, False])
def test_stacks_hold_the_frames_asked_for_interleaved_in_memory(compiled, monkeypatch):
    if compiled:
        assert gathering._is_compiled  # numba is among the requirements
    monkeypatch.setattr(gathering, "_is_compiled", compiled)
    rng = np.random.default_rng(0)
    frames = torch.from_numpy(rng.integers(0, 256, size=(20, 84 * 84), dtype=np.uint8))
    places = rng.integers(0, 20, size=(5, 2, 4))
    stacks = gathering.empty_stacks(5)
    gathering.gather_stacks(frames, places, np.zeros((5, 2), np.int64), stacks)
    assert torch.equal(stacks, frames[torch.from_numpy(places)].view(5, 2, 4, 84, 84))
    assert stacks[:, 0].stride() == (2 * 4 * 84 * 84, 1, 4 * 84, 4)


@pytest.mark.parametrize("compiled", [True, False])
def test_stacks_are_shifted_along_the_rows_and_end_in_their_last_pixel(compiled, monkeypatch):
    monkeypatch.setattr(gathering, "_is_compiled", compiled)
    rng = np.random.default_rng(1)
    frames = torch.from_numpy(rng.integers(0, 256, size=(20, 84 * 84), dtype=np.uint8))
    places, shifts = rng.integers(0, 20, size=(3, 2, 4)), np.array([[0, 1], [-1, 84], [-170, 170]])
    stacks = gathering.empty_stacks(3)
    gathering.gather_stacks(frames, places, shifts, stacks)
    for stack, shift, rows in zip(stacks.reshape(6, 4, -1), shifts.flat, places.reshape(6, 4), strict=True):
        for picture, row in zip(stack, rows, strict=True):
            source = frames[row].numpy()
            inside = source[max(0, shift) : len(source) + min(0, shift)]
            before, after = [source[0]] * max(0, -shift), [source[-1]] * max(0, shift)
            assert np.array_equal(picture.numpy(), np.concatenate((before, inside, after)))
