"""Rounds and floats of FPFC until S1's four groups are found: communication, which no machine changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fedfuse import FPFC, Settings, Work
from fedfuse.bench.local_training import begun
from fedfuse.bench.measurement import BenchSizes, Figure
from fedfuse.core.partitions import adjusted_rand
from fedfuse.data.synthetic import synthetic

METHODS = {"lambda 0.6, exact local solves": FPFC(lam=0.6, work=Work(solver="exact")), "the fusion path": FPFC()}
# Rounds of 30 devices that are enough, and rounds after which nothing more is expected.
GOAL_ROUNDS, MAX_ROUNDS = 40, 200
# Floats of FPFC on S1 in the paper's Table 1.
PAPER_FLOATS = 7.3e7


def figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Count rounds of pairwise fusion until the groups are those of the truth, and floats from the first message on."""
    for name, method in METHODS.items():
        rounds, floats = until_grouped(method)
        what = f"S1, {name}, 30 of 100 active, until ARI 1, refit apart"
        yield Figure("rounds", what, "the goal", rounds, GOAL_ROUNDS, "rounds", 1, "at most")
        yield Figure("floats", what, "the paper's Table 1", floats, PAPER_FLOATS, "")


def until_grouped(method: FPFC, seed: int = 0) -> tuple[float, int]:
    """Return the rounds with finite residuals until the groups are right (inf: they never are), and all floats."""
    federation = synthetic("S1", seed=seed)
    run = begun(federation, method, Settings(participation=0.3, seed=seed))
    rounds = 0
    while rounds < MAX_ROUNDS and not run.over:
        row = run.round()
        run.history.append(row)
        rounds += bool(np.isfinite(row["primal"]))
        if rounds and adjusted_rand(federation.truth, run.rule.current(run.state).labels) == 1:
            return rounds, run.ledger.floats
    return np.inf, run.ledger.floats
