"""Linear regression by least squares, in float64 throughout, and what it shares with softmax regression."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from fedfuse.data.federation import Goal, Rows
from fedfuse.errors import FedfuseError
from fedfuse.models.model import Model, Rngs, batch_orders, one_each, plain
from fedfuse.protocol.local_work import Work
from fedfuse.utils.jit import Kernels
from fedfuse.utils.threads import spread
from fedfuse.utils.typing import Bools, Floats, Ints

_kernels = Kernels("fedfuse.models.loss_kernels")
# Rows that are converted to float64 at a time, for gradients (which stay in the cache) and for second moments.
CHUNK_ROWS, MOMENT_CHUNK_ROWS = 4096, 1 << 14
Spectrum: TypeAlias = tuple[Floats, Floats]
Quantity: TypeAlias = Literal["loss", "score", "gradient"]
# One epoch of mini-batches of a device: (X, y, weights, orders, w, anchor), where w is changed.
BatchSteps: TypeAlias = Callable[[Floats, Floats, Floats, Ints, Floats, Floats], None]


@dataclass
class RegressionData:
    """Rows as they came, and the precision of parameters."""

    rows: Rows
    dtype: np.dtype[Any]


D = TypeVar("D", bound=RegressionData)


@dataclass(frozen=True)
class LocalFit(Generic[D]):
    """Devices with their parameters, one array each; training writes the new ones into W."""

    data: D
    devices: Ints
    W: Floats

    @property
    def counts(self) -> Ints:
        """Rows of each device."""
        return self.data.rows.counts[self.devices]

    @property
    def cost(self) -> Floats:
        """Multiply-adds of one gradient of each device."""
        return np.asarray(2.0 * self.counts * prod(self.W.shape[1:]))

    @property
    def totals(self) -> npt.NDArray[Any]:
        """Sums of the weights of each device's rows."""
        return np.asarray(self.data.rows.totals[self.devices])

    def means(self, sums: Floats) -> Floats:
        """Divide sums over rows by those of their weights; zeros stay zeros without rows."""
        return np.asarray(sums / np.where(self.totals > 0, self.totals, 1).reshape(-1, *[1] * (sums.ndim - 1)))


@dataclass(frozen=True)
class Regression(Model[D]):
    """A convex model with compiled loops: subclasses say how sums over rows and steps are computed."""

    def train(
        self, data: D, devices: Ints, start: Floats, anchor: Floats | None, rho: float, work: Work, rngs: Rngs = None
    ) -> Floats:
        if work.momentum:
            raise FedfuseError(f"momentum is for networks; {self._name} has none, got {work.momentum}")
        fit = self._fit(data, devices, start)
        A, rho = (fit.W.copy(), 0.0) if anchor is None else (self._arrays(data, anchor), float(rho))
        if work.decay:  # rho (w - a) + decay w = (rho + decay) (w - rho / (rho + decay) a)
            A, rho = A * (rho / (rho + work.decay)), rho + work.decay
        if work.solver == "exact":
            self._solve(fit, A, rho)
        elif work.batch is None:
            self._descend(fit, A, rho, work)
        else:
            self._descend_batches(fit, A, rho, work, one_each(rngs, devices))
        return self._vectors(fit.W).astype(data.dtype)

    def losses(self, data: D, devices: Ints, w: Floats) -> Floats:
        fit = self._fit(data, devices, w)
        return fit.means(self._sums(fit, "loss"))

    def gradients(self, data: D, devices: Ints, w: Floats) -> Floats:
        fit = self._fit(data, devices, w)
        return self._vectors(fit.means(self._sums(fit, "gradient"))).astype(data.dtype)

    def metric(self, data: D, devices: Ints, w: Floats) -> Floats:
        fit = self._fit(data, devices, w)
        score = fit.means(self._sums(fit, "score"))
        return np.where(fit.totals > 0, score if self.n_classes else np.sqrt(score), np.nan)

    def _fit(self, data: D, devices: Ints, w: Floats) -> LocalFit[D]:
        return LocalFit(data, np.asarray(devices, np.int64), self._arrays(data, w))

    def _arrays(self, data: D, w: Floats) -> Floats:
        """Return a copy of flat vectors (k x d) in the shape and precision that loops want."""
        return np.array(np.reshape(w, (-1, self.d)), np.float64, order="C")

    def _vectors(self, W: Floats) -> Floats:
        """Undo `_arrays`."""
        return W

    @abstractmethod
    def _sums(self, fit: LocalFit[D], quantity: Quantity) -> Floats:
        """Return the sums over each device's rows; the score is hits, or squares."""

    @abstractmethod
    def _solve(self, fit: LocalFit[D], A: Floats, rho: float) -> None:
        """Minimise f(W) + rho/2 ||W - A||^2."""

    @abstractmethod
    def _descend(self, fit: LocalFit[D], A: Floats, rho: float, work: Work) -> None:
        """Take full-batch steps."""

    @abstractmethod
    def _batch_steps(self, fit: LocalFit[D], rho: float, lr: float, batch: int) -> BatchSteps:
        """Return a function that takes the steps of mini-batches, with space of its own to work in."""

    def _descend_batches(
        self, fit: LocalFit[D], A: Floats, rho: float, work: Work, rngs: list[np.random.Generator]
    ) -> None:
        epochs, lr = plain(work)

        def run(jobs: Ints) -> None:
            steps = self._batch_steps(fit, rho, lr, work.batch or 1)
            for k in jobs:
                X, y, weights = fit.data.rows.weighted(fit.devices[k])
                for orders in batch_orders(len(y), work, rngs[k]):
                    steps(X, y, weights, orders, fit.W[k], A[k])

        spread(run, fit.cost * epochs)


