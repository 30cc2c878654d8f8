"""Bounds from path lengths: never above a distance, however devices move; unknown for what is not a number."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfuse.pairs.distance_bounds import DistanceBounds
from fedfuse.pairs.layout import FAR, ROUND_DOWN, devices_of, pair_count


def distances(omega):
    lo, hi = devices_of(np.arange(pair_count(len(omega))))
    return np.linalg.norm(omega[lo] - omega[hi], axis=1)


@given(seed=st.integers(0, 2**32 - 1), m=st.integers(2, 9), step=st.sampled_from([1e-3, 0.3, 10.0]))
@settings(max_examples=50, deadline=None)
def test_bounds_stay_below_the_distances_of_devices_that_wander(seed, m, step):
    rng = np.random.default_rng(seed)
    omega, bounds = rng.normal(size=(m, 4)), DistanceBounds(m)
    everyone, where = np.arange(m), np.full(pair_count(m), FAR, np.int32)
    r = (distances(omega) * ROUND_DOWN).astype(np.float32)
    lo, hi = devices_of(np.arange(r.size))
    bounds.set(everyone, np.array([r[(lo == i) | (hi == i)].min() for i in everyone]))
    for k in range(12):
        active = rng.choice(m, rng.integers(1, m + 1), replace=False)
        moves = step * rng.normal(size=(active.size, 4))
        omega[active] += moves
        bounds.move(active, np.linalg.norm(moves, axis=1))
        true = distances(omega)
        assert bounds.within(everyone, true.min()).any()  # the closest pair is not known to be further apart
        assert not bounds.beyond(true.min())
        if k == 6:
            bounds.reset_paths(r, where)
        assert (r - bounds.path_length[lo] - bounds.path_length[hi] <= true * (1 + 1e-6)).all()
        assert (r >= 0).all()


def test_nothing_is_known_of_a_device_that_moved_by_what_is_not_a_number():
    bounds, everyone = DistanceBounds(3), np.arange(3)
    bounds.set(everyone, np.full(3, 5.0))
    assert bounds.beyond(4.0)
    bounds.move(np.array([1]), np.array([np.nan]))
    assert bounds.within(everyone, 0.1).all()
    bounds.set(everyone, np.full(3, 5.0))
    assert bounds.within(everyone, 0.1).tolist() == [False, True, False]
