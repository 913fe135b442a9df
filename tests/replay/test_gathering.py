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
    gathering.gather_stacks(frames, places, stacks)
    assert torch.equal(stacks, frames[torch.from_numpy(places)].view(5, 2, 4, 84, 84))
    assert stacks[:, 0].stride() == (2 * 4 * 84 * 84, 1, 4 * 84, 4)
