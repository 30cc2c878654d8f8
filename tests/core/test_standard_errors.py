"""Standard errors against explicit formulas and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import sqrtm
from scipy.optimize import minimize

from fedfuse.core.standard_errors import MIN_DEVICES, estimate, holm, interval


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def linear_devices(rng, m, n=12, p=2):
    X = [np.column_stack([rng.normal(size=(n + i, p)), np.ones(n + i)]) for i in range(m)]
    return [(x, x @ [1.0, -2.0, 3.0][: p + 1] + (1 + i) * rng.normal(size=len(x))) for i, x in enumerate(X)]


def test_with_many_devices_it_is_cr2(rng):
    """By residuals that are turned by (I - H)^-1/2, H the part of the hat matrix of a device."""
    devices = linear_devices(rng, m=7)
    X, y = (np.concatenate(parts) for parts in zip(*devices, strict=True))
    inverse, found, meat = np.linalg.inv(X.T @ X), estimate(devices), np.zeros((3, 3))
    np.testing.assert_allclose(found.values, inverse @ X.T @ y, atol=1e-10)
    for x, of_device in devices:
        turned = np.linalg.inv(np.real(sqrtm(np.eye(len(x)) - x @ inverse @ x.T)))
        s = x.T @ turned @ (of_device - x @ found.values)
        meat += np.outer(s, s)
    np.testing.assert_allclose(found.covariance, inverse @ meat @ inverse, atol=1e-10)
    assert found.df == 6


def test_cr2_is_unbiased_where_noise_is_equal(rng):
    X = [np.column_stack([rng.normal(size=(n, 1)), np.ones(n)]) for n in (4, 6, 8, 20, 40)]
    runs = [estimate([(x, rng.normal(size=len(x))) for x in X]).covariance for _ in range(3000)]
    all_rows = np.concatenate(X)
    np.testing.assert_allclose(np.mean(runs, axis=0), np.linalg.inv(all_rows.T @ all_rows), rtol=0.1, atol=5e-4)


def test_with_few_devices_rows_are_cut_into_blocks(rng):
    devices = linear_devices(rng, m=MIN_DEVICES - 1, n=60)
    X, y = (np.concatenate(parts) for parts in zip(*devices, strict=True))
    blocks = list(zip(np.array_split(X, 40), np.array_split(y, 40), strict=True))
    found, cut = estimate(devices), estimate(blocks)
    np.testing.assert_allclose(found.covariance, cut.covariance, atol=1e-12)
    assert found.df == cut.df == 39


def softmax_rows(rng, n, C=3):
    X = np.column_stack([rng.normal(size=(n, 2)), np.ones(n)])
    scores = X @ np.array([[0, 0, 0], [1, -1, 0.5], [-0.5, 1, 0]][:C], dtype=float).T
    return X, (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)


def log_likelihood(w, X, y, C):
    scores = np.column_stack([np.zeros(len(X)), X @ w.reshape(C - 1, -1).T])
    return (scores[np.arange(len(y)), y] - np.log(np.exp(scores).sum(axis=1))).sum()


@pytest.mark.parametrize("C", [2, 3])
def test_softmax_by_the_formula(rng, C):
    devices = [softmax_rows(rng, 60, C) for _ in range(6)]
    X, y = (np.concatenate(parts) for parts in zip(*devices, strict=True))
    found = estimate(devices, C)
    best = minimize(lambda w: -log_likelihood(w, X, y, C), np.zeros(3 * (C - 1)), tol=1e-10).x
    np.testing.assert_allclose(found.values, best, atol=1e-4)

    p = np.exp(np.column_stack([np.zeros(len(X)), X @ found.values.reshape(C - 1, 3).T]))
    p = (p / p.sum(axis=1, keepdims=True))[:, 1:]
    scores = [np.kron((y[i] == np.arange(1, C)) - p[i], X[i]) for i in range(len(y))]
    informations = [np.kron(np.diag(p[i]) - np.outer(p[i], p[i]), np.outer(X[i], X[i])) for i in range(len(y))]
    root, deltas = np.linalg.inv(sqrtm(sum(informations))), []
    for block in (slice(a, a + 60) for a in range(0, len(y), 60)):
        left = sqrtm(np.eye(len(root)) - root @ sum(informations[block]) @ root)
        deltas.append(root @ np.linalg.inv(left) @ root @ sum(scores[block]))
    np.testing.assert_allclose(found.covariance, np.transpose(deltas) @ deltas, rtol=1e-6)


def test_what_rows_cannot_tell_is_left_out(rng):
    X, y = linear_devices(rng, m=1, n=40)[0]
    twice = np.column_stack([X[:, 0], X])  # The first column is there twice: only its sum is known.
    values, errors = estimate([(twice, y)]).of(np.vstack([np.eye(4), [1, 1, 0, 0]]))
    plain = estimate([(X, y)])
    assert np.isnan(values[:2]).all()
    assert np.isnan(errors[:2]).all()
    np.testing.assert_allclose(values[[4, 2, 3]], plain.values)
    np.testing.assert_allclose(errors[[4, 2, 3]], np.sqrt(np.diag(plain.covariance)))


def test_a_coefficient_that_hangs_on_one_row_is_left_out(rng):
    X, y = linear_devices(rng, m=1, n=40)[0]
    once = np.column_stack([np.arange(40) == 3, X])
    values, errors = estimate([(once, y)]).of(np.eye(4))
    others = np.delete(X, 3, axis=0), np.delete(y, 3)
    assert np.isnan(values[0])
    np.testing.assert_allclose(values[1:], estimate([others]).values)
    assert np.isfinite(errors[1:]).all()


def test_a_coefficient_that_hangs_on_one_device_is_told_by_its_rows(rng):
    devices = [(np.column_stack([np.full(len(X), i == 3), X]), y) for i, (X, y) in enumerate(linear_devices(rng, m=8))]
    found = estimate(devices)
    assert np.isfinite(found.of(np.eye(4))[1]).all()
    assert found.df > 8


def test_separated_classes_do_not_spoil_other_coefficients(rng):
    X, y = softmax_rows(rng, 400, 2)
    level = (np.arange(400) < 30).astype(float)
    y[:30] = 1  # A level at which all rows are of one class: its log-odds are infinite.
    values, errors = estimate([(np.column_stack([level, X]), y)], 2).of(np.eye(4))
    others = estimate([(X[30:], y[30:])], 2)
    assert np.isnan(values[0])
    np.testing.assert_allclose(values[1:], others.values, atol=1e-3)
    np.testing.assert_allclose(errors[1:], np.sqrt(np.diag(others.covariance)), rtol=0.3)


def test_class_that_a_group_lacks(rng):
    X, y = softmax_rows(rng, 300, 2)
    values, _ = estimate([(X, y)], 3).of(np.eye(6))
    np.testing.assert_allclose(values[:3], estimate([(X, y)], 2).values, atol=1e-4)
    assert np.isnan(values[3:]).all()


def test_too_few_rows_tell_nothing(rng):
    X, y = linear_devices(rng, m=1, n=3)[0]
    assert np.isnan(estimate([(X, y)]).of(np.eye(3))[0]).all()


def test_holm_rejects_step_by_step(rng):
    p = rng.random(20) ** 4
    rejected, order = np.zeros(20, bool), np.argsort(p)
    for k, i in enumerate(order):  # The textbook: stop at the first that is above 0.05 / (tests left).
        if p[i] > 0.05 / (20 - k):
            break
        rejected[i] = True
    np.testing.assert_array_equal(holm(p) <= 0.05, rejected)


def test_detectable_difference_has_its_power(rng):
    size = interval(np.zeros(1), np.ones(1), np.array([1e6]))["detectable"][0]
    found = interval(size + rng.normal(size=20_000), np.ones(20_000), np.full(20_000, 1e6))
    assert np.mean(found["p"] < 0.05) == pytest.approx(0.8, abs=0.01)
