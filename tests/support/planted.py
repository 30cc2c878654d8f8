"""Small federations and tables whose groups are known, and a callback that keeps the run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.special import softmax

from fedfuse.data.federation import Federation
from fedfuse.engines import InProcess
from fedfuse.models import default_model
from fedfuse.training.loop import Callback, Run
from fedfuse.training.settings import Settings


class Keep(Callback):
    """Remembers the run, so that a test can look at its state."""

    run = None

    def on_start(self, run):
        self.run = run


def planted(goal="regression", m=6, n=40, p=3, groups=2, noise=0.1, seed=0, **splits):
    """Devices of unequal size; device i belongs to group ``i * groups // m``."""
    rng = np.random.default_rng(seed)
    classes = 3 if goal == "classification" else 1
    W = 3 * rng.normal(size=(groups, p, classes))
    truth = np.arange(m) * groups // m
    data = {}
    for i, g in enumerate(truth):
        X = rng.normal(size=(n + 7 * (i % 3), p))
        scores = X @ W[g] + 0.5 + noise * rng.normal(size=(len(X), classes))
        data[f"d{i}"] = (X, scores.argmax(axis=1) if classes > 1 else scores[:, 0])
    return Federation.from_arrays(data, goal=goal, truth=truth, seed=seed, **splits)


def many_sites(m, groups, noise_ratios=(1.0,), rows=30, p=5, seed=0):
    """Sites of a linear regression with far-apart models; site i belongs to group ``i % groups``."""
    rng = np.random.default_rng(seed)
    models, truth = 2 * rng.normal(size=(groups, p + 1)), np.arange(m) % groups
    data = []
    for g, noise in zip(truth, rng.choice(noise_ratios, m), strict=True):
        X = rng.normal(size=(rows, p))
        data.append((X, X @ models[g, :-1] + models[g, -1] + noise * rng.normal(size=rows)))
    return Federation.from_arrays(data, goal="regression", truth=truth, seed=seed)


def more_columns_than_rows(seed, m=12, rows=40, columns=500, factors=8):
    """Sites of a linear regression on a few factors of many columns; site i belongs to group ``i % 2``."""
    rng = np.random.default_rng(seed)
    loadings, models = rng.normal(size=(factors, columns)), rng.normal(size=(2, factors))
    data, truth = [], np.arange(m) % 2
    for g in truth:
        Z = rng.normal(size=(rows, factors))
        X = Z @ loadings + 0.3 * rng.normal(size=(rows, columns))
        data.append((X, Z @ models[g] + 0.5 * rng.normal(size=rows)))
    return Federation.from_arrays(data, goal="regression", truth=truth, seed=seed)


def written_out(*devices, goal="regression"):
    """A federation of rows that a test writes out: for every device the (X, y) of train, and of test or the same."""
    X, y, cuts = [], [], []
    for train, test in ((d[0], d[-1]) for d in devices):
        n = sum(len(rows) for rows in y)
        cuts.append([n, n + len(train[1]), n + len(train[1]), n + len(train[1]) + len(test[1])])
        for part in (train, test):
            X.append(np.array(part[0], float).reshape(len(part[1]), -1))
            y.append(np.array(part[1], float if goal == "regression" else np.int64))
    names = tuple(f"d{i}" for i in range(len(devices)))
    classes = () if goal == "regression" else tuple(range(int(max(v.max() for v in y)) + 1))
    return Federation(names, np.vstack(X), np.concatenate(y), np.array(cuts), goal, classes)


def line(slope, intercept=0.0):
    """Rows at x = 1 and x = -1 alone: f(w, b) = (w - slope)^2 + (b - intercept)^2."""
    return (([1.0, -1.0], [slope + intercept, intercept - slope]),)


def begun(federation, method, model=None, **settings):
    """A run before its first round, in double precision."""
    model = (model or default_model(federation.goal)).sized(federation.n_features, federation.n_classes)
    chosen = Settings(**{"dtype": "float64", "tol": 0, **settings})
    run = Run(federation, model, method, chosen, InProcess(federation, model, seed=chosen.seed, dtype=chosen.dtype))
    run.begin()
    return run


def gradient(federation, device, w, rows="train+validation"):
    """The gradient of a device's mean loss on all but its test rows, by the formula."""
    X, y = federation.rows(rows).of(device)
    Z = np.column_stack([X, np.ones(len(X))])
    if federation.goal == "regression":
        return 2 * Z.T @ (Z @ w - y) / len(y)
    C, p = federation.n_classes, X.shape[1]
    W = np.column_stack([w[: C * p].reshape(C, p), w[C * p :]])
    G = (softmax(Z @ W.T, axis=1) - np.eye(C)[y]).T @ Z / len(y)
    return np.concatenate([G[:, :p].ravel(), G[:, p]])


def descended(federation, device, w, work, anchor=None, rho=0.0):
    """The device's gradient steps from w, written out."""
    w = np.array(w, float)
    for _ in range(int(work.steps)):
        w = w - work.lr * (gradient(federation, device, w) + (0 if anchor is None else rho * (w - anchor)))
    return w


def permuted(federation, order):
    """The same devices in another order, with the same rows in the same parts."""
    pieces = [np.arange(federation.cuts[i, 0], federation.cuts[i, 3]) for i in order]
    rows, starts = np.concatenate(pieces), np.cumsum([0, *(len(p) for p in pieces)])[:-1]
    cuts = federation.cuts[order] - federation.cuts[order, :1] + starts[:, None]
    return replace(
        federation,
        names=tuple(federation.names[i] for i in order),
        X=federation.X[rows],
        y=federation.y[rows],
        cuts=cuts,
        truth=None if federation.truth is None else federation.truth[order],
    )


def visits(n=2500, seed=0):
    """Ten sites in two groups: age counts the other way in the second; ward counts the same everywhere."""
    rng = np.random.default_rng(seed)
    site = rng.integers(0, 10, n)
    frame = pd.DataFrame(
        {
            "site": site,
            "age": rng.normal(50, 12, n).round(1),
            "dose": np.where(rng.random(n) < 0.1, np.nan, rng.gamma(2, 3, n)),
            "ward": rng.choice(["north", "south", "east"], n),
        }
    )
    score = np.where(site < 6, 1, -1) * (frame["age"] - 50) / 6 + (frame["ward"] == "north")
    frame["stay"] = 20 + score + 0.1 * rng.normal(size=n)
    frame["outcome"] = np.where(score + rng.logistic(size=n) > 0.3, "well", "ill")
    return frame
