"""FPFC on a graph of ten neighbours beside all pairs: are the groups the same, and how much do models differ?

S1 from a common start (lambda 0.6, 200 rounds, 30 of 100 devices, no refit), and 1,000 devices in four groups from
local optima (ten parameters, quadratic losses, exact local work, 60 rounds of 300 devices).
Command: python benchmarks/neighbours.py (1 min)
"""

from __future__ import annotations

import numpy as np

import fedfuse as ff
from fedfuse.bench.server_step import APART, PENALTY, draws, grouped
from fedfuse.utils.typing import Floats, Ints

GRAPHS = (None, "knn:10")
HEAD = """| | same labels | groups | mean difference of models | accuracy: all pairs, graph |
| --- | --- | --- | --- | --- |"""


def s1_row(seed: int) -> str:
    federation = ff.data.synthetic("S1", seed=seed)
    dense, sparse = (
        ff.fit(federation, ff.FPFC(lam=0.6, graph=g, refit=False), rounds=200, participation=0.3, seed=seed)
        for g in GRAPHS
    )
    # the same number in all classes changes no prediction
    models = [each.models.reshape(federation.m, federation.n_classes, -1) for each in (dense, sparse)]
    flat = [(each - each.mean(axis=1, keepdims=True)).reshape(federation.m, -1) for each in models]
    scores = f"{dense.score():.3f}, {sparse.score():.3f}"
    return row(f"S1, seed {seed}", (dense.labels, sparse.labels), (flat[0], flat[1]), flat[0], scores)


def thousand_row() -> str:
    optima, truth = grouped(1000, 10, APART, width=0.1).astype(np.float64), np.arange(1000) % 4
    dense, sparse = (ff.FusionState(optima, PENALTY, warm=True, dtype=np.float64, graph=g) for g in GRAPHS)
    for active in draws(1000, 0.3, 60):
        for state in (dense, sparse):
            state.update(active, (optima[active] + state.anchors(active)) / 2)
    width = optima - np.stack([optima[truth == g].mean(axis=0) for g in range(4)])[truth]
    labels = dense.labels(0.05), sparse.labels(0.05)
    return row("1,000 devices, of how much optima differ in a group", labels, (dense.omega, sparse.omega), width, "")


def row(what: str, labels: tuple[Ints, Ints], models: tuple[Floats, Floats], unit: Floats, scores: str) -> str:
    """Return a row: the mean difference is a share of the mean length of ``unit``."""
    apart, length = (np.linalg.norm(each, axis=1).mean() for each in (models[0] - models[1], unit))
    same = "yes" if (labels[0] == labels[1]).all() else "no"
    return f"| {what} | {same} | {labels[0].max() + 1}, {labels[1].max() + 1} | {apart / length:.1%} | {scores} |"


if __name__ == "__main__":
    print(HEAD)
    print(thousand_row(), flush=True)
    for seed in (0, 1):
        print(s1_row(seed), flush=True)
