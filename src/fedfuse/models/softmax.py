"""Softmax (multinomial logistic) regression."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.data.federation import Goal, Rows
from fedfuse.errors import FedfuseError
from fedfuse.models.linear import BatchSteps, LocalFit, Quantity, Regression, RegressionData
from fedfuse.models.model import plain
from fedfuse.models.panels import PANEL_ROWS, STRIP_ROWS, Panels, Space, batch_space, rounded_up, space
from fedfuse.protocol.local_work import Work
from fedfuse.utils import alignment
from fedfuse.utils.jit import Kernels
from fedfuse.utils.threads import own, spread
from fedfuse.utils.typing import Floats, Ints

_kernels = Kernels("fedfuse.models.loss_kernels")

# Gradient norm at which a problem counts as solved, relative to the first; float32 cannot see smaller ones.
GRADIENT_TOLERANCE: dict[Any, float] = {np.dtype(np.float64): 1e-8, np.dtype(np.float32): 1e-5}
# The same without a proximal term: the last digits cost most, and may lead to infinity.
UNREGULARISED_TOLERANCE = 1e-6
MAX_NEWTON_STEPS, MAX_HALVINGS = 50, 30
# Conjugate gradients that solve for a Newton direction.
MAX_CG_STEPS, CG_ACCURACY = 200, 0.1
# Gradients that Newton's method takes, roughly: by these, devices are shared out among threads.
NEWTON_GRADIENTS = 100
_FIRST = np.zeros(1, np.int64)


@dataclass
class SoftmaxData(RegressionData):
    """Rows as they came (mini-batches pick single rows), and as the compiled loops want them."""

    panels: Panels


@dataclass(frozen=True)
class SoftmaxRegression(Regression[SoftmaxData]):
    """Softmax regression with intercepts: mean cross-entropy, judged by accuracy.

    The flat vector is the weights (classes x features, row by row), then one intercept per class. Two classes
    also have two rows of weights.

    Examples
    --------
    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> rows = Rows(X, np.array([0, 0, 1, 1]), np.array([0]), np.array([4]))
    >>> model = SoftmaxRegression().sized(n_features=1, n_classes=2)
    >>> data, device = model.load(rows, np.float64), np.array([0])
    >>> w = model.train(data, device, np.zeros((1, 4)), None, 0.0, Work(steps=100, lr=1.0))
    >>> float(model.metric(data, device, w)[0])
    1.0
    """

    @property
    def goal(self) -> Goal:
        return "classification"

    @property
    def d(self) -> int:
        return self.n_classes * (self.n_features + 1)

    def load(self, rows: Rows, dtype: npt.DTypeLike) -> SoftmaxData:
        self._check_load(rows, dtype)
        y = np.asarray(rows.y)
        if y.size and not (np.equal(y, np.rint(y)).all() and 0 <= y.min() <= y.max() < self.n_classes):
            raise FedfuseError(f"classes must be the numbers 0 … {self.n_classes - 1}, got {y.min()} to {y.max()}")
        whole = replace(rows, X=np.ascontiguousarray(rows.X), y=np.ascontiguousarray(y, np.int64))
        return SoftmaxData(whole, np.dtype(dtype), _panels(whole, self.n_classes, np.dtype(dtype)))

    def outputs(self, w: Floats, X: Floats) -> Floats:
        from scipy.special import softmax

        table = self.coefficients(np.asarray(w, np.float64))
        probabilities: Floats = softmax(X @ table[:, :-1].T + table[:, -1], axis=1)
        return probabilities

    def coefficients(self, w: Floats) -> Floats:
        cut = self.n_classes * self.n_features
        return np.column_stack([w[:cut].reshape(self.n_classes, self.n_features), w[cut:]])

    @property
    def head(self) -> Ints:
        return self.coefficients(np.arange(self.d, dtype=np.float64)).astype(np.int64)

    def flat(self, coefficients: Floats) -> Floats:
        return np.concatenate([coefficients[:, :-1].ravel(), coefficients[:, -1]])

    def _arrays(self, data: SoftmaxData, w: Floats) -> Floats:
        """Return matrices (k, classes, features), padded with zeros."""
        C, p = self.n_classes, self.n_features
        w = np.asarray(w).reshape(-1, self.d)
        W = np.zeros((len(w), rounded_up(C, 2), data.panels.features), data.dtype)
        W[:, :C, :p] = w[:, : C * p].reshape(-1, C, p)
        W[:, :C, p] = w[:, C * p :]
        return W

    def _vectors(self, W: Floats) -> Floats:
        C, p = self.n_classes, self.n_features
        return np.concatenate([W[:, :C, :p].reshape(-1, C * p), W[:, :C, p]], axis=1)

    def _sums(self, fit: LocalFit[SoftmaxData], quantity: Quantity) -> Floats:
        k = len(fit.devices)
        sums: dict[Quantity, Any] = {
            "loss": np.zeros(k * (quantity == "loss")),
            "score": np.zeros(k * (quantity == "score")),
            "gradient": np.zeros(fit.W.shape if quantity == "gradient" else (0, 0, 0)),
        }

        def run(jobs: Ints) -> None:
            _kernels.evaluate(fit.data.panels, fit.devices, jobs, fit.W, *sums.values(), _own_space(fit.W))

        spread(run, fit.cost)
        return np.asarray(sums[quantity])

    def _descend(self, fit: LocalFit[SoftmaxData], A: Floats, rho: float, work: Work) -> None:
        steps, lr = plain(work)

        def run(jobs: Ints) -> None:
            _kernels.descend(fit.data.panels, fit.devices, jobs, fit.W, A, rho, lr, steps, _own_space(fit.W))

        spread(run, fit.cost * steps)

    def _batch_steps(self, fit: LocalFit[SoftmaxData], rho: float, lr: float, batch: int) -> BatchSteps:
        how = rho, lr, batch, _own_space(fit.W), *own(batch_space, fit.W.shape[2], fit.W.dtype)
        C = self.n_classes
        return lambda X, y, weights, orders, w, a: _kernels.descend_batches(X, y, weights, C, orders, w, a, *how)

    def _solve(self, fit: LocalFit[SoftmaxData], A: Floats, rho: float) -> None:
        def run(jobs: Ints) -> None:
            for k in jobs:
                fit.W[k] = _Newton(fit.data.panels, int(fit.devices[k]), A[k], rho).minimise(fit.W[k])

        spread(run, NEWTON_GRADIENTS * fit.cost)


def _panels(rows: Rows, classes: int, dtype: np.dtype[Any]) -> Panels:
    """Lay out the rows of every device in strips, see `loss_kernels`."""
    p, counts = rows.X.shape[1], rows.counts
    q, room = rounded_up(p + 1, 4), rounded_up(counts, STRIP_ROWS)
    start = np.cumsum(room) - room
    X, y = alignment.zeros(int(room.sum()) * q, dtype), np.zeros(room.sum(), np.int64)
    weights = np.zeros(0 if rows.weights is None else room.sum(), dtype)
    for i, (a, b) in enumerate(zip(start, start + room, strict=True)):
        rows_X, rows_y = rows.of(i)
        y[a : a + len(rows_y)] = rows_y
        if rows.weights is not None:
            weights[a : a + len(rows_y)] = rows.weights_of(i)
        strips = X[a * q : b * q].reshape(-1, q, STRIP_ROWS).transpose(0, 2, 1)  # (strip, row, feature)
        whole, rest = divmod(len(rows_y), STRIP_ROWS)
        strips[:whole, :, :p] = rows_X[: whole * STRIP_ROWS].reshape(-1, STRIP_ROWS, p)
        strips[:whole, :, p] = 1
        if rest:
            strips[whole, :rest, :p] = rows_X[whole * STRIP_ROWS :]
            strips[whole, :rest, p] = 1
    return Panels(X, y, start, counts, weights, rows.totals.astype(np.float64), q, classes)


def _own_space(W: Floats) -> Space:
    """Return this thread's space for such matrices."""
    return own(space, W.shape[-2:], W.dtype)


