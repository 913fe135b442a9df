from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mario_rl.replay import sum_tree
from mario_rl.replay.sum_tree import SumTree


@pytest.fixture(scope="module", params=["compiled", "without numba"], autouse=True)
def compilation(request):
    if request.param == "compiled":
        yield
        return
    plain = {name: getattr(sum_tree, name).py_func for name in ("_add_up", "_find")}
    with patch.multiple(sum_tree, **plain):
        yield


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_any_changes_leave_the_sums_right_and_amounts_find_their_leaf(num_leaves, seed):
    rng = np.random.default_rng(seed)
    tree, leaves = SumTree(num_leaves), np.zeros(num_leaves)
    for _ in range(5):
        changed = rng.integers(num_leaves, size=rng.integers(1, 150))
        values = rng.random(len(changed)) * (rng.random(len(changed)) < 0.7)  # some are 0
        tree.set(changed, values)
        leaves[changed] = values
        np.testing.assert_array_equal(tree.leaves, leaves)
        np.testing.assert_allclose(tree.total, leaves.sum())
        if leaves.any():
            amounts = np.append(rng.random(40), [0.0, np.nextafter(1.0, 0.0)]) * tree.total
            found = tree.find(amounts)
            bounds = np.cumsum(leaves)
            assert (leaves[found] > 0).all()
            assert (amounts <= bounds[found] + 1e-9).all()
            assert (amounts >= bounds[found] - leaves[found] - 1e-9).all()


def test_an_amount_that_rounding_put_past_the_end_finds_a_leaf_that_counts():
    tree = SumTree(8)
    tree.set(np.array([2, 5]), np.array([0.1, 0.2]))
    assert tree.find(np.array([tree.total, 2 * tree.total])).tolist() == [5, 5]


@pytest.mark.parametrize("num_leaves", [1, 2, 3, 5, 8, 9])
def test_leaves_are_drawn_in_proportion(num_leaves):
    rng = np.random.default_rng(0)
    tree = SumTree(num_leaves)
    weights = np.arange(1, num_leaves + 1.0)
    tree.set(np.arange(num_leaves), weights)
    counts = np.bincount(tree.find(rng.random(20_000) * tree.total), minlength=num_leaves)
    np.testing.assert_allclose(counts / 20_000, weights / weights.sum(), atol=0.015)


def test_one_value_can_be_given_to_many():
    tree = SumTree(100)
    tree.set(np.arange(100), 0.5)
    assert tree.total == 50.0


def test_nothing_is_found_and_changed_where_nothing_is_asked_for():
    tree = SumTree(8)
    tree.set(np.empty(0, np.int64), np.empty(0))
    assert tree.total == 0.0
    assert len(tree.find(np.empty(0))) == 0
