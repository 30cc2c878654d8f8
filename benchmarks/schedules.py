"""Growing local work against constant work, at the same number of mini-batch steps in all (the paper's section 6.4.4).

What: MNIST with swapped labels, 20 devices of which 10 are active, the paper's CNN, FPFC with a given lambda; 1,000
mini-batch steps per device slot in all: T = 5 for 200 rounds, T = 10 for 100 rounds, or T = ceil(k / 2) for 63. The
paper prints 86.62 % for growing steps after 62 rounds, 85.31 % for T = 10 and 77.05 % for T = 5.
Command: python benchmarks/schedules.py [--data mnist] [--lr 0.02] [--momentum 0]
"""

from __future__ import annotations

import argparse

from fedfuse import FPFC, Grow, Work
from fedfuse.data.catalog import load
from fedfuse.training.fit import fit

STEPS = {"T = 5": (5, 200), "T = 10": (10, 100), "growing": (Grow(2), 63)}
AT = 62  # rounds after which the paper compares
SOURCE = {"features": "uniform", "device": None, "target": None, "goal": None, "data_dir": None}


def main() -> None:
    """Print test accuracy after 62 rounds and at the end of the budget."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--lam", type=float, default=0.4)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    federation = load(dataset=asked.data, seed=asked.seed, **SOURCE)
    print(f"{'steps':10} {'rounds':>6} {'after 62':>9} {'at the end':>10} {'ARI':>6}")
    for name, (steps, rounds) in STEPS.items():
        work = Work(steps=steps, lr=asked.lr, batch=100, momentum=asked.momentum, unit="batches")
        method = FPFC(lam=asked.lam, work=work)
        options = {"participation": 0.5, "rounds": rounds, "evaluate_every": AT, "budget": 1000, "tol": 0}
        result = fit(federation, method, seed=asked.seed, dataset=asked.data, **options)
        after = result.history["test"].dropna().iloc[0]
        print(f"{name:10} {result.rounds:6} {after:9.4f} {result.score('test'):10.4f} {result.ari:6.3f}", flush=True)


if __name__ == "__main__":
    main()