@dataclass(frozen=True)
class _Newton:
    """Newton's method on one device, with conjugate gradients inside: ``h(W) = f(W) + rho/2 ||W - A||^2``.

    The problem is convex, so a Newton step with backtracking always makes progress. Without a proximal term and
    with classes that planes can separate there is no minimiser: loss and gradient fall towards zero until the
    tolerance is met.
    """

    panels: Panels
    device: int
    A: Floats
    rho: float

    def minimise(self, W: Floats) -> Floats:
        """Return the minimiser, coming from W."""
        h, g = self._value_and_gradient(W)
        tolerance = max(GRADIENT_TOLERANCE[W.dtype], 0.0 if self.rho else UNREGULARISED_TOLERANCE) * max(1.0, _norm(g))
        for _ in range(MAX_NEWTON_STEPS):
            if _norm(g) <= tolerance:
                break
            moved = self._backtrack(W, h, g, self._direction(W, g))
            if moved is None:
                break
            W, h, g = moved
        return W

    def _direction(self, W: Floats, g: Floats) -> Floats:
        """Return the Newton direction, nearly."""
        room, vectors = _own_space(W), np.zeros((4, *W.shape))
        vectors[1] = -g
        n = -(-int(self.panels.counts[self.device]) // PANEL_ROWS)
        scores = alignment.zeros(n * room.S.size, W.dtype).reshape(n, room.S.size)
        how = self.rho, CG_ACCURACY, MAX_CG_STEPS
        _kernels.newton_direction(self.panels, self.device, W, *how, vectors, np.empty_like(W), scores, room)
        return vectors[0] if vectors[0].any() else -g

    def _backtrack(self, W: Floats, h: float, g: Floats, D: Floats) -> tuple[Floats, float, Floats] | None:
        """Halve the step until the value falls enough; None where rounding hides every gain."""
        slope, t = float((g * D).sum()), 1.0
        noise = 8 * np.finfo(W.dtype).eps * max(1.0, abs(h))
        for _ in range(MAX_HALVINGS):
            new = (W + t * D).astype(W.dtype)
            value, gradient = self._value_and_gradient(new)
            # close to the minimum the value is all noise, and the gradient tells progress
            if value <= h + 1e-4 * t * slope or (value <= h + noise and _norm(gradient) <= 0.5 * _norm(g)):
                return new, value, gradient
            if -t * slope < noise:  # Rounding hides what any shorter step would gain.
                return None
            t /= 2
        return None

    def _value_and_gradient(self, W: Floats) -> tuple[float, Floats]:
        loss, no_hits, G = np.zeros(1), np.zeros(0), np.zeros((1, *W.shape))
        _kernels.evaluate(self.panels, np.array([self.device]), _FIRST, W[None], loss, no_hits, G, _own_space(W))
        n, away = float(self.panels.totals[self.device]) or 1.0, W.astype(np.float64) - self.A
        return float(loss[0]) / n + self.rho / 2 * float((away * away).sum()), G[0] / n + self.rho * away


def _norm(g: Floats) -> float:
    return float(np.sqrt((g * g).sum()))
