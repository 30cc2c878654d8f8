"""Local training of the paper's CNN: fedfuse against a plain PyTorch loop over the same batches, in one process.

    python benchmarks/cnn.py [devices] [rows per device] [repeats]
    python benchmarks/cnn.py round [epochs] [rows per device] [repeats]

The plain loop is what everybody writes: for each device a module, `torch.optim.SGD`, shuffled row numbers, batches of
100; no proximal term (fedfuse has one). It runs with torch's threads as they are, and with one. Rows are random: how
long a step takes does not depend on them.

``round`` is a whole round of the paper's setting, from orders to replies: 10 devices, 10 epochs of batches of 100, in
process and on two worker processes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numba
import numpy as np
import torch
from torch.nn import functional

from fedfuse.data.federation import Federation, Rows
from fedfuse.fleet import Fleet, InProcess, Workers
from fedfuse.models.networks import CNN
from fedfuse.tasks import Order, Train, Work
from fedfuse.types import Floats

WORK = Work(steps=1, lr=0.01, batch=100)


class Case:
    """Devices with random images, and the two ways to train on them for an epoch."""

    def __init__(self, m: int, n: int) -> None:
        rng = np.random.default_rng(0)
        X, y = rng.random((m * n, 784), dtype=np.float32), rng.integers(0, 10, m * n)
        start = n * np.arange(m)
        self.model, self.devices = CNN().sized(784, 10, (1, 28, 28)), np.arange(m)
        self.rows = Rows(X, y, start, start + n)
        self.data = self.model.load(self.rows, np.float32)
        self.w = np.tile(self.model.initial("auto", rng).astype(np.float32), (m, 1))
        self.images, self.labels = torch.from_numpy(X).view(-1, 1, 28, 28), torch.from_numpy(y)

    def fedfuse(self, rho: float = 1.0) -> Floats:
        anchor = self.w[:, self.model.fused] + 0.1
        rngs = [np.random.default_rng([1, i]) for i in self.devices]
        return self.model.train(self.data, self.devices, self.w, anchor, rho, WORK, rngs)

    def plain(self, epochs: int = 1) -> Floats:
        return np.stack([self._plain_device(i, epochs) for i in self.devices])

    def orders(self, epochs: int) -> list[Order]:
        """Return a round's orders."""
        work, anchor = Work(steps=epochs, lr=0.01, batch=100), self.w[0, self.model.fused]
        return [Order(int(i), 1, Train(work, self.w[i], anchor, rho=1.0)) for i in self.devices]

    def federation(self) -> Federation:
        """Return the same rows as users would have them."""
        parts = [slice(a, b) for a, b in zip(self.rows.start, self.rows.stop, strict=True)]
        X, y = self.rows.X.reshape(-1, 1, 28, 28), self.rows.y
        return Federation.from_arrays([(X[part], y[part]) for part in parts], test=0.0, validation=0.0)

    def _plain_device(self, i: int, epochs: int) -> Floats:
        module = self.model.module_with(self.w[i]).train()
        optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
        x, y = self.images[self.rows.start[i] : self.rows.stop[i]], self.labels[self.rows.start[i] : self.rows.stop[i]]
        rng = np.random.default_rng([1, i])
        for _ in range(epochs):
            for rows in torch.from_numpy(rng.permutation(len(x))).split(100):
                optimiser.zero_grad()
                functional.cross_entropy(module(x[rows]), y[rows]).backward()
                optimiser.step()
        return torch.cat([p.detach().ravel() for p in module.parameters()]).numpy()


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(n)
    numba.set_num_threads(min(n, before[1]))
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])


def seconds(work: Callable[[], object], n: int) -> float:
    with threads(n):
        clock = time.perf_counter()
        work()
        return time.perf_counter() - clock


def main(m: str = "8", n: str = "1000", repeats: str = "9") -> None:
    """Print the median ratios of times, each pair taken one right after the other."""
    case, cores = Case(int(m), int(n)), numba.config.NUMBA_NUM_THREADS
    away = np.abs(case.fedfuse(rho=0.0) - case.plain()).max()
    print(f"{m} devices, {n} rows each, one epoch; without proximal term the weights differ by {away:.1e} at the most")
    for name, k in (("all cores", cores), ("one thread", 1)):
        pairs = np.array([(seconds(case.fedfuse, k), seconds(case.plain, k)) for _ in range(int(repeats))])
        own, plain = np.median(pairs, axis=0)
        ratio, best = np.median(pairs[:, 0] / pairs[:, 1]), pairs[:, 0].min() / pairs[:, 1].min()
        times = f"fedfuse {own:.3f} s  plain PyTorch {plain:.3f} s"
        print(f"{name:10s}  {times}  ratio {ratio:.2f} (of the best: {best:.2f})", flush=True)


def perform(fleet: Fleet, orders: list[Order]) -> None:
    """Send these orders and wait for all replies."""
    fleet.submit(orders)
    missing = len(orders)
    while missing:
        missing -= len(fleet.collect())


def whole_round(epochs: str = "10", n: str = "3000", repeats: str = "3") -> None:
    """Print how much faster a round is than the plain loop, each set of times taken one right after the other."""
    case = Case(10, int(n))
    federation, orders = case.federation(), case.orders(int(epochs))
    inside = InProcess(federation, case.model)
    workers = Workers(federation, case.model, workers=2)
    for fleet in (inside, workers):  # rows loaded, processes started
        perform(fleet, case.orders(1))
    cores = numba.config.NUMBA_NUM_THREADS
    runs: dict[str, tuple[Callable[[], object], int]] = {
        "plain loop": (lambda: case.plain(int(epochs)), cores),
        "plain loop, one thread": (lambda: case.plain(int(epochs)), 1),
        "in process": (lambda: perform(inside, orders), cores),
        "in process, one thread": (lambda: perform(inside, orders), 1),
        "two workers": (lambda: perform(workers, orders), cores),
    }
    times = np.array([[seconds(*run) for run in runs.values()] for _ in range(int(repeats))])
    workers.close()
    for k, name in enumerate(runs):
        speed = np.median(times[:, :2] / times[:, k, None], axis=0)
        print(f"{name:24s} {np.median(times[:, k]):7.2f} s  {speed[0]:5.2f} {speed[1]:5.2f} times the plain loops")


if __name__ == "__main__":
    whole_round(*sys.argv[2:]) if sys.argv[1:2] == ["round"] else main(*sys.argv[1:])
