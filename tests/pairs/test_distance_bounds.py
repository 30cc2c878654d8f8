"""Lower bounds by matrix products: never above the distance, near it where it matters, zero for what is no number."""

import numpy as np
import pytest

from fedfuse.core.penalties import L1, SmoothedSCAD
from fedfuse.pairs import distance_bounds, memory
from fedfuse.pairs import state as pair_state
from fedfuse.pairs.memory import Pool
from fedfuse.pairs.state import FusionState


def distances(omega):
    wide = omega.astype(np.float64)
    full = np.linalg.norm(wide[:, None] - wide[None], axis=2)
    return full[np.tril_indices(len(omega), -1)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shift", [0.0, 1e4], ids=["centred", "shifted"])
@pytest.mark.parametrize("liar", [1.0, 1e3, 1e18], ids=str)
def test_bounds_are_below_the_distances_and_near_them(monkeypatch, dtype, shift, liar):
    monkeypatch.setattr(distance_bounds, "PRODUCT_ROWS", 7)
    rng = np.random.default_rng(5)
    omega = rng.normal(size=(40, 60)) * rng.choice([1e-3, 1.0, 10.0], size=(40, 1)) + shift
    omega[3] = liar * rng.normal(size=60)
    omega[8] = omega[9]
    omega = omega.astype(dtype)
    true, r = distances(omega), np.full(40 * 39 // 2, -1.0, dtype)
    within = distance_bounds.lower_bounds(omega, r, reach=5.0)
    assert (r >= 0).all()
    assert (r <= true).all()
    assert (true <= 5.0).sum() <= within <= (true <= 5.0 * 1.01).sum() + 5
    honest = [p for p in range(r.size) if p not in pairs_of(3, 40)]
    assert (r >= 0.99 * true - 0.05)[honest].all()


def pairs_of(i, m):
    return {max(i, j) * (max(i, j) - 1) // 2 + min(i, j) for j in range(m) if j != i}


def test_nothing_is_known_of_what_is_not_a_number():
    omega = np.random.default_rng(6).normal(size=(6, 4)).astype(np.float32)
    omega[2, 1], omega[4, 0], omega[5] = np.nan, np.inf, 3e38
    r = np.empty(15, np.float32)
    with np.errstate(all="ignore"):
        within = distance_bounds.lower_bounds(omega, r, reach=0.1)
    known = np.isin(np.arange(15), list(pairs_of(2, 6) | pairs_of(4, 6) | pairs_of(5, 6)), invert=True)
    assert (r[~known] == 0).all()
    assert (r[known] > 0).all()
    assert within == (~known).sum()


def test_a_warm_start_knows_bounds_and_provides_memory(monkeypatch):
    """Memory of the pairs within reach is there before the first round, and nothing else changes."""
    rng = np.random.default_rng(7)
    start = np.repeat(rng.normal(size=(3, 30)), 4, axis=0) * 5 + 0.01 * rng.normal(size=(12, 30))
    monkeypatch.setattr(pair_state, "MAX_NUMPY_NUMBERS", 0)
    plain = FusionState(start, SmoothedSCAD(0.6), warm=True)
    assert plain._pool.nbytes == 0, "a small state is not worth it"
    monkeypatch.setattr(memory, "MIN_RETURNED_BYTES", 1)
    ready = FusionState(start, SmoothedSCAD(0.6), warm=True)
    assert ready._pool.nbytes == 3 * 6 * ready._pool.row_bytes
    assert ready._pool.used == 0
    assert FusionState(start, L1(0.6), warm=True)._pool.nbytes == 66 * ready._pool.row_bytes
    monkeypatch.undo()
    monkeypatch.setattr(pair_state, "MAX_NUMPY_NUMBERS", 0)
    for k in range(6):
        active = rng.choice(12, 4, replace=False)
        omegas = start[active] + 0.1 * k
        assert plain.update(active, omegas) == ready.update(active, omegas)
    for name, array in plain.pack().items():
        np.testing.assert_array_equal(ready.pack()[name], array)


def test_rows_are_provided_behind_those_in_use_and_within_the_limit(monkeypatch):
    monkeypatch.setattr(memory, "MIN_RETURNED_BYTES", 1)
    pool = Pool(5000, 100, np.float32, limit=1_000_000)
    rows = pool.take(3)
    pool.rows[rows] = 7
    pool.give_back(rows[:1])
    pool.provide(2000)
    assert pool.nbytes == 2002 * 400
    assert (pool.rows[:3] == 7).all()
    assert not pool.rows[3:].any()
    pool.provide(4000)  # more than is allowed: the round that wants them will say so
    assert pool.nbytes == 2002 * 400
    assert pool.take(1).tolist() == [0]
