"""Linear regression by least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedfuse.data.federation import Goal, Rows
from fedfuse.models.model import Model, batch_orders, decayed, one_each, plain
from fedfuse.models.spectrum import second_moments, spectrum
from fedfuse.protocol.local_work import Work
from fedfuse.utils.jit import Kernels
from fedfuse.utils.threads import spread
from fedfuse.utils.typing import Bools, Floats, Ints

_kernels = Kernels("fedfuse.models.loss_kernels")


@dataclass
class LinearData:
    """Rows as they came, and what is computed once for a device, when it is needed."""

    rows: Rows
    dtype: np.dtype[Any]

    def __post_init__(self) -> None:
        columns = self.rows.X.shape[1]
        self.tall: Bools = self.rows.counts > columns + 1  # moments are smaller than rows
        self._slots = np.full(len(self.rows.start), -1, np.int64)
        self._moments: Floats = np.empty((0, columns + 2, columns + 2))
        self._spectra: dict[int, tuple[Floats, Floats]] = {}

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

    def spectrum(self, device: int) -> tuple[Floats, Floats]:
        """Return eigenvalues and eigenvectors of the second moments of (x, 1)."""
        if device not in self._spectra:
            self._spectra[device] = spectrum(self.rows.of(device)[0])
        return self._spectra[device]


# Numbers in a device's rows, and parameters, up to which NumPy is fast enough: who has no more is spared the compiler.
# By device alone, so that its result depends on no other.
FEW, NARROW = 4096, 16


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

    quadratic: ClassVar[bool] = True

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
        A, rho = decayed(A, rho, work)
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

    def flat(self, coefficients: Floats) -> Floats:
        return np.asarray(np.asarray(coefficients)[0])

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
    by_moments, by_rows = np.flatnonzero(data.tall[devices]), np.flatnonzero(~data.tall[devices])
    if by_moments.size:
        _descend_moments(*data.moments(devices[by_moments]), by_moments, W, A, rho, lr, steps)

    def run(jobs: Ints) -> None:
        room = np.empty(W.shape[1])
        for k in by_rows[jobs]:
            X, y = data.rows.of(devices[k])
            _kernels.descend_rows(X, y, np.arange(len(y))[None], steps, W[k], A[k], rho, lr, max(1, len(y)), room)

    if by_rows.size:
        spread(run, job.cost[by_rows] * steps)


def _descend_moments(
    M: Floats, slots: Ints, chosen: Ints, W: Floats, A: Floats, rho: float, lr: float, steps: int
) -> None:
    """Take steps on W[chosen] with gradient 2 M[slots] (w, -1), see `_kernels.descend_moments`."""
    d = W.shape[1]
    if d <= NARROW:
        curve, away = M[slots, :d, :d], A[chosen]
        w, toward = W[chosen], M[slots, d, :d]
        for _ in range(steps):  # products of stacks: each device for itself, whoever else is there
            gradient = 2 * ((curve @ w[:, :, None])[:, :, 0] - toward)
            w -= lr * (gradient + rho * (w - away))
        W[chosen] = w
        return

    def run(jobs: Ints) -> None:
        _kernels.descend_moments(M, slots[jobs], chosen[jobs], W, A, rho, lr, steps, np.empty(d))

    spread(run, np.full(chosen.size, float(steps * d**2)))


def _descend_batches(job: _Job, A: Floats, rho: float, work: Work, rngs: Sequence[np.random.Generator]) -> None:
    epochs, lr = plain(work)

    def run(jobs: Ints) -> None:
        room = np.empty(job.W.shape[1])
        for k in jobs:
            X, y = job.data.rows.of(job.devices[k])
            for orders in batch_orders(len(y), work, rngs[k]):
                _kernels.descend_rows(X, y, orders, len(orders), job.W[k], A[k], rho, lr, work.batch, room)

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
    loss, G = np.zeros(len(job.devices)), np.zeros(job.W.shape)
    few = job.counts * job.W.shape[1] <= FEW
    for k in np.flatnonzero(few):
        X, y = rows.of(job.devices[k])
        loss[k], G[k] = _squares(X, y, job.W[k])
    if not few.all():
        _add_squares(rows, job, np.flatnonzero(~few), loss, G)
    return loss / n, G / n[:, None]


def _squares(X: Floats, y: Floats, w: Floats) -> tuple[float, Floats]:
    """Return the sum of squared residuals and its gradient."""
    r = X @ w[:-1] + w[-1] - y
    return r @ r, 2 * np.append(r @ X, r.sum())


def _add_squares(rows: Rows, job: _Job, many: Ints, loss: Floats, G: Floats) -> None:
    start, stop = rows.start[job.devices], rows.stop[job.devices]
    spread(lambda jobs: _kernels.squares(rows.X, rows.y, start, stop, many[jobs], job.W, loss, G), job.cost[many])
