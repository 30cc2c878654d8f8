from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from fedfuse.utils.simd import load, store, width
from fedfuse.utils.vector_exp import exp


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