def second_moments(X: Floats, y: Floats, weights: Floats | None = None) -> Floats:
    """Return the (weighted) mean of z z' over rows, z = (x, 1, y), in float64.

    >>> second_moments(np.array([[1.0], [3.0]]), np.array([0.0, 2.0]))
    array([[5., 2., 3.],
           [2., 1., 1.],
           [3., 1., 2.]])
    """
    total = np.zeros((X.shape[1] + 2, X.shape[1] + 2))
    for first in range(0, len(y), MOMENT_CHUNK_ROWS):
        part = slice(first, first + MOMENT_CHUNK_ROWS)
        z = np.column_stack([X[part], np.ones(len(y[part])), y[part]]).astype(np.float64, copy=False)
        total += (z if weights is None else weights[part, None] * z).T @ z
    return total / (max(len(y), 1) if weights is None else weights.sum() or 1.0)


def spectrum(X: Floats, weights: Floats | None = None) -> Spectrum:
    """Return eigenvalues and eigenvectors (columns) of the mean of (x, 1)(x, 1)'; zeros may be left out."""
    n, d = X.shape[0], X.shape[1] + 1
    if n > d or weights is not None:
        values, vectors = np.linalg.eigh(second_moments(X, np.zeros(n), weights)[:d, :d])
        return np.maximum(values, 0), vectors
    ones = np.column_stack([X, np.ones(n)]).astype(np.float64)
    _, singular, rows = np.linalg.svd(ones / np.sqrt(max(n, 1)), full_matrices=False)
    return singular**2, rows.T


