from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime, minimize

from fedfuse.data.federation import Rows
from fedfuse.errors import FedfuseError
from fedfuse.models import LinearRegression, SoftmaxRegression, softmax
from fedfuse.protocol.local_work import Work
from fedfuse.utils import threads as _threads
from support import plain_models as plain

WORKS = {"gd": Work(5, 0.2), "batches": Work(2, 0.1, batch=37), "exact": Work(solver="exact")}
# around one vector, one panel and two panels of rows
COUNTS = [1, 7, 8, 9, 0, 255, 256, 257, 300, 520]


def setup(counts=COUNTS, p=6, C=4, dtype=np.float64, seed=0, gaps=0):
    rows = plain.ragged(counts, p, C, seed, gaps)
    model = SoftmaxRegression().sized(p, C)
    rng = np.random.default_rng(seed + 1)
    w, anchor = rng.normal(size=(2, len(counts), model.d)).astype(dtype)
    return model, rows, model.load(rows, dtype), np.arange(len(counts)), w, anchor


def generators(devices):
    return [np.random.default_rng([5, int(i)]) for i in devices]


shapes = st.tuples(
    st.lists(st.one_of(st.integers(0, 300), st.sampled_from(COUNTS)), min_size=1, max_size=5),
    st.integers(1, 12),
    st.integers(2, 7),
    st.integers(0, 3),
)


@settings(deadline=None, max_examples=60)
@given(shapes)
def test_steps_equal_plain_numpy_for_ragged_shapes(shape):
    counts, p, C, gaps = shape
    model, rows, data, devices, w, anchor = setup(counts, p, C, gaps=gaps)
    new = model.train(data, devices, w, anchor, 0.7, Work(4, 0.3))
    for i in devices:
        expected = plain.gradient_descent(plain.softmax_gradient(C), *rows.of(i), w[i], anchor[i], 0.7, 0.3, 4)
        np.testing.assert_allclose(new[i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-4)])
def test_ten_steps_equal_plain_numpy(dtype, tolerance):
    model, rows, data, devices, w, anchor = setup(p=13, C=5, dtype=dtype)
    new = model.train(data, devices, w, anchor, 1.0, Work(10, 0.1))
    assert new.dtype == dtype
    for i in devices:
        expected = plain.gradient_descent(plain.softmax_gradient(5), *rows.of(i), w[i], anchor[i], 1.0, 0.1, 10)
        np.testing.assert_allclose(new[i], expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("batch", [1, 37, 256, 1000])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-4)])
def test_mini_batches_equal_plain_numpy(batch, dtype, tolerance):
    model, rows, data, devices, w, anchor = setup([9, 100, 520], dtype=dtype, gaps=2)
    new = model.train(data, devices, w, anchor, 0.5, Work(2, 0.1, batch), generators(devices))
    for i, rng in zip(devices, generators(devices), strict=True):
        expected = plain.batch_descent(plain.softmax_gradient(4), *rows.of(i), w[i], anchor[i], 0.5, 0.1, 2, batch, rng)
        np.testing.assert_allclose(new[i], expected, rtol=0, atol=tolerance)


def test_without_an_anchor_there_is_no_proximal_term():
    model, _, data, devices, w, _ = setup()
    for name, work in WORKS.items():
        if name != "exact":
            free = model.train(data, devices, w, None, 3.0, work, generators(devices))
            zero = model.train(data, devices, w, 0 * w, 0.0, work, generators(devices))
            np.testing.assert_array_equal(free, zero)


def test_gradient_is_the_derivative_of_the_loss():
    model, rows, data, devices, w, _ = setup([5, 300], p=3, C=3)
    gradients = model.gradients(data, devices, w)
    for i in devices:
        loss = lambda v, i=i: model.losses(data, devices[i : i + 1], v[None])[0]  # noqa: E731
        np.testing.assert_allclose(gradients[i], approx_fprime(w[i], loss, 1e-7), atol=1e-6)
        assert loss(w[i]) == pytest.approx(plain.softmax_loss(3)(w[i], *rows.of(i)), abs=1e-13)


@pytest.mark.parametrize("rho", [0.01, 1.0])
def test_exact_is_the_minimum(rho):
    model, _rows, data, devices, w, anchor = setup([9, 257, 520], p=4, C=3)
    best = model.train(data, devices, w, anchor, rho, WORKS["exact"])
    slope = model.gradients(data, devices, best) + rho * (best - anchor)
    assert np.linalg.norm(slope, axis=1).max() < 1e-6
    value = lambda v: model.losses(data, devices, v) + rho / 2 * ((v - anchor) ** 2).sum(axis=1)  # noqa: E731
    for away in np.random.default_rng(0).normal(size=(20, *best.shape)):
        assert (value(best + 1e-2 * away) > value(best)).all()
    long = model.train(data, devices, w, anchor, rho, Work(20_000, 0.5))
    np.testing.assert_allclose(best, long, atol=1e-6)


