"""Personal models at home: closed forms, brute force and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfuse.data.federation import Rows
from fedfuse.models.linear import LinearRegression
from fedfuse.models.personal_fit import (
    DeviceTables,
    Prior,
    as_tables,
    as_vectors,
    in_lots,
    judge,
    leave_one_out,
    nearest_centres,
    posterior,
    without_device,
)
from fedfuse.models.softmax import SoftmaxRegression
from fedfuse.protocol.tasks import JudgePersonalModels


def tables(rng, counts=(7, 12), p=3, classes=0):
    n = max(counts)
    Z = np.concatenate([rng.normal(size=(len(counts), n, p)), np.ones((len(counts), n, 1))], axis=2)
    there = (np.arange(n) < np.array(counts)[:, None]).astype(float)
    y = rng.integers(classes, size=(len(counts), n)) if classes else rng.normal(size=(len(counts), n))
    return DeviceTables(Z * there[..., None], y * there, there, classes)


def without(given, k, r):
    """One device, a row left out."""
    keep = np.flatnonzero(given.there[k])
    keep = keep[keep != r]
    return DeviceTables(given.Z[[k]][:, keep], given.y[[k]][:, keep], given.there[[k]][:, keep], given.classes)


@given(st.integers(0, 10**6), st.floats(0.05, 5), st.floats(0.1, 3))
@settings(max_examples=25, deadline=None)
def test_squared_errors_have_the_closed_form(seed, variance, noise):
    rng = np.random.default_rng(seed)
    given_rows = tables(rng)
    centre = rng.normal(size=(2, 1, 4))
    found = posterior(given_rows, Prior.of(centre, np.full(4, variance), 0.0))
    for k in range(2):
        n = int(given_rows.counts[k])
        Z, y = given_rows.Z[k, :n], given_rows.y[k, :n]
        H = Z.T @ Z + np.eye(4) / variance
        w = centre[k, 0] + np.linalg.solve(H, Z.T @ (y - Z @ centre[k, 0]))
        np.testing.assert_allclose(found.W[k, 0], w, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(found.V[k], np.linalg.inv(H), rtol=1e-8, atol=1e-10)
    noisy = posterior(given_rows, Prior.of(centre, np.full(4, variance), noise))
    assert (noisy.noise > 0).all()


@pytest.mark.parametrize("classes", [0, 3])
def test_the_mode_has_no_gradient(classes):
    rng = np.random.default_rng(1)
    rows = tables(rng, classes=classes)
    centre = rng.normal(size=(2, max(classes, 1), 4))
    prior = Prior.of(centre, np.array([0.5, 1.0, 2.0, 4.0]), 0.0)
    W = posterior(rows, prior).W

    def objective(W):
        data = rows.losses(rows.predicted(W)).sum(axis=1)
        return data + (prior.precision * np.square(W - centre)).sum(axis=(1, 2)) / 2

    for place in np.ndindex(W.shape[1:]):
        step = np.zeros_like(W)
        step[(slice(None), *place)] = 1e-5
        np.testing.assert_allclose((objective(W + step) - objective(W - step)) / 2e-5, 0, atol=1e-5)


@pytest.mark.parametrize(("classes", "tolerance"), [(0, 1e-8), (2, 0.06), (3, 0.06)])
def test_leaving_out_a_row_is_like_fitting_without_it(classes, tolerance):
    """Exact for squared errors; for classes one Newton step away where that is short."""
    rng = np.random.default_rng(2)
    rows = tables(rng, counts=(9, 15), classes=classes)
    centre = rng.normal(size=(2, max(classes, 1), 4)) / 2
    variances = np.full(4, 0.5)
    losses = rows.losses(leave_one_out(rows, Prior.of(centre, variances, 0.0)))
    for k in range(2):
        for r in range(int(rows.counts[k])):
            rest = without(rows, k, r)
            W = posterior(rest, Prior.of(centre[[k]], variances, 0.0)).W
            true = rows.losses(rows.predicted(np.repeat(W, 2, axis=0)))[k, r]
            assert losses[k, r] == pytest.approx(true, abs=tolerance, rel=1e-6 if not classes else 0.15)
    assert (losses[0, 9:] == 0).all()


@pytest.mark.parametrize("strength", [1e-3, 0.03])
def test_a_row_of_a_rare_class_is_left_out_in_earnest(strength):
    """One Newton step would say that a device alone predicts it nearly as well as if it had seen it."""
    rng = np.random.default_rng(5)
    rows = tables(rng, counts=(30, 25), classes=2)
    rows.y[:] = 0
    rows.y[:, :2] = 1
    prior = Prior.alone(rows, strength)
    told = rows.losses(leave_one_out(rows, prior))
    for k in range(2):
        of_device = Prior(prior.centre[[k]], prior.precision[[k]])
        for r in range(2):
            W = posterior(without(rows, k, r), of_device).W
            true = rows.losses(rows.predicted(np.repeat(W, 2, axis=0)))[k, r]
            assert told[k, r] == pytest.approx(true, rel=0.01)


def test_a_strong_prior_is_the_centre_and_a_weak_one_the_device_alone():
    rng = np.random.default_rng(3)
    rows = tables(rng, counts=(30, 30))
    centre = rng.normal(size=(2, 1, 4))
    tight = posterior(rows, Prior.of(centre, np.full(4, 1e-9), 0.0)).W
    np.testing.assert_allclose(tight, centre, atol=1e-6)
    loose = posterior(rows, Prior.of(centre, np.full(4, 1e9), 0.0)).W
    alone = posterior(rows, Prior.alone(rows, 1e-12)).W
    np.testing.assert_allclose(loose, alone, atol=1e-6)
    np.testing.assert_allclose(loose[0, 0], np.linalg.lstsq(rows.Z[0], rows.y[0], rcond=None)[0], atol=1e-6)


def test_a_ridge_alone_does_not_depend_on_units():
    rng = np.random.default_rng(4)
    rows = tables(rng, counts=(10, 10))
    scale = np.array([100.0, 0.01, 5.0, 1.0])
    other = DeviceTables(rows.Z * scale, rows.y, rows.there, 0)
    first, second = (posterior(r, Prior.alone(r, 0.1)) for r in (rows, other))
    np.testing.assert_allclose(rows.predicted(first.W), other.predicted(second.W), rtol=1e-3, atol=1e-3)


def test_a_column_that_is_constant_at_home_does_nothing_in_a_ridge_alone():
    """Else it would share the intercept, and a row in which it differs would be predicted far off."""
    rng = np.random.default_rng(8)
    rows = tables(rng, counts=(10,))
    rows.Z[:, :, 1] = 1.5
    W = posterior(rows, Prior.alone(rows, 1e-3)).W
    assert abs(W[0, 0, 1]) < 1e-4
    fewer = DeviceTables(np.delete(rows.Z, 1, axis=2), rows.y, rows.there, 0)
    np.testing.assert_allclose(
        rows.predicted(W), fewer.predicted(posterior(fewer, Prior.alone(fewer, 1e-3)).W), atol=1e-4
    )


@pytest.mark.parametrize("classes", [0, 3])
def test_averages_of_models_are_judged_as_the_models_are(classes):
    """A weight of 1 is that model; of squared errors an average is never worse than the mean of what it averages."""
    rng = np.random.default_rng(9)
    rows = tables(rng, counts=(9, 15), classes=classes)
    centres, common = rng.normal(size=(2, 2, max(classes, 1), 4)), rng.normal(size=(max(classes, 1), 4))
    blends = np.vstack([np.eye(3), np.full(3, 1 / 3)])
    asked = JudgePersonalModels(
        *(np.empty(0),) * 2, np.ones(4), np.empty(0), np.ones(1), (0.5,), (2.0,), (0.1,), blends
    )
    losses = judge(rows, asked, centres, common, np.full(2, 0.3))
    assert losses.shape == (2, 8)
    np.testing.assert_allclose(losses[:, 4:7], losses[:, 1:4], rtol=1e-10)
    assert (losses[:, 7] <= losses[:, 1:4].mean(axis=1)).all()  # Log-losses are convex too.


def test_noise_is_found_between_the_devices_own_and_the_average():
    rng = np.random.default_rng(5)
    X = np.concatenate([rng.normal(size=(2, 400, 3)), np.ones((2, 400, 1))], axis=2)
    w = rng.normal(size=4)
    y = X @ w + np.array([[0.5], [2.0]]) * rng.normal(size=(2, 400))
    rows = DeviceTables(X, y, np.ones((2, 400)), 0)
    found = posterior(rows, Prior.of(np.zeros((2, 1, 4)), np.ones(4), 1.0))
    np.testing.assert_allclose(found.noise, [0.25, 4.0], rtol=0.15)


def test_a_group_without_a_device():
    """Two devices with the same columns: without one, the model of both is that of the other."""
    rng = np.random.default_rng(6)
    X = np.concatenate([rng.normal(size=(1, 300, 2)), np.ones((1, 300, 1))], axis=2)
    rows = DeviceTables(np.repeat(X, 2, axis=0), rng.normal(size=(2, 300)), np.ones((2, 300)), 0)
    own = posterior(rows, Prior.alone(rows, 1e-9)).W
    both = np.repeat(own.mean(axis=0, keepdims=True), 2, axis=0)
    np.testing.assert_allclose(without_device(rows, both, np.full(2, 0.5)), own[::-1], atol=0.01)


def test_every_row_is_judged_by_the_centre_that_suits_the_others():
    rows = DeviceTables(np.ones((1, 4, 1)), np.array([[0.0, 0.1, 0.2, 10.0]]), np.ones((1, 4)), 0)
    centres = np.array([0.0, 10.0]).reshape(1, 2, 1, 1)
    assert nearest_centres(rows, centres).tolist() == [[0, 0, 0, 0]]
    near = DeviceTables(np.ones((1, 2, 1)), np.array([[0.0, 10.0]]), np.ones((1, 2)), 0)
    assert nearest_centres(near, centres).tolist() == [[1, 0]]  # each by the other row


@pytest.mark.parametrize("model", [LinearRegression(), SoftmaxRegression()])
def test_tables_and_vectors_are_the_same_numbers(model):
    sized = model.sized(3, 3 if model.goal == "classification" else 0)
    w = np.random.default_rng(7).normal(size=(5, sized.d))
    np.testing.assert_array_equal(as_vectors(sized, as_tables(sized, w)), w)


def test_lots_have_every_device_once_whatever_their_sizes(monkeypatch):
    counts = np.array([3, 200, 5, 0, 40, 41, 7])
    stop = np.cumsum(counts)
    rows = Rows(np.ones((stop[-1], 2)), np.arange(stop[-1], dtype=float), stop - counts, stop)
    model = LinearRegression().sized(2, 0)
    monkeypatch.setattr("fedfuse.models.personal_fit.MAX_HESSIAN_NUMBERS", 2 * model.d**2)
    seen = list(in_lots(rows, np.arange(7), model))
    assert sorted(np.concatenate([place for place, _ in seen])) == list(range(7))
    for place, lot in seen:
        assert len(place) <= 2
        np.testing.assert_array_equal(lot.counts, counts[place])
        for k, i in enumerate(place):
            np.testing.assert_array_equal(lot.y[k, : counts[i]], rows.y[rows.start[i] : rows.stop[i]])
