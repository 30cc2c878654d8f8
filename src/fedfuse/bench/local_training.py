"""Local training, rounds and whole runs on synthetic:S1, against textbook loops and NumPy; the CNN, against PyTorch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse import FPFC, Federation, FedfuseError, Settings, SoftmaxRegression, Work, fit
from fedfuse.bench.measurement import BenchSizes, Curve, Figure, once, race
from fedfuse.core.partitions import components
from fedfuse.data.federation import Part, Rows
from fedfuse.data.synthetic import synthetic
from fedfuse.engines.base import Engine
from fedfuse.engines.in_process import InProcess
from fedfuse.engines.workers import Workers
from fedfuse.models import model_called
from fedfuse.protocol.tasks import Order, Train
from fedfuse.training.loop import Run
from fedfuse.utils.typing import Floats, Ints

IN_CHECKOUT = Path(__file__).parents[3] / "tests" / "support" / "textbook.py"
STEPS, LR = 10, 0.1
WORK = Work(steps=STEPS, lr=LR)
METHOD = FPFC(lam=0.6, work=WORK, refit=False)
SETTINGS = Settings(rounds=10**9, participation=0.3, tol=0.0, evaluate_every=10**9)
# Of the whole run: rounds between evaluations, threshold of groups, turns, and repetitions of which the best counts.
EVALUATE_EVERY, NU, TURNS, REPEATS = 10, 0.5, 4, 3
GROWTH_DEVICES, GROWTH_FEATURES, GROWTH_CLASSES = 10, 60, 10
NETWORK_DEVICES, BATCH, NETWORK_LR = 4, 100, 0.01


def textbook() -> Any:
    """Return the tests' textbook loops: a checkout has them in tests/, a wheel carries a copy."""
    for path in (IN_CHECKOUT, Path(__file__).with_name("_textbook.py")):
        if path.is_file():
            return SimpleNamespace(**run_path(str(path)))
    raise FedfuseError(f"the textbook loops are missing: no {IN_CHECKOUT}, and no copy here")


def plain_rows(federation: Federation, part: Part, dtype: npt.DTypeLike = np.float64) -> list[tuple[Floats, Ints]]:
    """Return each device's rows as a NumPy user would hold them: with a column of ones, and classes."""
    own = [federation.rows(part).of(i) for i in range(federation.m)]
    return [(np.column_stack([X, np.ones(len(X))]).astype(dtype), y.astype(np.int64)) for X, y in own]


class TextbookRun:
    """The rounds of a run of FPFC, by textbook loops and plain NumPy."""

    def __init__(self, federation: Federation, dtype: npt.DTypeLike = np.float32) -> None:
        rows = plain_rows(federation, "train+validation", dtype)
        self.book = textbook().SoftmaxTextbook(rows, federation.n_classes, METHOD.penalty, STEPS, LR)
        self._held_out = [plain_rows(federation, part) for part in ("validation", "test")]
        self._k = 0

    def round(self) -> None:
        """One round."""
        self.book.round(SETTINGS.active(self._k, len(self.book.rows)))
        self._k += 1

    def evaluated_rounds(self) -> tuple[Ints, float]:
        """Run until the next evaluation; return groups and mean accuracy of all devices."""
        for _ in range(EVALUATE_EVERY):
            self.round()
        pairs = [(own, W) for part in self._held_out for own, W in zip(part, self.book.W, strict=True)]
        right = [np.mean((X @ W.T).argmax(axis=1) == y) for (X, y), W in pairs]
        return components(np.linalg.norm(self.book.server.theta, axis=2), NU), float(np.mean(right))


def begun(federation: Federation, method: FPFC = METHOD, settings: Settings = SETTINGS) -> Run:
    """Return a run before its first round; by default one that never evaluates."""
    model = SoftmaxRegression().sized(federation.n_features, federation.n_classes)
    engine = InProcess(federation, model, seed=settings.seed, dtype=settings.dtype)
    run = Run(federation, model, method, settings, engine)
    run.begin()
    return run


def figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Measure a round, and local steps against NumPy and against sgemm."""
    federation = synthetic("S1", seed=0)
    run, book = begun(federation), TextbookRun(federation)
    fast, slow = race(run.round, book.round, seconds=sizes.seconds)
    what = "S1, 30 of 100 active, 10 local steps, float32"
    yield Figure("whole round", what, "textbook loops, NumPy gradients", fast, slow, "s", 8)
    model, devices, steps = run.model, SETTINGS.active(0, federation.m), textbook().softmax_steps
    data, rows = model.load(federation.rows("train+validation"), np.float32), [book.book.rows[i] for i in devices]
    start, W = np.zeros((devices.size, model.d), np.float32), np.zeros_like(book.book.W[0])
    square = np.random.default_rng(0).normal(size=(sizes.sgemm, sizes.sgemm)).astype(np.float32)
    fast, slow, its = race(
        lambda: model.train(data, devices, start, start, 1.0, WORK),
        lambda: [steps(X, y, W, W, 1.0, STEPS, LR) for X, y in rows],
        lambda: square @ square,
        seconds=sizes.seconds,
    )
    what = "softmax, 30 devices of S1, 10 steps, float32"
    yield Figure("local steps", what, "plain NumPy, one device after another", fast, slow, "s")
    # Each step multiplies and adds in two matrix products.
    operations = 4.0 * STEPS * sum(len(y) for _, y in rows) * model.d
    rate, limit, against = operations / fast, 2.0 * sizes.sgemm**3 / its, f"sgemm of {sizes.sgemm} x {sizes.sgemm}"
    yield Figure("arithmetic", what, against, rate / 1e9, limit / 1e9, "GFLOP/s", 0.25)


def whole_run_figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Time runs from data to result; of the textbook ten rounds and an evaluation at a time.

    Which devices are active, and so how many rows a round has, differs from round to round. So everything is done
    three times, the best counts, and of these the mean.
    """
    federation = synthetic("S1", seed=0)
    books = {"NumPy's own float64": (np.float64, 15), "float32": (np.float32, None)}
    copies = [[TextbookRun(federation, dtype) for _ in range(REPEATS)] for dtype, _ in books.values()]
    options: dict[str, Any] = {"participation": 0.3, "tol": 0.0, "evaluate_every": EVALUATE_EVERY}
    fit(federation, METHOD, rounds=EVALUATE_EVERY, **options)  # Compiles.
    ours = [lambda: fit(federation, METHOD, rounds=sizes.rounds, **options)] * REPEATS
    contestants: list[Any] = [ours, *([book.evaluated_rounds for book in alike] for alike in copies)]
    turns = [[min(map(once, alike)) for alike in contestants] for _ in range(TURNS)]
    fast, *tens = np.mean(turns, axis=0)
    what = f"S1, lambda 0.6, {sizes.rounds} rounds of {STEPS} steps, evaluation every {EVALUATE_EVERY}, no refit"
    for (precision, (_, goal)), ten in zip(books.items(), tens, strict=True):
        rounds = TURNS * EVALUATE_EVERY
        against = f"textbook loops, NumPy gradients, {precision}: {rounds} rounds, times {sizes.rounds / rounds:.3g}"
        yield Figure("whole run", what, against, fast, ten * sizes.rounds / EVALUATE_EVERY, "s", goal)


def growth_curves(sizes: BenchSizes) -> Iterator[Curve]:
    """Measure growth of local steps with the rows of a device."""
    model, everyone = SoftmaxRegression().sized(GROWTH_FEATURES, GROWTH_CLASSES), np.arange(GROWTH_DEVICES)
    w, rng = np.zeros((GROWTH_DEVICES, model.d), np.float32), np.random.default_rng(0)

    def steps(n: int) -> float:
        X = rng.normal(size=(GROWTH_DEVICES * n, GROWTH_FEATURES)).astype(np.float32)
        rows = Rows(X, rng.integers(0, GROWTH_CLASSES, len(X)), n * everyone, n * everyone + n)
        data = model.load(rows, np.float32)
        run = partial(model.train, data, everyone, w, w, 1.0, WORK)
        return race(run, seconds=sizes.seconds / 4, burst=8)[0]

    size = f"{GROWTH_DEVICES} devices, {GROWTH_FEATURES} features, {GROWTH_CLASSES} classes"
    what = f"{STEPS} softmax steps of {size}"
    yield Curve.measured(what, "rows of a device", sizes.over_rows, steps)


def network_figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Measure a round of the paper's CNN, in process and on two workers; nothing where there is no PyTorch.

    Images are random: how long a step takes does not depend on them.
    """
    if importlib.util.find_spec("torch") is None:
        return
    rng = np.random.default_rng(0)
    X = rng.random((NETWORK_DEVICES, sizes.images, 1, 28, 28), dtype=np.float32)
    parts = list(zip(X, rng.integers(0, 10, X.shape[:2]), strict=True))
    federation = Federation.from_arrays(parts, test=0.0, validation=0.0)
    model = model_called("cnn").sized(784, 10, (1, 28, 28))
    w = model.initial("auto", rng).astype(np.float32)
    task = Train(Work(steps=1, lr=NETWORK_LR, batch=BATCH), w, w[model.fused], rho=1.0)

    def round_on(engine: Engine) -> None:
        engine.submit([Order(i, 1, task) for i in range(NETWORK_DEVICES)])
        replies = 0
        while replies < NETWORK_DEVICES:
            replies += len(engine.collect())

    def torch_round() -> None:
        for own in parts:
            torch_epoch(model.module_with(w), *own)

    what = f"the paper's CNN, {NETWORK_DEVICES} devices, {sizes.images} rows each, one epoch of batches of {BATCH}"
    for name, engine in (
        ("CNN round", InProcess(federation, model)),
        ("CNN round, two workers", Workers(federation, model, workers=2)),
    ):
        fast, slow = race(partial(round_on, engine), torch_round, seconds=2 * sizes.seconds, burst=1)
        engine.close()
        yield Figure(name, what, "a plain PyTorch loop, all cores", fast, slow, "s")


def torch_epoch(module: Any, X: Floats, y: Ints) -> None:
    """Train a module on batches for an epoch by `torch.optim.SGD`, without a proximal term."""
    import torch
    from torch.nn import functional

    optimiser = torch.optim.SGD(module.train().parameters(), lr=NETWORK_LR)
    x, classes = torch.from_numpy(X), torch.from_numpy(y)
    for rows in torch.split(torch.from_numpy(np.random.default_rng(1).permutation(len(x))), BATCH):
        optimiser.zero_grad()
        torch.autograd.backward(functional.cross_entropy(module(x[rows]), classes[rows]))
        optimiser.step()
