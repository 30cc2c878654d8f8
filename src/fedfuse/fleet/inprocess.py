"""All devices in this process, many of them in one compiled call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.data.federation import Federation, Rows
from fedfuse.fleet.base import Fleet
from fedfuse.models._threads import one_blas_thread
from fedfuse.models.base import Model
from fedfuse.randomness import generator
from fedfuse.tasks import (
    Alone,
    Gradient,
    Install,
    Judge,
    Losses,
    Moments,
    Order,
    Part,
    Reply,
    Rescale,
    Residue,
    Train,
    Work,
    largest_value,
)
from fedfuse.types import Floats, Ints


class InProcess(Fleet):
    """Devices as slices of one federation's arrays."""

    def __init__(
        self, federation: Federation, model: Model[Any], *, seed: int = 0, dtype: npt.DTypeLike = np.float32
    ) -> None:
        self._federation = federation
        self._model = model
        self._seed = seed
        self._dtype = np.dtype(dtype)
        self._own: Floats = np.zeros((federation.m, model.d), self._dtype)
        self._loaded: dict[str, Any] = {}
        self._scaled: Rows | None = None
        self._waiting: list[Order] = []

    def submit(self, orders: Sequence[Order]) -> None:
        self._waiting.extend(orders)

    def collect(self) -> list[Reply]:
        replies: list[Reply] = []
        with one_blas_thread():
            for alike in _grouped(self._waiting):
                replies += self._perform(alike)
        self._waiting = []
        return replies

    def load(self, part: Part) -> Any:
        """Return one part of the data in the model's own form (made once)."""
        if part not in self._loaded:
            self._loaded[part] = self._model.load(self._rows(part), self._dtype)
        return self._loaded[part]

    def _rows(self, part: Part) -> Rows:
        a, b = self._federation.rows(part), self._scaled
        return a if b is None else Rows(b.X, b.y, a.start, a.stop)

    def _perform(self, orders: list[Order]) -> list[Reply]:
        devices = np.array([o.device for o in orders], dtype=np.int64)
        tasks: list[Any] = [o.task for o in orders]
        values: Sequence[Floats]
        match tasks[0]:
            case Install():
                self._own[devices] = np.stack([t.model for t in tasks])
                values = [np.empty(0)] * len(tasks)
            case Train():
                values = self._train(orders, devices)
            case Alone(ridges=ridges):
                values = self._alone(ridges, devices)
            case Gradient():
                values = self._gradients(tasks, devices)
            case Losses():
                values = self._losses(tasks, devices)
            case Judge():
                values = [self._judgement(t, i) for t, i in zip(tasks, devices, strict=True)]
            case Residue():
                values = self._residues(np.stack([t.at for t in tasks]), np.stack([t.common for t in tasks]), devices)
            case Moments():
                values = [_moments(self._rows(t.rows), i, t.columns) for t, i in zip(tasks, devices, strict=True)]
            case Rescale(shift=shift, scale=scale):
                # every device gets the same: the copies are made once
                self._scaled, self._loaded = _rescaled(self._federation.rows("all"), shift, scale), {}
                values = [np.empty(0)] * len(tasks)
        return [Reply(o.device, o.round, v) for o, v in zip(orders, values, strict=True)]

    def _alone(self, ridges: tuple[float, ...], devices: Ints) -> Sequence[Floats]:
        zero, work = np.zeros((len(devices), self._model.d), self._dtype), Work(solver="exact")
        losses, models = [], []
        for ridge in ridges:
            w = self._model.train(self.load("train"), devices, zero, zero, ridge, work)
            losses.append(self._model.losses(self.load("validation"), devices, w))
            models.append(self._model.train(self.load("train+validation"), devices, zero, zero, ridge, work))
        return list(np.stack(models)[np.argmin(losses, axis=0), np.arange(len(devices))])

    def _gradients(self, tasks: list[Gradient], devices: Ints) -> Sequence[Floats]:
        at, first = np.stack([t.at for t in tasks]), tasks[0]
        parts = [self._model.gradients(self.load(first.rows), devices, at)]
        parts += [self._model.losses(self.load(part), devices, at)[:, None] for part in first.also]
        return list(np.hstack(parts))

    def _losses(self, tasks: list[Losses], devices: Ints) -> Sequence[Floats]:
        counts = [len(t.models) for t in tasks]
        models = np.concatenate([t.models for t in tasks])
        losses = self._model.losses(self.load(tasks[0].rows), np.repeat(devices, counts), models)
        return np.split(losses, np.cumsum(counts)[:-1])

    def _residues(self, at: Floats, common: Floats, devices: Ints) -> Sequence[Floats]:
        parts: tuple[Part, ...] = ("train", "validation")
        a, b = (self._model.gradients(self.load(part), devices, at) - common for part in parts)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        return list((np.einsum("kd,kd->k", a, b) / np.maximum(lengths, 1e-30))[:, None])

    def _judgement(self, task: Judge, device: int) -> Floats:
        models = np.vstack([self._own[device], task.models]) if task.own else task.models
        losses = self._model.row_losses(models, *self._rows(task.rows).of(device))
        n = losses.shape[1]
        if not n:
            return np.zeros(task.floats_up(self._model.d))
        covariance = np.atleast_2d(np.cov(losses, ddof=0)) / max(n - 1, 1)
        return np.concatenate([losses.mean(axis=1), covariance[np.triu_indices(len(models))]])

    def _train(self, orders: list[Order], devices: Ints) -> Sequence[Floats]:
        tasks = [o.task for o in orders if isinstance(o.task, Train)]
        first = tasks[0]
        own = self._own[devices]
        start = own if first.start is None else _stack(t.start for t in tasks)
        anchor = None if first.anchor is None else _stack(t.anchor for t in tasks)
        if anchor is None and first.rho:
            anchor = np.zeros_like(start)
        rngs = None
        if first.work.batch is not None:
            rngs = [generator(self._seed, "batches", o.round, o.device) for o in orders]
        data = self.load(first.rows)
        new = self._model.train(data, devices, start, anchor, first.rho, first.work, rngs)
        # a device whose training diverged goes on from the last model that the server could use
        usable = np.abs(new).max(axis=1) <= largest_value(self._model.d, self._dtype)
        self._own[devices[usable]] = new[usable]
        if first.score is None:
            return list(new)
        scores = np.nan_to_num(self._model.metric(self.load(first.score), devices, new))
        return list(np.column_stack([new, scores]))