@dataclass
class LinearData(RegressionData):
    """Rows, and what those devices that have needed it have learned of theirs once: second moments, and spectra."""

    spectra: dict[int, Spectrum] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = self.rows.X.shape[1]
        self.tall: Bools = self.rows.counts > columns + 1  # moments are smaller than rows
        self._slots = np.full(len(self.rows.start), -1, np.int64)
        self._moments: Floats = np.empty((0, columns + 2, columns + 2))

    def moments(self, devices: Ints) -> tuple[Floats, Ints]:
        """Return second moments of (x, 1, y), and where in them those of each device are."""
        missing = np.unique(devices[self._slots[devices] < 0])
        if missing.size:
            new = np.empty((missing.size, *self._moments.shape[1:]))

            def run(jobs: Ints) -> None:
                for k in jobs:
                    new[k] = second_moments(*self.rows.of(missing[k]), self.rows.weights_of(missing[k]))

            spread(run, self.rows.counts[missing] * float(new[0].size))
            self._slots[missing] = len(self._moments) + np.arange(missing.size)
            self._moments = np.concatenate([self._moments, new])
        return self._moments, self._slots[devices]

    def spectrum(self, device: int) -> Spectrum:
        """Return eigenvalues and eigenvectors of the second moments of (x, 1)."""
        if device not in self.spectra:
            self.spectra[device] = spectrum(self.rows.of(device)[0], self.rows.weights_of(device))
        return self.spectra[device]


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

    @property
    def goal(self) -> Goal:
        return "regression"

    @property
    def d(self) -> int:
        return self.n_features + 1

    def load(self, rows: Rows, dtype: npt.DTypeLike) -> LinearData:
        self._check_load(rows, dtype)
        y = np.ascontiguousarray(rows.y, np.float64)
        return LinearData(replace(rows, X=np.ascontiguousarray(rows.X), y=y), np.dtype(dtype))

    def outputs(self, w: Floats, X: Floats) -> Floats:
        values: Floats = X @ w[:-1] + w[-1]
        return values

    def coefficients(self, w: Floats) -> Floats:
        return np.asarray(w)[None, :]

    def flat(self, coefficients: Floats) -> Floats:
        return np.asarray(np.asarray(coefficients)[0])

    def _sums(self, fit: LocalFit[LinearData], quantity: Quantity) -> Floats:
        return _squares(fit)[quantity == "gradient"]

    def _descend(self, fit: LocalFit[LinearData], A: Floats, rho: float, work: Work) -> None:
        """Take full-batch steps, by second moments where these are smaller than the rows."""
        steps, lr = plain(work)
        tall = fit.data.tall[fit.devices]
        by_moments, by_rows = np.flatnonzero(tall), np.flatnonzero(~tall)
        if by_moments.size:
            _descend_by_moments(fit, by_moments, A, rho, lr, steps)

        def run(jobs: Ints) -> None:
            for k in by_rows[jobs]:
                X, y, weights = fit.data.rows.weighted(fit.devices[k])
                order, g = np.arange(len(y))[None], np.empty(self.d)
                _kernels.descend_rows(X, y, weights, order, steps, fit.W[k], A[k], rho, lr, max(1, len(y)), g)

        if by_rows.size:
            spread(run, fit.cost[by_rows] * steps)

    def _batch_steps(self, fit: LocalFit[LinearData], rho: float, lr: float, batch: int) -> BatchSteps:
        how = rho, lr, batch, np.empty(self.d)
        return lambda X, y, weights, orders, w, a: _kernels.descend_rows(X, y, weights, orders, len(orders), w, a, *how)

    def _solve(self, fit: LocalFit[LinearData], A: Floats, rho: float) -> None:
        def run(jobs: Ints) -> None:
            for k in jobs:
                w, one = fit.W[k], LocalFit(fit.data, fit.devices[k : k + 1], fit.W[k : k + 1])
                for _ in range(2):  # the second time removes the rounding of the first
                    gradient = one.means(_squares(one)[1])[0]
                    w -= _newton_step(fit.data.spectrum(int(fit.devices[k])), gradient, w - A[k], rho)

        spread(run, fit.cost * self.d)


def _descend_by_moments(fit: LocalFit[LinearData], chosen: Ints, A: Floats, rho: float, lr: float, steps: int) -> None:
    """Take steps on W[chosen] with gradient 2 M (w, -1), M the second moments; products of stacks, device by device."""
    d = fit.W.shape[1]
    M, slots = fit.data.moments(fit.devices[chosen])

    def run(jobs: Ints) -> None:
        own = chosen[jobs]
        curve, toward, w, a = M[slots[jobs], :d, :d], M[slots[jobs], d, :d], fit.W[own], A[own]
        for _ in range(steps):
            gradient = 2 * ((curve @ w[:, :, None])[:, :, 0] - toward)
            w -= lr * (gradient + rho * (w - a))
        fit.W[own] = w

    spread(run, np.full(chosen.size, float(steps * d**2)))


def _newton_step(spectrum: Spectrum, gradient: Floats, away: Floats, rho: float) -> Floats:
    """Return the step from w to the least ``f + rho/2 ||w - anchor||^2``; ``away`` is w - anchor.

    Directions that rows do not tell lead to the anchor, or nowhere when rho = 0.
    """
    values, vectors = spectrum
    rounding = 2 * values.max(initial=0) * gradient.size * np.finfo(np.float64).eps
    known = 2 * values + rho > rounding
    V = vectors[:, known]
    step: Floats = V @ (V.T @ (gradient + rho * away) / (2 * values[known] + rho))
    return step + away - V @ (V.T @ away) if rho > 0 else step


def _squares(fit: LocalFit[LinearData]) -> tuple[Floats, Floats]:
    """Return the sums of squared residuals and their gradients."""
    loss, G = np.zeros(len(fit.devices)), np.zeros(fit.W.shape)

    def run(jobs: Ints) -> None:
        for k in jobs:
            (X, y), weights = fit.data.rows.of(fit.devices[k]), fit.data.rows.weights_of(fit.devices[k])
            w = fit.W[k]
            for first in range(0, len(y), CHUNK_ROWS):
                part = slice(first, first + CHUNK_ROWS)
                x = X[part].astype(np.float64, copy=False)
                r = x @ w[:-1] + w[-1] - y[part]
                heavy = r if weights is None else weights[part] * r
                loss[k] += heavy @ r
                G[k] += 2 * np.append(heavy @ x, heavy.sum())

    spread(run, fit.cost)
    return loss, G
