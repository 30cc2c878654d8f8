"""Local training of the paper's CNN, against the loop that everybody writes in PyTorch over the same batches."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from fedfuse.bench.figure import Figure
from fedfuse.bench.sizes import BenchSizes
from fedfuse.bench.timing import once, race
from fedfuse.data.federation import Federation, Rows
from fedfuse.engines import Engine, InProcess
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import Order, Train
from fedfuse.utils.threads import allowed, keep_to
from fedfuse.utils.typing import Floats

BATCH, LR = 100, 0.01


class Case:
    """Devices with random images (how long a step takes does not depend on them), and two ways to train on them."""

    def __init__(self, m: int, n: int) -> None:
        import torch

        from fedfuse.models.networks import CNN

        rng = np.random.default_rng(0)
        X, y = rng.random((m * n, 784), dtype=np.float32), rng.integers(0, 10, m * n)
        start = n * np.arange(m)
        self.model, self.devices = CNN().sized(784, 10, (1, 28, 28)), np.arange(m)
        self.rows = Rows(X, y, start, start + n)
        self.w = np.tile(self.model.initial("auto", rng).astype(np.float32), (m, 1))
        self.images, self.labels = torch.from_numpy(X).view(-1, 1, 28, 28), torch.from_numpy(y)
        self._data = self.model.load(self.rows, np.float32)

    def fedfuse(self, rho: float = 1.0) -> Floats:
        """Train for an epoch."""
        anchor = self.w[:, self.model.fused] + 0.1
        rngs = [np.random.default_rng([1, i]) for i in range(len(self.devices))]
        work = Work(steps=1, lr=LR, batch=BATCH)
        return self.model.train(self._data, self.devices, self.w, anchor, rho, work, rngs)

    def plain(self, epochs: int = 1) -> Floats:
        """Train as everybody does: one device after the other, `torch.optim.SGD`, no proximal term."""
        return np.stack([self._plain_device(i, epochs) for i in range(len(self.devices))])

    def orders(self, epochs: int) -> list[Order]:
        """Return a round's orders."""
        work, anchor = Work(steps=epochs, lr=LR, batch=BATCH), self.w[0, self.model.fused]
        return [Order(int(i), 1, Train(work, self.w[i], anchor, rho=1.0)) for i in self.devices]

    def federation(self) -> Federation:
        """Return the same rows as users would have them."""
        parts = [slice(a, b) for a, b in zip(self.rows.start, self.rows.stop, strict=True)]
        X, y = self.rows.X.reshape(-1, 1, 28, 28), self.rows.y
        return Federation.from_arrays([(X[part], y[part]) for part in parts], test=0.0, validation=0.0)

    def _plain_device(self, i: int, epochs: int) -> Floats:
        import torch
        from torch.nn import functional

        module = self.model.module_with(self.w[i]).train()
        optimiser = torch.optim.SGD(module.parameters(), lr=LR)
        own = slice(self.rows.start[i], self.rows.stop[i])
        x, y = self.images[own], self.labels[own]
        rng = np.random.default_rng([1, i])
        for _ in range(epochs):
            for rows in torch.split(torch.from_numpy(rng.permutation(len(x))), BATCH):
                optimiser.zero_grad()
                torch.autograd.backward(functional.cross_entropy(module(x[rows]), y[rows]))
                optimiser.step()
        return np.asarray(torch.cat([p.detach().ravel() for p in module.parameters()]).numpy())


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Let PyTorch and compiled code use so many threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n)
    keep_to(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        keep_to(None)


def seconds(work: Callable[[], object], n: int) -> float:
    """Return how long this takes with so many threads."""
    with threads(n):
        return once(work)


def perform(engine: Engine, orders: list[Order]) -> None:
    """Send these orders and wait for all replies."""
    engine.submit(orders)
    missing = len(orders)
    while missing:
        missing -= len(engine.collect())


def figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Measure a round of four devices, from orders to replies; nothing where there is no PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return
    case = Case(4, sizes.images)
    engine, orders = InProcess(case.federation(), case.model), case.orders(1)
    with threads(allowed()):
        fast, slow = race(lambda: perform(engine, orders), case.plain, seconds=2 * sizes.seconds, burst=1)
    what = f"the paper's CNN, 4 devices, {sizes.images} rows each, one epoch of batches of {BATCH}"
    yield Figure("CNN round", what, "a plain PyTorch loop, all cores", fast, slow, "s", slow / fast)
