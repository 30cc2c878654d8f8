"""Local and pooled models are what a data scientist would fit first, on the rows that training sees."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from fedfuse.models import default_model
from fedfuse.training.evaluation import BASELINE_RIDGE, Baselines, local_models, pooled_model
from support.planted import planted


def model_for(federation):
    return default_model(federation.goal).sized(federation.n_features, federation.n_classes)


def ridge(X, y):
    """Minimise mean squared error + BASELINE_RIDGE/2 ||w||^2 in closed form."""
    Z = np.column_stack([X, np.ones(len(X))])
    return np.linalg.solve(2 * Z.T @ Z / len(y) + BASELINE_RIDGE * np.eye(Z.shape[1]), 2 * Z.T @ y / len(y))


def softmax_ridge(X, y, C):
    p = X.shape[1]

    def loss(w):
        scores = X @ w[: C * p].reshape(C, p).T + w[C * p :]
        top = scores.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(scores - top).sum(axis=1)) + top[:, 0]
        return (log_sum - scores[np.arange(len(y)), y]).mean() + BASELINE_RIDGE / 2 * w @ w

    return minimize(loss, np.zeros(C * (p + 1)), method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-15}), loss


def test_least_squares_in_closed_form():
    federation = planted("regression")
    model, rows = model_for(federation), federation.rows("train+validation")
    local = local_models(federation, model)
    for i in range(federation.m):
        np.testing.assert_allclose(local[i], ridge(*rows.of(i)), atol=1e-4)
    pairs = [rows.of(i) for i in range(federation.m)]
    together = ridge(np.concatenate([X for X, _ in pairs]), np.concatenate([y for _, y in pairs]))
    np.testing.assert_allclose(pooled_model(federation, model)[0], together, atol=1e-4)


def test_softmax_is_at_its_minimum():
    federation = planted("classification", m=2, noise=2.0)
    X, y = federation.rows("train+validation").of(1)
    best, loss = softmax_ridge(X, y, 3)
    assert loss(local_models(federation, model_for(federation))[1].astype(float)) <= best.fun + 1e-6


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_they_never_see_test_rows(goal):
    federation = planted(goal)
    model, rows = model_for(federation), federation.rows("test")
    X = federation.X.copy()
    for start, stop in zip(rows.start, rows.stop, strict=True):
        X[start:stop] = 1e3
    other = replace(federation, X=X)
    np.testing.assert_array_equal(local_models(federation, model), local_models(other, model))
    np.testing.assert_array_equal(pooled_model(federation, model), pooled_model(other, model))


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_groups_lie_between(goal):
    """Planted groups with different answers: everybody alone beats one model for all."""
    federation = planted(goal, n=80)
    scores = {name: s.mean() for name, s in Baselines.of(federation, model_for(federation)).scores.items()}
    better = scores["local"] > scores["pooled"] if goal == "classification" else scores["local"] < scores["pooled"]
    assert set(scores) == {"local", "pooled"}
    assert better
