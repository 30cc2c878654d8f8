"""The models' mathematics once more, slowly: one device, one formula after the other, in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.special import log_softmax, softmax

from fedfuse.data.federation import Rows
from fedfuse.utils.typing import Floats, Ints

Loss = Callable[[Floats, Floats, Ints], float]
Gradient = Callable[[Floats, Floats, Ints], Floats]


def ragged(counts: Sequence[int], p: int, C: int, seed: int = 0, gaps: int = 0) -> Rows:
    """Return random rows for devices with these counts; C = 0 gives values instead of classes."""
    rng = np.random.default_rng(seed)
    n = np.array(counts, dtype=np.int64)
    start = np.cumsum(n + gaps) - n
    total = int((n + gaps).sum())
    X = rng.normal(size=(total, p))
    signal = X @ rng.normal(size=(p, max(C, 1))) + rng.normal(size=(total, max(C, 1)))
    return Rows(X, signal.argmax(axis=1) if C else signal[:, 0] + 0.5, start, start + n)


def softmax_loss(C: int) -> Loss:
    def loss(w: Floats, X: Floats, y: Ints) -> float:
        p = X.shape[1]
        S = X @ w[: C * p].reshape(C, p).T + w[C * p :]
        return float(-log_softmax(S, axis=1)[np.arange(len(y)), y].mean()) if len(y) else 0.0

    return loss


def softmax_gradient(C: int) -> Gradient:
    def gradient(w: Floats, X: Floats, y: Ints) -> Floats:
        n, p = X.shape
        P = softmax(X @ w[: C * p].reshape(C, p).T + w[C * p :], axis=1)
        P[np.arange(n), y] -= 1
        return np.concatenate([(P.T @ X).ravel(), P.sum(axis=0)]) / max(n, 1)

    return gradient


def linear_gradient(w: Floats, X: Floats, y: Floats) -> Floats:
    r = X @ w[:-1] + w[-1] - y
    return 2 * np.append(X.T @ r, r.sum()) / max(len(y), 1)


def gradient_descent(
    gradient: Gradient, X: Floats, y: Ints, w: Floats, anchor: Floats, rho: float, lr: float, steps: int
) -> Floats:
    w = w.copy()
    for _ in range(steps):
        w = w - lr * (gradient(w, X, y) + rho * (w - anchor))
    return w


def batch_descent(
    gradient: Gradient,
    X: Floats,
    y: Ints,
    w: Floats,
    anchor: Floats,
    rho: float,
    lr: float,
    epochs: int,
    batch: int,
    rng: np.random.Generator,
) -> Floats:
    for _ in range(epochs):
        order = rng.permutation(len(y))
        for first in range(0, len(y), batch):
            chosen = order[first : first + batch]
            w = w - lr * (gradient(w, X[chosen], y[chosen]) + rho * (w - anchor))
    return w
