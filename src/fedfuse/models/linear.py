"""Linear regression by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.data.federation import Goal, Rows
from fedfuse.models._kernels import descend_moments, descend_rows, squares
from fedfuse.models._spectrum import second_moments, spectrum
from fedfuse.models._threads import spread
from fedfuse.models.base import Model, one_each, plain, shuffled
from fedfuse.tasks import Work
from fedfuse.types import Bools, Floats, Ints


@dataclass(frozen=True)
class LinearData:
    """Rows as they came, and what is worth computing only once for each device."""

    rows: Rows
    dtype: np.dtype[Any]
    _spectra: dict[int, tuple[Floats, Floats]] = field(default_factory=dict)

    @property
    def tall(self) -> Bools:
        """Which devices have more rows than parameters, so that moments are smaller than rows."""
        tall: Bools = self.rows.counts > self.rows.X.shape[1] + 1
        return tall

    def moments(self, devices: Ints) -> Floats:
        """Return the second moments of all devices; those of these devices are filled in."""
        stored, ready = self._moments
        missing = np.unique(devices[~ready[devices]])

        def run(jobs: Ints) -> None:
            for i in missing[jobs]:
                stored[i] = second_moments(*self.rows.of(i))
                ready[i] = True

        spread(run, self.rows.counts[missing] * float(stored[0].size))
        return stored

    def spectrum(self, device: int) -> tuple[Floats, Floats]:
        if device not in self._spectra:
            self._spectra[device] = spectrum(self.rows.of(device)[0])
        return self._spectra[device]

    @cached_property
    def _moments(self) -> tuple[Floats, Bools]:
        # memory is taken only where something is written
        m, q = len(self.rows.start), -(-(self.rows.X.shape[1] + 2) // 4) * 4
        return np.empty((m, q, q)), np.zeros(m, np.bool_)


@dataclass(frozen=True)
class LinearRegression(Model[LinearData]):
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

    @property
    def goal(self) -> Goal:
        return "regression"

    @property
    def d(self) -> int:
        return self.n_features + 1

    def load(self, rows: Rows, dtype: npt.DTypeLike) -> LinearData:
        self._check_rows(rows)
        y = np.ascontiguousarray(rows.y, np.float64)
        return LinearData(Rows(np.ascontiguousarray(rows.X), y, rows.start, rows.stop), np.dtype(dtype))

    def train(
        self,
        data: LinearData,
        devices: Ints,
        start: Floats,
        anchor: Floats | None,
        rho: float,
        work: Work,
        rngs: list[np.random.Generator] | None = None,
    ) -> Floats:
        job = self._job(data, devices, start)
        A, rho = (job.W.copy(), 0.0) if anchor is None else (self._job(data, devices, anchor).W, float(rho))
        if work.solver == "exact":
            _solve(job, A, rho)
        elif work.batch is None:
            _descend(job, A, rho, work)
        else:
            _descend_batches(job, A, rho, work, one_each(rngs, devices))
        return job.W.astype(data.dtype)

    def losses(self, data: LinearData, devices: Ints, w: Floats) -> Floats:
        return _evaluate(self._job(data, devices, w))[0]

    def gradients(self, data: LinearData, devices: Ints, w: Floats) -> Floats:
        return _evaluate(self._job(data, devices, w))[1].astype(data.dtype)

    def metric(self, data: LinearData, devices: Ints, w: Floats) -> Floats:
        job = self._job(data, devices, w)
        return np.where(job.counts > 0, np.sqrt(_evaluate(job)[0]), np.nan)

    def smoothness(self, data: LinearData, devices: Ints) -> Floats:
        return np.array([2 * data.spectrum(int(i))[0].max(initial=0) for i in devices])

    def outputs(self, w: Floats, X: Floats) -> Floats:
        values: Floats = X @ w[:-1] + w[-1]
        return values

    def coefficients(self, w: Floats) -> Floats:
        return np.asarray(w)[None, :]

    def _job(self, data: LinearData, devices: Ints, w: Floats) -> _Job:
        W = np.array(np.reshape(w, (-1, self.d)), np.float64, order="C")
        return _Job(data, np.asarray(devices, np.int64), W)


@dataclass(frozen=True)
class _Job:
    """Devices with their parameters; training writes the new ones into W."""

    data: LinearData
    devices: Ints
    W: Floats

    @property
    def counts(self) -> Ints:
        return self.data.rows.counts[self.devices]

    @property
    def cost(self) -> Floats:
        """Multiply-adds of one gradient of each device, from its rows."""
        cost: Floats = 2.0 * self.counts * self.W.shape[1]
        return cost


def _descend(job: _Job, A: Floats, rho: float, work: Work) -> None:
    """Take full-batch steps, through second moments where these are smaller than the rows."""
    steps, lr = plain(work)
    data, devices, W = job.data, job.devices, job.W
    tall = data.tall[devices]
    by_moments, by_rows = np.flatnonzero(tall), np.flatnonzero(~tall)
    M = data.moments(devices[by_moments])
    spread(
        lambda jobs: descend_moments(M, devices, by_moments[jobs], W, A, rho, lr, steps),
        np.full(by_moments.size, float(steps * W.shape[1] ** 2)),
    )

    def run(jobs: Ints) -> None:
        for k in by_rows[jobs]:
            X, y = data.rows.of(devices[k])
            descend_rows(X, y, np.arange(len(y))[None], steps, W[k], A[k], rho, lr, max(1, len(y)))

    spread(run, job.cost[by_rows] * steps)


def _descend_batches(
    job: _Job, A: Floats, rho: float, work: Work, rngs: Sequence[np.random.Generator]
) -> None:
    epochs, lr = plain(work)

    def run(jobs: Ints) -> None:
        for k in jobs:
            X, y = job.data.rows.of(job.devices[k])
            orders = shuffled(len(y), epochs, rngs[k])
            descend_rows(X, y, orders, epochs, job.W[k], A[k], rho, lr, work.batch)

    spread(run, job.cost * epochs)


def _solve(job: _Job, A: Floats, rho: float) -> None:
    def run(jobs: Ints) -> None:
        for k in jobs:
            w, one = job.W[k], _Job(job.data, job.devices[k : k + 1], job.W[k : k + 1])
            for _ in range(2):  # the second time removes the rounding of the first
                w -= _newton_step(job.data.spectrum(int(job.devices[k])), _evaluate(one)[1][0], w - A[k], rho)

    spread(run, job.cost * job.W.shape[1])


def _newton_step(spectrum: tuple[Floats, Floats], gradient: Floats, away: Floats, rho: float) -> Floats:
    """Return the step from w to the minimiser of ``f + rho/2 ||w - anchor||^2``; ``away`` is w - anchor.

    Directions of which the rows say nothing lead to the anchor, or nowhere when rho = 0.
    """
    values, vectors = spectrum
    rounding = 2 * values.max(initial=0) * gradient.size * np.finfo(np.float64).eps
    known = 2 * values + rho > rounding
    V = vectors[:, known]
    step: Floats = V @ (V.T @ (gradient + rho * away) / (2 * values[known] + rho))
    return step + away - V @ (V.T @ away) if rho > 0 else step


def _evaluate(job: _Job) -> tuple[Floats, Floats]:
    """Return mean squared errors and their gradients."""
    rows, n = job.data.rows, np.maximum(job.counts, 1)
    start, stop = rows.start[job.devices], rows.stop[job.devices]
    loss, G = np.zeros(len(job.devices)), np.zeros(job.W.shape)
    spread(lambda jobs: squares(rows.X, rows.y, start, stop, jobs, job.W, loss, G), job.cost)
    return loss / n, G / n[:, None]
