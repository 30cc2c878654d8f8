"""Asynchronous against synchronous FPFC on a virtual clock (the paper's section 6.4.3).

What: synthetic data like S1 with 20 nodes in four groups, FPFC with lambda = 0.6, every update delayed by
uniform(0, 20) seconds. Synchronous: 5 of 20 nodes are active in a round and the slowest is waited for. Asynchronous:
all nodes are at work and the server updates on every reply, for half of the simulated time of the former. The figure is
the time at which asynchronous training stays at or above the final test accuracy of synchronous training, relative to
the whole time of the latter. Test rows are only looked at.
How long: about a minute on two cores. Command:
    python benchmarks/asynchronous.py [--rounds 400] [--seeds 3] [--delay "uniform(0,20)"]
Measured: see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

import fedfuse as ff
from fedfuse.core.partitions import adjusted_rand
from fedfuse.data.synthetic import synthetic

SIZES, ACTIVE, LAM = "5,5,5,5", 5, 0.6


class Until(ff.Callback):
    """Ends a run at some time on its clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def on_round(self, run: Any, row: dict[str, Any]) -> None:
        """Lower the limit on rounds to those that were."""
        if row["time"] >= self.seconds and run.k % run.settings.evaluate_every == 0:
            run.settings = replace(run.settings, rounds=run.k)


def both(seed: int, rounds: int, delay: str, compute: str) -> dict[str, ff.Result]:
    """Train both ways, the second for half of the simulated time."""
    federation = synthetic(SIZES, seed=seed)
    method = ff.FPFC(lam=LAM, work=ff.Work(steps=10, lr=0.1))
    common: dict[str, Any] = {"seed": seed, "tol": 0.0, "delay": delay, "compute": compute, "dataset": SIZES}
    sync = ff.fit(federation, method, rounds=rounds, participation=ACTIVE / federation.m, evaluate_every=5, **common)
    half = Until(0.5 * float(sync.history["time"].iloc[-1]))
    one = ff.fit(federation, method, rounds=10**7, mode="async", evaluate_every=50, callbacks=[half], **common)
    return {"synchronous, 5 of 20 active": sync, "asynchronous": one}


def time_to(result: ff.Result, target: float) -> float:
    """Return when the test accuracy is at the target for good."""
    seen = result.history[result.history["test"].notna()]
    below = np.flatnonzero(seen["test"].to_numpy() < target)
    after = below[-1] + 1 if below.size else 0
    return float(seen["time"].iloc[after]) if after < len(seen) else float("inf")


def main() -> None:
    """Print one line per seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--delay", default="uniform(0,20)")
    parser.add_argument("--compute", default="0")
    given = parser.parse_args()
    for seed in range(given.seeds):
        runs = both(seed, given.rounds, given.delay, given.compute)
        sync, one = runs.values()
        whole = float(sync.history["time"].iloc[-1])
        target = float(sync.history["test"].dropna().iloc[-1])
        share = time_to(one, target) / whole
        print(
            f"seed {seed}: synchronous {target:.4f} after {whole:,.0f} s; asynchronous there after {share:.2f} of it "
            f"({one.history['test'].dropna().iloc[-1]:.4f} after {one.history['time'].iloc[-1] / whole:.2f}); "
            f"groups {sync.n_clusters} and {one.n_clusters}, ARI {sync.ari:.2f} and {one.ari:.2f}, "
            f"between them {adjusted_rand(sync.labels, one.labels):.2f}; "
            f"staleness {one.history['staleness'].mean():.1f} on average, {one.history['staleness'].max()} at most",
            flush=True,
        )


if __name__ == "__main__":
    main()
