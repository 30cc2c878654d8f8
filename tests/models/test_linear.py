from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from fedfuse.data.federation import Rows
from fedfuse.errors import FedfuseError
from fedfuse.models import LinearRegression
from fedfuse.protocol.local_work import Work
from fedfuse.utils import threads as _threads
from support import plain_models as plain

WORKS = {"gd": Work(5, 0.05), "batches": Work(2, 0.02, batch=7), "exact": Work(solver="exact")}
COUNTS = [1, 3, 6, 7, 8, 0, 100, 256, 300]  # fewer and more rows than parameters


def setup(counts=COUNTS, p=6, dtype=np.float64, seed=0, gaps=0):
    rows = plain.ragged(counts, p, 0, seed, gaps)
    model = LinearRegression().sized(p, 0)
    rng = np.random.default_rng(seed + 1)
    w, anchor = rng.normal(size=(2, len(counts), model.d)).astype(dtype)
    return model, rows, model.load(rows, dtype), np.arange(len(counts)), w, anchor


def generators(devices):
    return [np.random.default_rng([5, int(i)]) for i in devices]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.one_of(st.integers(0, 300), st.sampled_from([255, 256, 257])), min_size=1, max_size=5),
    st.integers(1, 12),
    st.integers(0, 3),
)
def test_steps_equal_plain_numpy_for_ragged_shapes(counts, p, gaps):
    model, rows, data, devices, w, anchor = setup(counts, p, gaps=gaps)
    new = model.train(data, devices, w, anchor, 0.7, Work(6, 0.01))
    for i in devices:
        expected = plain.gradient_descent(plain.linear_gradient, *rows.of(i), w[i], anchor[i], 0.7, 0.01, 6)
        np.testing.assert_allclose(new[i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_mini_batches_equal_plain_numpy(batch, dtype, tolerance):
    model, rows, data, devices, w, anchor = setup([5, 100, 301], dtype=dtype, gaps=2)
    new = model.train(data, devices, w, anchor, 0.5, Work(2, 0.01, batch), generators(devices))
    assert new.dtype == dtype
    for i, rng in zip(devices, generators(devices), strict=True):
        expected = plain.batch_descent(plain.linear_gradient, *rows.of(i), w[i], anchor[i], 0.5, 0.01, 2, batch, rng)
        np.testing.assert_allclose(new[i], expected, rtol=0, atol=tolerance)


def test_gradient_is_the_derivative_of_the_loss():
    model, rows, data, devices, w, _ = setup()
    gradients = model.gradients(data, devices, w)
    for i in devices:
        X, y = rows.of(i)
        loss = lambda v, i=i: model.losses(data, devices[i : i + 1], v[None])[0]  # noqa: E731
        np.testing.assert_allclose(gradients[i], approx_fprime(w[i], loss, 1e-7), atol=1e-4)
        if len(y):
            mean = np.mean((y - X @ w[i, :-1] - w[i, -1]) ** 2)
            assert loss(w[i]) == pytest.approx(mean)
            assert model.metric(data, devices, w)[i] == pytest.approx(np.sqrt(mean))


@pytest.mark.parametrize("rho", [1e-12, 1e-3, 1.0, 1e6])
def test_exact_is_the_minimum(rho):
    model, _rows, data, devices, w, anchor = setup()
    best = model.train(data, devices, w, anchor, rho, WORKS["exact"])
    slope = model.gradients(data, devices, best) + rho * (best - anchor)
    np.testing.assert_allclose(slope, 0, atol=1e-9 * max(1, rho))
    value = lambda v: model.losses(data, devices, v) + rho / 2 * ((v - anchor) ** 2).sum(axis=1)  # noqa: E731
    for away in np.random.default_rng(0).normal(size=(20, *best.shape)):
        assert (value(best + 1e-2 * away) >= value(best)).all()


def test_exact_is_where_very_long_descent_ends():
    model, _, data, devices, w, anchor = setup(p=3)
    best = model.train(data, devices, w, anchor, 0.5, WORKS["exact"])
    long = model.train(data, devices, w, anchor, 0.5, Work(20_000, 0.02))
    np.testing.assert_allclose(best, long, atol=1e-9)


def test_exact_without_proximal_term_is_least_squares_closest_to_start():
    _model, rows, _data, devices, w, _ = setup()
    twin = np.column_stack([rows.X, rows.X[:, 0]])  # a column twice: singular on every device
    double = LinearRegression().sized(7, 0)
    start = np.column_stack([w[:, :-1], 0 * w[:, :1], w[:, -1:]])
    best = double.train(
        double.load(Rows(twin, rows.y, rows.start, rows.stop), np.float64),
        devices,
        start,
        None,
        0.0,
        WORKS["exact"],
    )
    for i in devices:
        X, y = np.column_stack([twin, np.ones(len(twin))])[rows.start[i] : rows.stop[i]], rows.of(i)[1]
        move = np.linalg.lstsq(X, y - X @ start[i], rcond=None)[0] if len(y) else 0
        np.testing.assert_allclose(best[i], start[i] + move, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
def test_a_device_does_not_depend_on_others_order_or_threads(work, dtype, monkeypatch):
    monkeypatch.setattr(_threads, "MIN_PARALLEL_WORK", 0)
    model, rows, _, devices, w, anchor = setup(dtype=dtype)

    def trained(chosen):
        data = model.load(rows, dtype)  # nothing cached
        return model.train(data, chosen, w[chosen], anchor[chosen], 0.3, work, generators(chosen))

    together = trained(devices)
    mixed = np.random.default_rng(0).permutation(np.repeat(devices, 2))
    np.testing.assert_array_equal(together[mixed], trained(mixed))
    for i in devices:
        np.testing.assert_array_equal(together[i : i + 1], trained(devices[i : i + 1]))
    try:
        _threads.keep_to(1)
        np.testing.assert_array_equal(together, trained(devices))
    finally:
        _threads.keep_to(None)


def test_what_is_kept_for_later_rounds_changes_nothing():
    model, rows, data, devices, w, anchor = setup()
    for chosen in ([7, 6], [8, 1, 6], [4, 5, 7, 8], list(devices)):
        i = np.array(chosen)
        fresh = model.train(model.load(rows, np.float64), i, w[i], anchor[i], 0.3, WORKS["gd"])
        np.testing.assert_array_equal(model.train(data, i, w[i], anchor[i], 0.3, WORKS["gd"]), fresh)


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
def test_a_device_without_rows_follows_the_proximal_term_alone(work):
    model, _, data, devices, w, anchor = setup([0, 3])
    new = model.train(data, devices, w, anchor, 0.5, work, generators(devices))
    left = 0 if work.solver == "exact" else (1 - 0.5 * work.lr) ** work.steps
    np.testing.assert_allclose(new[0], anchor[0] + left * (w[0] - anchor[0]))
    stay = model.train(data, devices, w, None, 0.0, work, generators(devices))
    np.testing.assert_array_equal(stay[0], w[0])
    assert np.isnan(model.metric(data, devices, w)).tolist() == [True, False]
    assert model.losses(data, devices, w)[0] == 0


def test_rows_in_float32_are_summed_in_float64():
    model, rows, _data, devices, w, anchor = setup([300])
    X = (rows.X + 1000).astype(np.float32)
    a, b = (
        model.train(
            model.load(Rows(X.astype(kind), rows.y, rows.start, rows.stop), np.float64),
            devices,
            w,
            anchor,
            0.1,
            WORKS["exact"],
        )
        for kind in (np.float32, np.float64)
    )
    np.testing.assert_array_equal(a, b)


def test_outputs_and_coefficients():
    model, rows, _, _, w, _ = setup()
    np.testing.assert_allclose(model.outputs(w[0], rows.X), rows.X @ w[0, :-1] + w[0, -1])
    np.testing.assert_array_equal(model.coefficients(w[0]), w[:1])


def test_start_is_not_changed():
    model, _, data, devices, w, anchor = setup()
    before = w.copy(), anchor.copy()
    for work in WORKS.values():
        model.train(data, devices, w, anchor, 0.5, work, generators(devices))
    np.testing.assert_array_equal((w, anchor), before)


def test_wrong_use_is_explained():
    with pytest.raises(FedfuseError, match=r"LinearRegression is for regression.*SoftmaxRegression"):
        LinearRegression().sized(3, 4)
    model, _, data, devices, w, _ = setup()
    with pytest.raises(FedfuseError, match="one random generator per device, got 1"):
        model.train(data, devices, w, None, 0.0, WORKS["batches"], generators([0]))
