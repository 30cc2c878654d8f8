from __future__ import annotations

import numpy as np
import pytest
from numba import njit

from fedfuse.models import _kernels


@njit
def exps(x, out):
    for i in range(x.size):
        out[i] = _kernels.exp(x[i])


@pytest.mark.parametrize(("dtype", "least"), [(np.float32, -87), (np.float64, -708)])
def test_vector_exp_is_accurate_to_the_last_place(dtype, least):
    near, far = -np.geomspace(1e-12, -least, 20_000), np.linspace(least, 0, 100_001)
    x = np.concatenate([near, far, np.log(2) * (np.arange(-100, 0) + 0.5), [0.0, -0.0]]).astype(dtype)
    out = np.empty_like(x)
    exps(x, out)
    exact = np.exp(x.astype(np.longdouble))
    assert (np.abs(out / exact - 1)).max() < 1.5 * np.finfo(dtype).eps
    assert out[-1] == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_far_below_it_stays_tiny_and_normal(dtype):
    x = np.array([-1e3, -1e30, -np.inf, np.nan], dtype)
    out = np.empty_like(x)
    exps(x, out)
    assert np.isnan(out[3])
    assert ((out[:3] >= np.finfo(dtype).tiny) & (out[:3] < 1e-36)).all()
