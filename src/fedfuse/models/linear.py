"""Linear regression by least squares, in float64 throughout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedfuse.data.federation import Goal, Rows
from fedfuse.models.model import plain
from fedfuse.models.regression import (
    CHUNK_ROWS,
    BatchSteps,
    Job,
    Quantity,
    Regression,
    RegressionData,
    Spectrum,
    second_moments,
)
from fedfuse.protocol.local_work import Work
from fedfuse.utils.jit import Kernels
from fedfuse.utils.threads import spread
from fedfuse.utils.typing import Bools, Floats, Ints

_kernels = Kernels("fedfuse.models.loss_kernels")


@dataclass
class LinearData(RegressionData):
    """Rows, and second moments of those devices that have needed them."""

    def __post_init__(self) -> None:
        columns = self.rows.X.shape[1]
        self.tall: Bools = self.rows.counts > columns + 1  # moments are smaller than rows
        self._slots = np.full(len(self.rows.start), -1, np.int64)
        self._moments: Floats = np.empty((0, columns + 2, columns + 2))

    def moments(self, devices: Ints) -> tuple[Floats, Ints]:
        """Return second moments, and where in them those of each device are."""
        missing = np.unique(devices[self._slots[devices] < 0])
        if missing.size:
            new = np.empty((missing.size, *self._moments.shape[1:]))

            def run(jobs: Ints) -> None:
                for k in jobs:
                    new[k] = second_moments(*self.rows.of(missing[k]))

            spread(run, self.rows.counts[missing] * float(new[0].size))
            self._slots[missing] = len(self._moments) + np.arange(missing.size)
            self._moments = np.concatenate([self._moments, new])
        return self._moments, self._slots[devices]


@dataclass(frozen=True)
class LinearRegression(Regression[LinearData]):
    """Linear regression with an intercept: mean squared error, judged by its root.

    The flat vector is the weights, then the intercept. All is computed in float64; only the returned vectors
    have the precision that `load` was told.

    Examples
    --------
    >>> X = np.array([[0.0], [1.0], [2.0]])
    >>> rows = Rows(X, np.array([1.0, 3.0, 5.0]), np.array([0]), np.array([3]))
    >>> model = LinearRegression().sized(n_features=1, n_classes=0)
    >>> data, device = model.load(rows, np.float64), np.array([0])
    >>> model.train(data, device, np.zeros((1, 2)), None, 0.0, Work(solver="exact")).round(6)
    array([[2., 1.]])
    """

    quadratic: ClassVar[bool] = True
    curvature: ClassVar[float] = 2.0

    @property
    def goal(self) -> Goal:
        return "regression"

    @property
    def d(self) -> int:
        return self.n_features + 1

    def load(self, rows: Rows, dtype: npt.DTypeLike) -> LinearData:
        self._check_load(rows, dtype)
        y = np.ascontiguousarray(rows.y, np.float64)
        return LinearData(Rows(np.ascontiguousarray(rows.X), y, rows.start, rows.stop), np.dtype(dtype))

    def outputs(self, w: Floats, X: Floats) -> Floats:
        values: Floats = X @ w[:-1] + w[-1]
        return values

    def coefficients(self, w: Floats) -> Floats:
        return np.asarray(w)[None, :]

    def flat(self, coefficients: Floats) -> Floats:
        return np.asarray(np.asarray(coefficients)[0])

    def _arrays(self, data: LinearData, w: Floats) -> Floats:
        return np.array(np.reshape(w, (-1, self.d)), np.float64, order="C")

    def _vectors(self, W: Floats) -> Floats:
        return W

    def _sums(self, job: Job[LinearData], quantity: Quantity) -> Floats:
        return _squares(job)[quantity == "gradient"]

    def _score(self, job: Job[LinearData]) -> Floats:
        return np.sqrt(job.means(_squares(job)[0]))

    def _descend(self, job: Job[LinearData], A: Floats, rho: float, work: Work) -> None:
        """Take full-batch steps, by second moments where these are smaller than the rows."""
        steps, lr = plain(work)
        tall = job.data.tall[job.devices]
        by_moments, by_rows = np.flatnonzero(tall), np.flatnonzero(~tall)
        if by_moments.size:
            _descend_by_moments(job, by_moments, A, rho, lr, steps)

        def run(jobs: Ints) -> None:
            for k in by_rows[jobs]:
                X, y = job.data.rows.of(job.devices[k])
                order, g = np.arange(len(y))[None], np.empty(self.d)
                _kernels.descend_rows(X, y, order, steps, job.W[k], A[k], rho, lr, max(1, len(y)), g)

        if by_rows.size:
            spread(run, job.cost[by_rows] * steps)

    def _batch_steps(self, job: Job[LinearData], rho: float, lr: float, batch: int) -> BatchSteps:
        g = np.empty(self.d)
        return lambda X, y, orders, w, a: _kernels.descend_rows(X, y, orders, len(orders), w, a, rho, lr, batch, g)

    def _solve(self, job: Job[LinearData], A: Floats, rho: float) -> None:
        def run(jobs: Ints) -> None:
            for k in jobs:
                w, one = job.W[k], Job(job.data, job.devices[k : k + 1], job.W[k : k + 1])
                for _ in range(2):  # the second time removes the rounding of the first
                    gradient = one.means(_squares(one)[1])[0]
                    w -= _newton_step(job.data.spectrum(int(job.devices[k])), gradient, w - A[k], rho)

        spread(run, job.cost * self.d)


def _descend_by_moments(job: Job[LinearData], chosen: Ints, A: Floats, rho: float, lr: float, steps: int) -> None:
    """Take steps on W[chosen] with gradient 2 M (w, -1), M the second moments; products of stacks, device by device."""
    d = job.W.shape[1]
    M, slots = job.data.moments(job.devices[chosen])

    def run(jobs: Ints) -> None:
        own = chosen[jobs]
        curve, toward, w, a = M[slots[jobs], :d, :d], M[slots[jobs], d, :d], job.W[own], A[own]
        for _ in range(steps):
            gradient = 2 * ((curve @ w[:, :, None])[:, :, 0] - toward)
            w -= lr * (gradient + rho * (w - a))
        job.W[own] = w

    spread(run, np.full(chosen.size, float(steps * d**2)))


def _newton_step(spectrum: Spectrum, gradient: Floats, away: Floats, rho: float) -> Floats:
    """Return the step from w to the minimiser of ``f + rho/2 ||w - anchor||^2``; ``away`` is w - anchor.

    Directions that the rows say nothing about lead to the anchor, or nowhere when rho = 0.
    """
    values, vectors = spectrum
    rounding = 2 * values.max(initial=0) * gradient.size * np.finfo(np.float64).eps
    known = 2 * values + rho > rounding
    V = vectors[:, known]
    step: Floats = V @ (V.T @ (gradient + rho * away) / (2 * values[known] + rho))
    return step + away - V @ (V.T @ away) if rho > 0 else step


def _squares(job: Job[LinearData]) -> tuple[Floats, Floats]:
    """Return the sums of squared residuals and their gradients."""
    loss, G = np.zeros(len(job.devices)), np.zeros(job.W.shape)

    def run(jobs: Ints) -> None:
        for k in jobs:
            X, y = job.data.rows.of(job.devices[k])
            w = job.W[k]
            for first in range(0, len(y), CHUNK_ROWS):
                part = slice(first, first + CHUNK_ROWS)
                x = X[part].astype(np.float64, copy=False)
                r = x @ w[:-1] + w[-1] - y[part]
                loss[k] += r @ r
                G[k] += 2 * np.append(r @ x, r.sum())

    spread(run, job.cost)
    return loss, G