def test_exact_in_float32_comes_close_to_float64():
    model, rows, data, devices, w, anchor = setup([100, 520], p=20, C=6)
    single = model.load(rows, np.float32)
    a = model.train(data, devices, w, anchor, 0.1, WORKS["exact"])
    b = model.train(single, devices, w, anchor, 0.1, WORKS["exact"])
    np.testing.assert_allclose(a, b, atol=1e-3)


def test_exact_stops_where_rounding_hides_every_gain(monkeypatch):
    """Columns of unlike scales: steps that change nothing were tried and taken thousands of times."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(20, 8)) * np.logspace(-1, 1.5, 8) + 3
    rows = Rows(X, rng.integers(0, 2, 20), np.array([0]), np.array([20]))
    model, tried = SoftmaxRegression().sized(8, 2), []
    value_and_gradient = softmax._Newton._value_and_gradient

    def counting(newton, W):
        tried.append(W)
        return value_and_gradient(newton, W)

    monkeypatch.setattr(softmax._Newton, "_value_and_gradient", counting)
    data, w = model.load(rows, np.float32), np.zeros((1, model.d))
    for _ in range(5):  # As in rounds that begin where the last one ended.
        w = model.train(data, np.array([0]), w.astype(np.float32), None, 0.0, WORKS["exact"])
    best = minimize(lambda v: plain.softmax_loss(2)(v, *rows.of(0)), np.zeros(model.d), tol=1e-10).fun
    assert model.losses(data, np.array([0]), w)[0] < best + 1e-4
    assert len(tried) < 200


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_without_minimum_stops(dtype):
    X = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    rows = Rows(1000 * X, np.array([0, 0, 1, 1]), np.array([0]), np.array([4]))
    model = SoftmaxRegression().sized(1, 2)
    for scale in (1e-3, 1.0):
        data = model.load(Rows(scale * rows.X, rows.y, rows.start, rows.stop), dtype)
        w = model.train(data, np.array([0]), np.zeros((1, 4)), None, 0.0, WORKS["exact"])
        assert np.isfinite(w).all()
        assert model.losses(data, np.array([0]), w)[0] < 1e-3
        assert model.metric(data, np.array([0]), w)[0] == 1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
def test_a_device_does_not_depend_on_others_order_or_threads(work, dtype, monkeypatch):
    monkeypatch.setattr(_threads, "MIN_PARALLEL_WORK", 0)
    model, _, data, devices, w, anchor = setup(p=9, C=3, dtype=dtype)

    def trained(chosen):
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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_losses_of_huge_scores(dtype):
    model, rows, data, devices, w, _ = setup([1, 50, 257], dtype=dtype)
    loss = plain.softmax_loss(4)
    for size in (1.0, 1e2, 1e4):
        big = (size * w).astype(dtype)
        expected = [loss(v.astype(float), *rows.of(i)) for i, v in enumerate(big)]
        np.testing.assert_allclose(model.losses(data, devices, big), expected, rtol=1e-4, atol=1e-5)
        assert np.isfinite(model.gradients(data, devices, big)).all()
        assert np.isfinite(model.train(data, devices, big, None, 0.0, Work(3))).all()


def test_float32_sums_over_many_rows_stay_accurate():
    counts = [60_000]
    model, rows, _data, devices, w, _ = setup(counts, p=5, C=3)
    single = model.load(Rows(rows.X + 100, rows.y, rows.start, rows.stop), np.float32)
    double = model.load(Rows((rows.X + 100).astype(np.float32), rows.y, rows.start, rows.stop), np.float64)
    w[:] = 1e-3 * w
    a, b = (model.gradients(data, devices, w) for data in (single, double))
    np.testing.assert_allclose(a, b, atol=1e-4 * np.abs(b).max())


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS.keys())
def test_a_device_without_rows_follows_the_proximal_term_alone(work):
    model, _, data, devices, w, anchor = setup([0, 3, 0])
    new = model.train(data, devices, w, anchor, 0.5, work, generators(devices))
    steps = {"gd": 5, "batches": 2}
    if work.solver == "exact":
        np.testing.assert_allclose(new[[0, 2]], anchor[[0, 2]], atol=1e-7)
    else:
        left = (1 - 0.5 * work.lr) ** steps["gd" if work.batch is None else "batches"]
        np.testing.assert_allclose(new[[0, 2]], (anchor + left * (w - anchor))[[0, 2]])
    assert np.isnan(model.metric(data, devices, w)).tolist() == [True, False, True]
    assert model.losses(data, devices, w)[0] == 0
    assert not model.gradients(data, devices, w)[0].any()


def test_accuracy_counts_the_first_of_equal_classes():
    model, rows, data, devices, w, _ = setup()
    full = [i for i in devices if rows.counts[i]]
    zero = model.metric(data, devices, 0 * w)
    np.testing.assert_allclose(zero[full], [(rows.of(i)[1] == 0).mean() for i in full])
    said = [model.outputs(w[i], rows.of(i)[0]).argmax(axis=1) for i in full]
    np.testing.assert_allclose(
        model.metric(data, devices, w)[full],
        [(s == rows.of(i)[1]).mean() for s, i in zip(said, full, strict=True)],
    )


def test_outputs_are_probabilities_and_coefficients_a_table():
    model, rows, _, _, w, _ = setup(p=3, C=4)
    P = model.outputs(1e4 * w[0], rows.X)
    np.testing.assert_allclose(P.sum(axis=1), 1)
    table = model.coefficients(w[0])
    assert table.shape == (4, 4)
    np.testing.assert_array_equal(table[:, :3].ravel(), w[0, :12])
    np.testing.assert_array_equal(table[:, 3], w[0, 12:])


def test_two_classes_have_two_outputs():
    model, rows, data, devices, w, anchor = setup([40], p=3, C=2)
    assert model.d == 8
    new = model.train(data, devices, w, anchor, 0.2, Work(7, 0.1))
    expected = plain.gradient_descent(plain.softmax_gradient(2), *rows.of(0), w[0], anchor[0], 0.2, 0.1, 7)
    np.testing.assert_allclose(new[0], expected, atol=1e-13)


def test_start_is_not_changed():
    model, _, data, devices, w, anchor = setup()
    before = w.copy(), anchor.copy()
    for work in WORKS.values():
        model.train(data, devices, w, anchor, 0.5, work, generators(devices))
    np.testing.assert_array_equal((w, anchor), before)


def test_no_devices_no_models():
    model, _, data, _, w, _ = setup()
    none = np.zeros(0, np.int64)
    for work in WORKS.values():
        assert model.train(data, none, w[:0], None, 0.0, work, []).shape == (0, model.d)
    assert model.losses(data, none, w[:0]).shape == (0,)


def test_wrong_use_is_explained():
    rows = plain.ragged([20], 3, 3)
    with pytest.raises(FedfuseError, match=r"SoftmaxRegression is for classification.*LinearRegression"):
        SoftmaxRegression().sized(3, 0)
    with pytest.raises(FedfuseError, match="classes must be the numbers 0 … 1"):
        SoftmaxRegression().sized(3, 2).load(rows, np.float64)
    with pytest.raises(FedfuseError, match="0 features, the rows have 3"):
        SoftmaxRegression().load(rows, np.float64)
    with pytest.raises(FedfuseError, match="float32 or float64, got int64"):
        SoftmaxRegression().sized(3, 3).load(rows, np.int64)
    model, _, data, devices, w, _ = setup()
    with pytest.raises(FedfuseError, match="one random generator per device"):
        model.train(data, devices, w, None, 0.0, WORKS["batches"])


@pytest.mark.parametrize("model", [SoftmaxRegression().sized(3, 4), LinearRegression().sized(3, 0)])
def test_curvature_is_that_of_the_hessian(model):
    """By differences of the gradient, column by column."""
    rng, w = np.random.default_rng(0), np.random.default_rng(1).normal(size=model.d)
    X, y, one = rng.normal(size=(9, 3)), rng.integers(0, 4, 9), np.array([0])
    data, steps = model.load(Rows(X, y, one, np.array([9])), np.float64), 1e-5 * np.eye(model.d)
    ends = [[model.gradients(data, one, (w + s * e)[None])[0] for s in (1, -1)] for e in steps]
    H = np.array([(a - b) / 2e-5 for a, b in ends])
    np.testing.assert_allclose(model.hessian_numbers(w, X), [*np.diag(H), np.trace(H @ H)], rtol=1e-5, atol=1e-9)
    assert not model.hessian_numbers(w, X[:0]).any()


def test_curvature_of_certain_models_is_not_negative():
    """Where all probabilities are nearly 0 or 1, rounding would make honest devices liars."""
    rng, model = np.random.default_rng(0), SoftmaxRegression().sized(3, 2)
    for _ in range(200):
        X, w = rng.normal(size=(8, 3)), rng.choice([1, 10, 30, 60]) * rng.normal(size=model.d)
        assert (model.hessian_numbers(w, X) >= 0).all()
