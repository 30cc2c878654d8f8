"""Softmax (multinomial logistic) regression."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from fedfuse.data.federation import Goal, Rows
from fedfuse.errors import FedfuseError
from fedfuse.models.model import Model, batch_orders, decayed, one_each, plain
from fedfuse.models.panels import STRIP, Panels, batch_space, space
from fedfuse.models.spectrum import spectrum
from fedfuse.protocol.local_work import Work
from fedfuse.utils import alignment
from fedfuse.utils.jit import Kernels
from fedfuse.utils.threads import own, spread
from fedfuse.utils.typing import Floats, Ints

_kernels = Kernels("fedfuse.models.loss_kernels")


@dataclass(frozen=True)
class SoftmaxData:
    """Rows as the compiled loops want them, and as they came (mini-batches pick single rows)."""

    panels: Panels
    rows: Rows


@dataclass(frozen=True)
class SoftmaxRegression(Model[SoftmaxData]):
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
        whole = Rows(np.ascontiguousarray(rows.X), np.ascontiguousarray(y, np.int64), rows.start, rows.stop)
        return SoftmaxData(_panels(whole, self.n_classes, np.dtype(dtype)), whole)

    def train(
        self,
        data: SoftmaxData,
        devices: Ints,
        start: Floats,
        anchor: Floats | None,
        rho: float,
        work: Work,
        rngs: list[np.random.Generator] | None = None,
    ) -> Floats:
        job = self._job(data, devices, start)
        A, rho = (job.W.copy(), 0.0) if anchor is None else (self._matrices(data, anchor), float(rho))
        A, rho = decayed(A, rho, work)
        if work.solver == "exact":
            _solve(job, A, rho)
        elif work.batch is None:
            _descend(job, A, rho, work)
        else:
            _descend_batches(job, A, rho, work, one_each(rngs, devices))
        return self._vectors(job.W)

    def losses(self, data: SoftmaxData, devices: Ints, w: Floats) -> Floats:
        job = self._job(data, devices, w)
        return _evaluate(job, loss=True)[0] / np.maximum(job.counts, 1)

    def gradients(self, data: SoftmaxData, devices: Ints, w: Floats) -> Floats:
        job = self._job(data, devices, w)
        sums = _evaluate(job, gradient=True)[2]
        means = sums / np.maximum(job.counts, 1)[:, None, None]
        return self._vectors(means).astype(job.W.dtype)

    def metric(self, data: SoftmaxData, devices: Ints, w: Floats) -> Floats:
        job = self._job(data, devices, w)
        hits = _evaluate(job, hits=True)[1]
        return np.where(job.counts > 0, hits / np.maximum(job.counts, 1), np.nan)

    def smoothness(self, data: SoftmaxData, devices: Ints) -> Floats:
        # the softmax's own Hessian is at most 1/2, so f's is at most half that of least squares
        return np.array([spectrum(data.rows.of(i)[0])[0].max(initial=0) / 2 for i in devices])

    def outputs(self, w: Floats, X: Floats) -> Floats:
        from scipy.special import softmax

        table = self.coefficients(np.asarray(w, np.float64))
        probabilities: Floats = softmax(X @ table[:, :-1].T + table[:, -1], axis=1)
        return probabilities

    def coefficients(self, w: Floats) -> Floats:
        cut = self.n_classes * self.n_features
        return np.column_stack([w[:cut].reshape(self.n_classes, self.n_features), w[cut:]])

    def flat(self, coefficients: Floats) -> Floats:
        return np.concatenate([coefficients[:, :-1].ravel(), coefficients[:, -1]])

    def _job(self, data: SoftmaxData, devices: Ints, w: Floats) -> _Job:
        return _Job(data, np.asarray(devices, np.int64), self._matrices(data, w))

    def _matrices(self, data: SoftmaxData, w: Floats) -> Floats:
        """Bring flat vectors into the shape of the compiled loops: (k, classes, features), filled up."""
        C, p, q = self.n_classes, self.n_features, data.panels.features
        w = np.asarray(w).reshape(-1, self.d)
        W = np.zeros((len(w), _filled(C, 2), q), data.panels.X.dtype)
        W[:, :C, :p] = w[:, : C * p].reshape(-1, C, p)
        W[:, :C, p] = w[:, C * p :]
        return W

    def _vectors(self, W: Floats) -> Floats:
        """Undo `_matrices`."""
        C, p = self.n_classes, self.n_features
        return np.concatenate([W[:, :C, :p].reshape(-1, C * p), W[:, :C, p]], axis=1)


@dataclass(frozen=True)
class _Job:
    """Devices with their parameters; training writes the new ones into W."""

    data: SoftmaxData
    devices: Ints
    W: Floats

    @property
    def counts(self) -> Ints:
        counts: Ints = self.data.panels.counts[self.devices]
        return counts

    @property
    def cost(self) -> Floats:
        """Multiply-adds of one gradient of each device."""
        return 2.0 * self.counts * self.W[0].size if self.W.size else np.zeros(0)


def _descend(job: _Job, A: Floats, rho: float, work: Work) -> None:
    steps, lr = plain(work)
    panels, devices, W = job.data.panels, job.devices, job.W

    def run(jobs: Ints) -> None:
        _kernels.descend(panels, devices, jobs, W, A, rho, lr, steps, own(space, W.shape[1:], W.dtype))

    spread(run, job.cost * steps)


def _descend_batches(job: _Job, A: Floats, rho: float, work: Work, rngs: Sequence[np.random.Generator]) -> None:
    epochs, lr = plain(work)
    classes = job.data.panels.classes

    def run(jobs: Ints) -> None:
        room, batch = own(space, job.W.shape[1:], job.W.dtype), own(batch_space, job.W.shape[2], job.W.dtype)
        for k in jobs:
            X, y = job.data.rows.of(job.devices[k])
            for orders in batch_orders(len(y), work, rngs[k]):
                how = rho, lr, work.batch
                _kernels.descend_batches(X, y, classes, orders, job.W[k], A[k], *how, room, *batch)

    spread(run, job.cost * epochs)


def _solve(job: _Job, A: Floats, rho: float) -> None:
    from fedfuse.models.newton import minimise

    def run(jobs: Ints) -> None:
        for k in jobs:
            job.W[k] = minimise(job.data.panels, job.devices[k], job.W[k], A[k], rho)

    spread(run, 100 * job.cost)  # as many as Newton's method takes, roughly


def _evaluate(
    job: _Job, *, loss: bool = False, hits: bool = False, gradient: bool = False
) -> tuple[Floats, Ints, Floats]:
    """Return the sums over rows of loss, hits and gradient; what is not asked for is empty."""
    k = len(job.devices)
    sums = np.zeros(k * loss), np.zeros(k * hits, np.int64), np.zeros(job.W.shape if gradient else (0, 0, 0))

    def run(jobs: Ints) -> None:
        _kernels.evaluate(job.data.panels, job.devices, jobs, job.W, *sums, own(space, job.W.shape[1:], job.W.dtype))

    spread(run, job.cost)
    return sums


def _panels(rows: Rows, classes: int, dtype: np.dtype[Any]) -> Panels:
    """Lay out every device's rows in strips, see `_kernels`."""
    p = rows.X.shape[1]
    q, counts = _filled(p + 1, 4), rows.counts
    room = _filled(counts, STRIP)
    start = np.cumsum(room) - room
    X, y = alignment.zeros(int(room.sum()) * q, dtype), np.zeros(room.sum(), np.int64)
    for i, (a, b) in enumerate(zip(start, start + room, strict=True)):
        rows_X, rows_y = rows.of(i)
        y[a : a + len(rows_y)] = rows_y
        strips = X[a * q : b * q].reshape(-1, q, STRIP).transpose(0, 2, 1)  # (strip, row, feature)
        whole = len(rows_y) // STRIP
        strips[:whole, :, :p] = rows_X[: whole * STRIP].reshape(-1, STRIP, p)
        strips[:whole, :, p] = 1
        if rest := len(rows_y) % STRIP:
            strips[whole, :rest, :p] = rows_X[whole * STRIP :]
            strips[whole, :rest, p] = 1
    return Panels(X, y, start, counts, q, classes)


@overload
def _filled(n: int, multiple: int) -> int: ...
@overload
def _filled(n: Ints, multiple: int) -> Ints: ...
def _filled(n: int | Ints, multiple: int) -> int | Ints:
    """Round up to a multiple."""
    return -(-n // multiple) * multiple
