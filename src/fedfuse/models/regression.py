"""Shared by linear and softmax regression: local training in place, means over rows, second moments of columns."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

import numpy as np

from fedfuse.data.federation import Rows
from fedfuse.errors import FedfuseError
from fedfuse.models.model import Model, batch_orders, one_each, plain
from fedfuse.protocol.local_work import Work
from fedfuse.utils.threads import spread
from fedfuse.utils.typing import Floats, Ints

# Rows that are converted to float64 at a time, for gradients (which stay in the cache) and for second moments.
CHUNK_ROWS, MOMENT_CHUNK_ROWS = 4096, 1 << 14
Spectrum: TypeAlias = tuple[Floats, Floats]
Quantity: TypeAlias = Literal["loss", "hits", "gradient"]
# One epoch of mini-batches of a device: (X, y, orders, w, anchor), where w is changed.
BatchSteps: TypeAlias = Callable[[Floats, Floats, Ints, Floats, Floats], None]


@dataclass
class RegressionData:
    """Rows as they came, the precision of parameters, and the spectrum of each device, computed once."""

    rows: Rows
    dtype: np.dtype[Any]

    @cached_property
    def _spectra(self) -> dict[int, Spectrum]:
        return {}

    def spectrum(self, device: int) -> Spectrum:
        """Return eigenvalues and eigenvectors of the second moments of (x, 1)."""
        if device not in self._spectra:
            self._spectra[device] = spectrum(self.rows.of(device)[0])
        return self._spectra[device]


D = TypeVar("D", bound=RegressionData)


@dataclass(frozen=True)
class Job(Generic[D]):
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

    def means(self, sums: Floats) -> Floats:
        """Divide sums over rows by their number; zeros stay zeros without rows."""
        return sums / np.maximum(self.counts, 1).reshape(-1, *[1] * (sums.ndim - 1))


@dataclass(frozen=True)
class Regression(Model[D]):
    """A convex model with compiled loops: subclasses say how sums over rows and steps are computed."""

    curvature: ClassVar[float]  # largest second derivative of the loss by a score

    def train(
        self,
        data: D,
        devices: Ints,
        start: Floats,
        anchor: Floats | None,
        rho: float,
        work: Work,
        rngs: list[np.random.Generator] | None = None,
    ) -> Floats:
        job = self._job(data, devices, start)
        A, rho = (job.W.copy(), 0.0) if anchor is None else (self._arrays(data, anchor), float(rho))
        A, rho = _with_decay(A, rho, work)
        if work.solver == "exact":
            self._solve(job, A, rho)
        elif work.batch is None:
            self._descend(job, A, rho, work)
        else:
            self._descend_batches(job, A, rho, work, one_each(rngs, devices))
        return self._vectors(job.W).astype(data.dtype)

    def losses(self, data: D, devices: Ints, w: Floats) -> Floats:
        job = self._job(data, devices, w)
        return job.means(self._sums(job, "loss"))

    def gradients(self, data: D, devices: Ints, w: Floats) -> Floats:
        job = self._job(data, devices, w)
        return self._vectors(job.means(self._sums(job, "gradient"))).astype(data.dtype)

    def metric(self, data: D, devices: Ints, w: Floats) -> Floats:
        job = self._job(data, devices, w)
        return np.where(job.counts > 0, self._score(job), np.nan)

    def smoothness(self, data: D, devices: Ints) -> Floats:
        return np.array([self.curvature * data.spectrum(int(i))[0].max(initial=0) for i in devices])

    def _job(self, data: D, devices: Ints, w: Floats) -> Job[D]:
        return Job(data, np.asarray(devices, np.int64), self._arrays(data, w))

    @abstractmethod
    def _arrays(self, data: D, w: Floats) -> Floats:
        """Return a copy of flat vectors (k x d) in the shape and precision that loops want."""

    @abstractmethod
    def _vectors(self, W: Floats) -> Floats:
        """Undo `_arrays`."""

    @abstractmethod
    def _sums(self, job: Job[D], quantity: Quantity) -> Floats:
        """Return the sums over each device's rows."""

    @abstractmethod
    def _score(self, job: Job[D]) -> Floats:
        """Return each device's accuracy or RMSE."""

    @abstractmethod
    def _solve(self, job: Job[D], A: Floats, rho: float) -> None:
        """Minimise f(W) + rho/2 ||W - A||^2."""

    @abstractmethod
    def _descend(self, job: Job[D], A: Floats, rho: float, work: Work) -> None:
        """Take full-batch steps."""

    @abstractmethod
    def _batch_steps(self, job: Job[D], rho: float, lr: float, batch: int) -> BatchSteps:
        """Return a function that takes the steps of mini-batches, with space of its own to work in."""

    def _descend_batches(self, job: Job[D], A: Floats, rho: float, work: Work, rngs: list[np.random.Generator]) -> None:
        epochs, lr = plain(work)

        def run(jobs: Ints) -> None:
            steps = self._batch_steps(job, rho, lr, work.batch or 1)
            for k in jobs:
                X, y = job.data.rows.of(job.devices[k])
                for orders in batch_orders(len(y), work, rngs[k]):
                    steps(X, y, orders, job.W[k], A[k])

        spread(run, job.cost * epochs)


def _with_decay(anchor: Floats, rho: float, work: Work) -> tuple[Floats, float]:
    """Return anchor and weight of the proximal term with weight decay in it.

    ``rho (w - a) + decay w = (rho + decay) (w - rho / (rho + decay) a)``
    """
    if work.momentum:
        raise FedfuseError(f"momentum is for networks; linear and softmax regression have none, got {work.momentum}")
    if not work.decay:
        return anchor, rho
    return anchor * (rho / (rho + work.decay)), rho + work.decay


def second_moments(X: Floats, y: Floats) -> Floats:
    """Return the mean of z z' over rows, z = (x, 1, y), in float64.

    >>> second_moments(np.array([[1.0], [3.0]]), np.array([0.0, 2.0]))
    array([[5., 2., 3.],
           [2., 1., 1.],
           [3., 1., 2.]])
    """
    total = np.zeros((X.shape[1] + 2, X.shape[1] + 2))
    for first in range(0, len(y), MOMENT_CHUNK_ROWS):
        part = slice(first, first + MOMENT_CHUNK_ROWS)
        z = np.column_stack([X[part], np.ones(len(y[part])), y[part]]).astype(np.float64, copy=False)
        total += z.T @ z
    return total / max(len(y), 1)


def spectrum(X: Floats) -> Spectrum:
    """Return eigenvalues and eigenvectors (columns) of the mean of (x, 1)(x, 1)'; zeros may be left out."""
    n, d = X.shape[0], X.shape[1] + 1
    if n > d:
        values, vectors = np.linalg.eigh(second_moments(X, np.zeros(n))[:d, :d])
        return np.maximum(values, 0), vectors
    ones = np.column_stack([X, np.ones(n)]).astype(np.float64)
    _, singular, rows = np.linalg.svd(ones / np.sqrt(max(n, 1)), full_matrices=False)
    return singular**2, rows.T