def _stack(vectors: Any) -> Floats:
    return np.stack(list(vectors))


def _grouped(orders: Sequence[Order]) -> list[list[Order]]:
    """Put orders together that differ only in their vectors, so that each lot is one compiled call."""
    lots: dict[Any, list[Order]] = {}
    for order in orders:
        task = order.task
        key: tuple[Any, ...] = (type(task),)
        if isinstance(task, Train):
            key = (Train, task.work, task.rho, task.rows, task.start is None, task.anchor is None, task.score)
        elif isinstance(task, Gradient):
            key = (Gradient, task.rows, task.also)
        elif isinstance(task, Losses):
            key = (Losses, task.rows)
        lots.setdefault(key, []).append(order)
    return list(lots.values())


def _rescaled(rows: Rows, shift: Floats, scale: Floats) -> Rows:
    p = rows.X.shape[1]
    y = (rows.y - shift[p]) / scale[p] if len(shift) > p else rows.y
    return Rows((rows.X - shift[:p]) / scale[:p], y, rows.start, rows.stop)


def _moments(rows: Rows, device: int, columns: int) -> Floats:
    X, y = rows.of(device)
    table = np.column_stack([X, y]) if columns > X.shape[1] else X
    return np.concatenate([table.mean(axis=0), np.square(table).mean(axis=0)])
