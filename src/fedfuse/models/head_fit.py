"""Personal last layers: a device's own rows draw the last layer of its group's model away from it, judged by folds.

What enters the last layer is fixed, so a device minimises, over its n rows and weights W of the last layer,

    sum of log-losses + |W - group's|^2 v / (2 variance)        v: mean variance of what enters the layer

and judges variances by rows that are held out in turn, in a few folds with the same mix of classes. W moves within the
span of the rows alone, so a layer may be as wide as it likes. `personal_fit` leaves out single rows, and learns more
from all devices, where models are small enough for their Hessian matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfuse.data.federation import Rows
from fedfuse.models.model import Model
from fedfuse.protocol.tasks import JudgeDrawnModels, PeekDrawnModels
from fedfuse.utils.typing import Bools, Floats, Ints

N_FOLDS = 4
MAX_ITERATIONS = 60
# Singular values of rows below this share of the largest count as zero.
RANK_TOLERANCE = 1e-7
# Least variance of a column.
MIN_VARIANCE = 1e-6
# Largest share of a device in its group's rows for the group to be judged without it.
MAX_SHARE = 0.9


@dataclass(frozen=True)
class HeadRows:
    """What enters the last layer (n x columns), classes, and weights of rows."""

    Z: Floats
    y: Ints
    weights: Floats

    def of(self, use: Bools) -> HeadRows:
        """Return some of the rows."""
        return HeadRows(self.Z[use], self.y[use], self.weights[use])

    def losses(self, W: Floats) -> Floats:
        """Return the log-loss of every row with these weights (classes x (columns + 1), the intercept last)."""
        U = self.Z @ W[:, :-1].T + W[:, -1]
        U -= U.max(axis=1, keepdims=True)
        return np.asarray(np.log(np.exp(U).sum(axis=1)) - U[np.arange(len(U)), self.y])

    def mean_loss(self, losses: Floats) -> float:
        """Return the mean of these losses, by the weights of rows."""
        return float(losses @ self.weights / max(self.weights.sum(), 1e-300))

    @property
    def variance(self) -> float:
        """The mean variance of columns."""
        total = max(self.weights.sum(), 1e-300)
        mean = self.weights @ self.Z / total
        return max(float((self.weights @ np.square(self.Z - mean)).mean() / total), MIN_VARIANCE)

    def folds(self) -> Ints:
        """Return the fold of every row, with all classes spread over the folds."""
        fold = np.empty(len(self.y), np.int64)
        fold[np.argsort(self.y, kind="stable")] = np.arange(len(self.y)) % N_FOLDS
        return fold


class Span:
    """Rows in coordinates of their own span, in which last layers are fitted."""

    def __init__(self, rows: HeadRows) -> None:
        self.rows = rows
        _, s, self._V = np.linalg.svd(rows.Z, full_matrices=False)
        self._V = self._V[s > RANK_TOLERANCE * s.max(initial=0)]
        self._Z = np.column_stack([rows.Z @ self._V.T, np.ones(len(rows.Z))])

    def drawn(self, centre: Floats, penalty: float) -> Floats:
        """Return the weights that are nearest to a centre, at this penalty, and fit the rows."""
        from scipy.optimize import minimize  # a process for one message is spared it

        rows, C = self.rows, len(centre)
        base, right = rows.Z @ centre[:, :-1].T + centre[:, -1], np.eye(C)[rows.y]

        def objective(flat: Floats) -> tuple[float, Floats]:
            B = flat.reshape(C, -1)
            U = base + self._Z @ B.T
            U -= U.max(axis=1, keepdims=True)
            P = np.exp(U)
            total = P.sum(axis=1, keepdims=True)
            loss = rows.weights @ (np.log(total[:, 0]) - U[np.arange(len(U)), rows.y])
            slope = ((P / total - right) * rows.weights[:, None]).T @ self._Z + penalty * B
            return float(loss + penalty * np.square(B).sum() / 2), slope.ravel()

        start = np.zeros(C * self._Z.shape[1])
        found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": MAX_ITERATIONS})
        B = found.x.reshape(C, -1)
        return np.asarray(centre + np.column_stack([B[:, :-1] @ self._V, B[:, -1]]))


def without_device(rows: HeadRows, W: Floats, share: float) -> Floats:
    """Return a group's last layer without a device that has this share of its rows: a Newton step per class."""
    share, total = min(share, MAX_SHARE), max(rows.weights.sum(), 1e-300)
    Z = np.column_stack([rows.Z, np.ones(len(rows.Z))])
    U = Z @ W.T
    P = np.exp(U - U.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    few = Z.shape[1] * rows.variance
    new: Floats = W.copy()
    for c in range(len(W)):
        slope = ((P[:, c] - (rows.y == c)) * rows.weights) @ Z / total
        H = (Z * (P[:, c] * (1 - P[:, c]) * rows.weights)[:, None]).T @ Z + few * np.eye(Z.shape[1])
        new[c] += share / (1 - share) * np.linalg.solve(H / (total + Z.shape[1]), slope)
    return new


def judge(rows: HeadRows, W: Floats, asked: JudgeDrawnModels) -> Floats:
    """Return mean losses: of the group's last layer without the device, and of layers drawn to it."""
    centre = without_device(rows, W, float(asked.share[0]))
    losses, fold = np.zeros((1 + len(asked.to_group), len(rows.y))), rows.folds()
    losses[0] = rows.losses(centre)
    for k in range(N_FOLDS):
        known, held = rows.of(fold != k), rows.of(fold == k)
        if not len(held.y):
            continue
        if not len(known.y):
            losses[:, fold == k] = losses[0, fold == k]
            continue
        span, unit = Span(known), known.variance
        found = [span.drawn(centre, unit / variance) for variance in asked.to_group]
        losses[1:, fold == k] = [held.losses(each) for each in found]
    return np.array([rows.mean_loss(each) for each in losses])


def head_answers(model: Model[Any], rows: Rows, device: int, asked: JudgeDrawnModels | PeekDrawnModels) -> Floats:
    """Return what a device answers to tasks about a last layer of its own."""
    w: Floats = np.asarray(asked.model, np.float64)
    place = model.head
    assert place is not None
    X, y, weights = rows.weighted(device)
    own = np.asarray(weights, np.float64)
    own_rows = HeadRows(np.asarray(model.features(w, X), np.float64), np.asarray(y, np.int64), own)
    if isinstance(asked, JudgeDrawnModels):
        if not own.any():
            return np.zeros(asked.floats_up(model.d))
        return judge(own_rows, w[place], asked)
    if not own.any():
        return w
    answer: Floats = w.copy()
    answer[place] = Span(own_rows).drawn(w[place], own_rows.variance / asked.variance)
    return answer
