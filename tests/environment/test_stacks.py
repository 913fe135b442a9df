import numpy as np
import torch

from mario_rl.environment.stacks import PictureStacks


def test_a_stack_holds_the_last_four_pictures_and_an_episode_begins_with_four_times_its_first():
    rng = np.random.default_rng(0)
    stacks, expected = PictureStacks(3), np.zeros((3, 4, 84, 84), np.uint8)
    for tick in range(12):
        pictures = rng.integers(0, 256, (3, 84, 84), dtype=np.uint8)
        begins = np.array([tick == 0, tick in (0, 5), tick in (0, 7, 8)])
        stacks.push(pictures, begins)
        expected = np.concatenate([expected[:, 1:], pictures[:, None]], axis=1)
        expected[begins] = pictures[begins, None]
        assert np.array_equal(stacks.pictures(), expected)
    some = np.array([2, 0, 2])
    assert np.array_equal(stacks.pictures(some), expected[some])


def test_stacks_are_interleaved_in_memory_and_live():
    stacks = PictureStacks(2)
    saved = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    stacks.pictures().copy_(saved)
    assert torch.equal(stacks.pictures(), saved)
    for pictures in (stacks.pictures(), stacks.pictures(np.array([1, 0]))):
        assert pictures.is_contiguous(memory_format=torch.channels_last)
