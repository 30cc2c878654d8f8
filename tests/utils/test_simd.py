import numpy as np
import pytest
from numba import TypingError, njit

from fedfuse.utils.simd import BYTES, choose, exp, load, splat, store, total, totals, width


@njit
def _mix(a, b, factor):
    together = splat(a.dtype.type(0))
    for e in range(0, a.size - width(a) + 1, width(a)):
        x = load(a, e) - splat(factor) * load(b, e)
        together = together + x
        store(a, e, x)
    return total(together)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lanes_do_what_numbers_do_and_leave_the_rest_alone(dtype):
    rng = np.random.default_rng(0)
    lanes = BYTES // np.dtype(dtype).itemsize
    a, b = rng.normal(size=(2, 5 * lanes + 2)).astype(dtype)
    # not at the beginning of anything
    found = a.copy()[1:]
    together = _mix(found, b[1:], dtype(0.5))
    whole = found.size - found.size % lanes
    np.testing.assert_allclose(found[:whole], (a - dtype(0.5) * b)[1:][:whole], rtol=1e-6)
    assert (found[whole:] == a[1:][whole:]).all()
    assert together == pytest.approx(found[:whole].sum(dtype=np.float64), rel=1e-5, abs=1e-5)


@njit
def _in_pieces(rows, out):
    together = totals(load(rows[0], 0), load(rows[1], 0), load(rows[2], 0), load(rows[3], 0))
    store(out, 0, together)
    a, b = load(rows[0], 0), load(rows[1], 0) / load(rows[2], 0)
    store(out, width(out), choose(a, b, a, b))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_of_four_and_the_larger_of_two(dtype):
    lanes = BYTES // np.dtype(dtype).itemsize
    rows = np.random.default_rng(0).normal(size=(4, lanes)).astype(dtype)
    out = np.empty(2 * lanes, dtype)
    _in_pieces(rows, out)
    np.testing.assert_allclose(out[:lanes].reshape(-1, 4).sum(axis=0), rows.sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(out[lanes:], np.maximum(rows[0], rows[1] / rows[2]), rtol=1e-6)


def test_arrays_with_gaps_are_refused():
    with pytest.raises(TypingError, match="contiguous"):
        _mix(np.zeros(64)[::2], np.zeros(32), 0.5)


@njit
def exps(x, out):
    for e in range(0, x.size, width(x)):
        store(out, e, exp(load(x, e)))


def exp_of(x):
    filled = np.zeros(-(-x.size // 16) * 16, x.dtype)  # as many as there are lanes at the most
    filled[: x.size] = x
    out = np.empty_like(filled)
    exps(filled, out)
    return out[: x.size]


@pytest.mark.parametrize(("dtype", "least"), [(np.float32, -87), (np.float64, -708)])
def test_vector_exp_is_accurate_to_the_last_place(dtype, least):
    near, far = -np.geomspace(1e-12, -least, 20_000), np.linspace(least, 0, 100_001)
    x = np.concatenate([near, far, np.log(2) * (np.arange(-100, 0) + 0.5), [0.0, -0.0]]).astype(dtype)
    out = exp_of(x)
    exact = np.exp(x.astype(np.longdouble))
    assert (np.abs(out / exact - 1)).max() < 1.5 * np.finfo(dtype).eps
    assert out[-1] == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_below_it_stays_tiny_and_normal(dtype):
    x = np.array([-1e3, -1e30, -np.inf, np.nan], dtype)
    out = exp_of(x)
    assert np.isnan(out[3])
    assert ((out[:3] >= np.finfo(dtype).tiny) & (out[:3] < 1e-36)).all()
