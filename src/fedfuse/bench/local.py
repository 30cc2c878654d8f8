"""Local training, and the whole round around it, on synthetic:S1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.bench import machine
from fedfuse.bench.figure import Figure
from fedfuse.bench.sizes import BenchSizes
from fedfuse.bench.textbook import TextbookServer, softmax_steps
from fedfuse.bench.timing import race
from fedfuse.data.federation import Federation, Rows
from fedfuse.data.synthetic import synthetic
from fedfuse.engines import InProcess
from fedfuse.methods import FPFC
from fedfuse.models import SoftmaxRegression
from fedfuse.protocol.local_work import Work
from fedfuse.training.loop import Run
from fedfuse.training.settings import Settings
from fedfuse.utils.typing import Floats, Ints

STEPS, LR = 10, 0.1
WORK = Work(steps=STEPS, lr=LR)
METHOD = FPFC(lam=0.6, work=WORK)
SETTINGS = Settings(rounds=10**9, participation=0.3, tol=0.0, evaluate_every=10**9)


def figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Measure everything that devices do."""
    problem = Problem(synthetic("S1", seed=0))
    yield _whole_round(problem, sizes)
    yield from _local_steps(problem, sizes)


@dataclass(frozen=True)
class Problem:
    """A federation with its model, and its rows as a NumPy user would hold them."""

    federation: Federation
    dtype: npt.DTypeLike = np.float32  # of the NumPy user's numbers

    @cached_property
    def model(self) -> SoftmaxRegression:
        return SoftmaxRegression().sized(self.federation.n_features, self.federation.n_classes)

    @property
    def rows(self) -> Rows:
        return self.federation.rows("train+validation")

    @cached_property
    def plain(self) -> list[tuple[Floats, Ints]]:
        """Each device's rows, with a column of ones, and its classes."""
        own = [self.rows.of(i) for i in range(self.federation.m)]
        return [(np.column_stack([X, np.ones(len(X))]).astype(self.dtype), y.astype(np.int64)) for X, y in own]

    def run(self) -> Run:
        """Return a run of FPFC that never evaluates."""
        engine = InProcess(self.federation, self.model, dtype=SETTINGS.dtype)
        run = Run(self.federation, self.model, METHOD, SETTINGS, engine)
        run.begin()
        return run

    def plain_steps(self, devices: Ints, W: Floats, anchors: Floats) -> Floats:
        """One device after the other."""
        steps = [
            softmax_steps(X, y, w, a, 1.0, STEPS, LR)
            for (X, y), w, a in zip([self.plain[i] for i in devices], W, anchors, strict=True)
        ]
        return np.stack(steps)

    def matrices(self, w: Floats) -> Floats:
        """Bring flat parameters into the plain shape: weights, then the intercept, of every class."""
        return np.stack([self.model.coefficients(row) for row in w]).astype(self.dtype)

    def flat(self, W: Floats) -> Floats:
        """Undo `matrices`."""
        return np.concatenate([W[:, :, :-1].reshape(len(W), -1), W[:, :, -1]], axis=1)


class TextbookRun:
    """The same rounds as `Problem.run`, by textbook loops and plain NumPy."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.omega = np.zeros((problem.federation.m, problem.model.d), problem.dtype)
        self._server = TextbookServer(self.omega, METHOD.penalty)
        self._k = 0

    @property
    def theta(self) -> Floats:
        """Of all ordered pairs: m x m x d."""
        return self._server.theta

    def round(self) -> None:
        """One round."""
        active = SETTINGS.active(self._k, len(self.omega))
        anchors = np.array([self._server.zeta[i] for i in active])
        matrices = self._problem.matrices
        new = self._problem.plain_steps(active, matrices(self.omega[active]), matrices(anchors))
        self.omega[active] = self._problem.flat(new)
        self._server.step(active, self.omega[active])
        self._k += 1


def _whole_round(problem: Problem, sizes: BenchSizes) -> Figure:
    run, book = problem.run(), TextbookRun(problem)
    fast, slow = race(run.round, book.round, seconds=sizes.seconds)
    what = "S1, 30 of 100 active, 10 local steps, float32"
    return Figure("whole round", what, "textbook loops, NumPy gradients", fast, slow, "s", slow / fast, 8)


def _local_steps(problem: Problem, sizes: BenchSizes) -> Iterator[Figure]:
    model, devices = problem.model, SETTINGS.active(0, problem.federation.m)
    data = model.load(problem.rows, np.float32)
    start = np.zeros((devices.size, model.d), np.float32)
    plain, product = problem.matrices(start), machine.Sgemm(sizes.sgemm)
    fast, slow, its = race(
        lambda: model.train(data, devices, start, start, 1.0, WORK),
        lambda: problem.plain_steps(devices, plain, plain),
        product.run,
        seconds=sizes.seconds,
    )
    what = "softmax, 30 devices of S1, 10 steps, float32"
    yield Figure("local steps", what, "plain NumPy, one device after another", fast, slow, "s", slow / fast)
    rate, limit = _operations(problem, devices) / fast, product.operations / its
    against = f"sgemm of {sizes.sgemm} x {sizes.sgemm}"
    yield Figure("arithmetic", what, against, rate / 1e9, limit / 1e9, "GFLOP/s", rate / limit, 0.25)


def _operations(problem: Problem, devices: Any) -> float:
    """Multiplications and additions of the two matrix products in every step."""
    rows = sum(len(problem.plain[i][1]) for i in devices)
    return 4.0 * STEPS * rows * problem.model.d
