"""Bounds from path lengths: never above a distance, however devices move; unknown for what is not a number."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfuse.pairs.distance_bounds import DistanceBounds


@given(seed=st.integers(0, 2**32 - 1), m=st.integers(2, 9), step=st.sampled_from([1e-3, 0.3, 10.0]))
@settings(max_examples=50, deadline=None)
def test_no_device_is_nearer_than_its_bound_however_devices_wander(seed, m, step):
    rng = np.random.default_rng(seed)
    omega, bounds = rng.normal(size=(m, 4)), DistanceBounds(m)
    everyone = np.arange(m)

    def nearest():
        apart = np.linalg.norm(omega[:, None] - omega, axis=2)
        return (apart + np.diag(np.full(m, np.inf))).min(axis=1)

    assert bounds.within(everyone, 1e-9).all()  # nothing is known at first
    bounds.set(everyone, nearest())
    for k in range(12):
        active = rng.choice(m, rng.integers(1, m + 1), replace=False)
        moves = step * rng.normal(size=(active.size, 4))
        omega[active] += moves
        bounds.move(active, np.linalg.norm(moves, axis=1))
        if k % 3 == 2:
            bounds.set(active, nearest()[active])
            assert not bounds.within(active, 0.9 * nearest()[active].min()).any()
        assert all(bounds.within(np.array([i]), away)[0] for i, away in enumerate(nearest() * (1 + 1e-9)))


def test_nothing_is_known_of_a_device_that_moved_by_what_is_not_a_number():
    bounds, everyone = DistanceBounds(3), np.arange(3)
    bounds.set(everyone, np.full(3, 5.0))
    assert not bounds.within(everyone, 4.0).any()
    bounds.move(np.array([1]), np.array([np.nan]))
    assert bounds.within(everyone, 0.1).all()
    bounds.set(everyone, np.full(3, 5.0))
    assert bounds.within(everyone, 0.1).tolist() == [False, True, False]
