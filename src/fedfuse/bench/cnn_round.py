"""A round of the paper's CNN, against the usual PyTorch loop over the same batches."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np

from fedfuse import Federation, Work
from fedfuse.bench.measurement import BenchSizes, Figure, race, speedup
from fedfuse.engines import Engine, InProcess, Workers
from fedfuse.models import model_called
from fedfuse.protocol.tasks import Order, Train
from fedfuse.utils.typing import Floats

DEVICES, BATCH, LR = 4, 100, 0.01


class ImageDevices:
    """Devices with random images (how long a step takes does not depend on them), and two ways to train on them."""

    def __init__(self, rows: int) -> None:
        rng = np.random.default_rng(0)
        X = rng.random((DEVICES, rows, 1, 28, 28), dtype=np.float32)
        self.parts = list(zip(X, rng.integers(0, 10, (DEVICES, rows)), strict=True))
        self.federation = Federation.from_arrays(self.parts, test=0.0, validation=0.0)
        self.model = model_called("cnn").sized(784, 10, (1, 28, 28))
        self.w = self.model.initial("auto", rng).astype(np.float32)

    def perform(self, engine: Engine) -> None:
        """Send the orders of a round of one epoch, and wait for all replies."""
        task = Train(Work(steps=1, lr=LR, batch=BATCH), self.w, self.w[self.model.fused], rho=1.0)
        engine.submit([Order(i, 1, task) for i in range(DEVICES)])
        missing = DEVICES
        while missing:
            missing -= len(engine.collect())

    def plain(self) -> list[Floats]:
        """Train one device after the other for an epoch by `torch.optim.SGD`, without a proximal term."""
        return [self._plain_device(i) for i in range(DEVICES)]

    def _plain_device(self, i: int) -> Floats:
        import torch
        from torch.nn import functional

        module = self.model.module_with(self.w).train()
        optimiser = torch.optim.SGD(module.parameters(), lr=LR)
        x, y = map(torch.from_numpy, self.parts[i])
        rng = np.random.default_rng([1, i])
        for rows in torch.split(torch.from_numpy(rng.permutation(len(x))), BATCH):
            optimiser.zero_grad()
            torch.autograd.backward(functional.cross_entropy(module(x[rows]), y[rows]))
            optimiser.step()
        return np.asarray(torch.cat([p.detach().ravel() for p in module.parameters()]).numpy())


def figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Measure a round from orders to replies, in process and on two workers; nothing where there is no PyTorch."""
    if importlib.util.find_spec("torch") is None:
        return
    case = ImageDevices(sizes.images)
    what = f"the paper's CNN, {DEVICES} devices, {sizes.images} rows each, one epoch of batches of {BATCH}"
    for name, engine in (
        ("CNN round", InProcess(case.federation, case.model)),
        ("CNN round, two workers", Workers(case.federation, case.model, workers=2)),
    ):
        fast, slow = race(lambda: case.perform(engine), case.plain, seconds=2 * sizes.seconds, burst=1)  # noqa: B023
        engine.close()
        yield speedup(name, what, "a plain PyTorch loop, all cores", fast, slow)
