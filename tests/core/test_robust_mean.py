"""Medians and fences by group: what a minority can do to them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedfuse.core.robust_mean import group_medians, longest_moves, robust_mean, upper_fence, usual_length


def test_medians_are_lower_ones_by_group():
    medians = group_medians(np.array([3.0, 1.0, 2.0, 9.0, 4.0, 5.0]), np.array([0, 0, 0, 2, 3, 3]), 4)
    assert medians.tolist() == [2.0, np.inf, 9.0, 4.0]


@given(st.lists(st.floats(1, 10), min_size=3, max_size=20), st.floats(1e6, 1e30), st.data())
def test_a_minority_cannot_move_the_fence_far(honest, lie, data):
    liars = data.draw(st.integers(0, (len(honest) - 1) // 2))
    fence = upper_fence(np.array(honest + [lie] * liars))[0]
    assert max(honest) <= 10 < fence
    assert fence <= 10 * 10 ** (6 * 1.4826)


def test_zeros_and_nothing_have_no_fence():
    assert upper_fence(np.zeros(3)).tolist() == upper_fence(np.empty(0)).tolist() == [np.inf]


def test_one_device_cannot_move_a_median_or_what_is_usual():
    assert robust_mean(np.array([[1.0], [2.0], [3.0], [1e9]]), np.ones(4), "median").tolist() == [2.5]
    assert usual_length(np.array([0.3, 0.5, 70.0, 80.0, 1e9])) == 0.3
    moves, rows = np.array([0.3, 0.5, 70.0, 1e9]), np.array([50, 50, 9, 9])
    assert longest_moves(np.array([50, 500]), moves, rows, size=2.0).tolist() == [3.0, 30.0]
