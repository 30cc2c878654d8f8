"""A whole run of synthetic:S1 with a given lambda, against textbook loops with NumPy gradients for every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from fedfuse.bench.figure import Figure
from fedfuse.bench.local import METHOD, STEPS, Problem, TextbookRun
from fedfuse.bench.sizes import BenchSizes
from fedfuse.bench.timing import once
from fedfuse.core.partitions import components
from fedfuse.data.synthetic import synthetic
from fedfuse.training.fit import fit
from fedfuse.utils.typing import Floats, Ints

EVALUATE, NU, TURNS, TIMES = 10, 0.5, 4, 3


def figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Time runs from data to result; of the textbook ten rounds and an evaluation at a time.

    Which devices are active, and so how many rows a round has, differs from round to round. So everything is done
    three times, the best counts, and of these the mean.
    """
    problem = Problem(synthetic("S1", seed=0))
    books = {"NumPy's own float64": np.float64, "float32": np.float32}
    jobs = [[TextbookJob(Problem(problem.federation, dtype)) for _ in range(TIMES)] for dtype in books.values()]
    _run(problem, EVALUATE)  # compiles
    runs = [lambda: _run(problem, sizes.rounds)] * TIMES
    turns = [[_best(runs), *(_best([job.ten for job in alike]) for alike in jobs)] for _ in range(TURNS)]
    fast, *tens = (fmean(column) for column in zip(*turns, strict=True))
    what = f"S1, lambda 0.6, {sizes.rounds} rounds of {STEPS} steps, evaluation every {EVALUATE}, no refit"
    for precision, ten, goal in zip(books, tens, (15, None), strict=True):
        slow, rounds = ten * sizes.rounds / EVALUATE, TURNS * EVALUATE
        against = f"textbook loops, NumPy gradients, {precision}: {rounds} rounds, times {sizes.rounds / rounds:.3g}"
        yield Figure("whole run", what, against, fast, slow, "s", slow / fast, goal)


def _best(alike: Sequence[Callable[[], object]]) -> float:
    """Return the best time of those that do the same."""
    return min(once(run) for run in alike)


def _run(problem: Problem, rounds: int) -> None:
    method = replace(METHOD, refit=False)
    fit(problem.federation, method, rounds=rounds, participation=0.3, tol=0.0, evaluate_every=EVALUATE)


class TextbookJob:
    """Rounds of the textbook, and what a run looks at every few of them: clusters, and accuracy of every device."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._run = problem, TextbookRun(problem)
        rows = [problem.federation.rows(part) for part in ("validation", "test")]
        own = [part.of(i) for part in rows for i in range(problem.federation.m)]
        self._held: list[tuple[Floats, Ints]] = [(np.column_stack([X, np.ones(len(X))]), y) for X, y in own]

    def ten(self) -> tuple[Ints, float]:
        """Do ten rounds; return clusters and mean accuracy."""
        for _ in range(EVALUATE):
            self._run.round()
        weights = self._problem.matrices(self._run.omega)
        right = [
            np.mean((X @ W.T).argmax(axis=1) == y) for (X, y), W in zip(self._held, [*weights, *weights], strict=True)
        ]
        return components(np.linalg.norm(self._run.theta, axis=2), NU), float(np.mean(right))
