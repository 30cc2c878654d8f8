"""All devices in this process, many of them in one compiled call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.data.federation import Federation
from fedfuse.fleet.base import Fleet
from fedfuse.models.base import Model
from fedfuse.randomness import generator
from fedfuse.tasks import Gradient, Install, Losses, Order, Part, Reply, Train, largest_value
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
        self._waiting: list[Order] = []

    def submit(self, orders: Sequence[Order]) -> None:
        self._waiting.extend(orders)

    def collect(self) -> list[Reply]:
        replies: list[Reply] = []
        for alike in _grouped(self._waiting):
            replies += self._perform(alike)
        self._waiting = []
        return replies

    def remember(self, models: Floats) -> None:
        self._own[:] = models

    def load(self, part: Part) -> Any:
        """Return one part of the data in the model's own form (made once)."""
        if part not in self._loaded:
            self._loaded[part] = self._model.load(self._federation.rows(part), self._dtype)
        return self._loaded[part]

    def _perform(self, orders: list[Order]) -> list[Reply]:
        devices = np.array([o.device for o in orders], dtype=np.int64)
        match orders[0].task:
            case Install():
                self._own[devices] = _stack(o.task.model for o in orders)  # type: ignore[union-attr]
                values: Sequence[Floats] = [np.empty(0, self._dtype)] * len(orders)
            case Train():
                values = self._train(orders, devices)
            case Gradient(rows=rows):
                at = _stack(o.task.at for o in orders)  # type: ignore[union-attr]
                values = list(self._model.gradients(self.load(rows), devices, at))
            case Losses(models=models, rows=rows):
                columns = [_stack(o.task.models[c] for o in orders) for c in range(len(models))]  # type: ignore[union-attr]
                losses = [self._model.losses(self.load(rows), devices, w) for w in columns]
                values = list(np.stack(losses, axis=1))
        return [Reply(o.device, o.round, v) for o, v in zip(orders, values, strict=True)]

    def _train(self, orders: list[Order], devices: Ints) -> Sequence[Floats]:
        tasks = [o.task for o in orders if isinstance(o.task, Train)]
        first = tasks[0]
        own = self._own[devices]
        start = own if first.start is None else _stack(t.start for t in tasks)
        anchor = None if first.anchor is None else _stack(t.anchor for t in tasks)
        rngs = None
        if first.work.batch is not None:
            rngs = [generator(self._seed, "batches", o.round, o.device) for o in orders]
        data = self.load(first.rows)
        new = self._model.train(data, devices, start, anchor, first.rho, first.work, rngs)
        # a device whose training diverged goes on from the last model that the server could use
        usable = np.abs(new).max(axis=1) <= largest_value(self._model.d, self._dtype)
        self._own[devices[usable]] = new[usable]
        return list(new)


def _stack(vectors: Any) -> Floats:
    return np.stack(list(vectors))


def _grouped(orders: Sequence[Order]) -> list[list[Order]]:
    """Put orders together that differ only in their vectors, so that each lot is one compiled call."""
    lots: dict[Any, list[Order]] = {}
    for order in orders:
        task = order.task
        key: tuple[Any, ...] = (type(task),)
        if isinstance(task, Train):
            key = (Train, task.work, task.rho, task.rows, task.start is None, task.anchor is None)
        elif isinstance(task, (Gradient, Losses)):
            key = (type(task), task.rows, np.shape(task.models if isinstance(task, Losses) else task.at))
        lots.setdefault(key, []).append(order)
    return list(lots.values())
