"""Devices that come late: the paper's Table 3, every method by its own rule.

What: S1 (uniform features); a fifth of the devices, drawn by group, is not in training and joins afterwards. For
every method the test accuracy of the newcomers (mean and standard deviation over them), that of the devices that were
trained, the share of newcomers that came to their own group, and the exchanges with each. Settings that a method
leaves open are chosen on validation rows. For the fusion tree also: newcomers of a group that was not in training at
all, which fit none.
Command: python benchmarks/newcomers.py [--data synthetic:S1] [--rounds 100] [--seeds 3] [--out newcomers.csv]
How long, and what was seen: see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import pandas as pd

import fedfuse as ff
from fedfuse.data.catalog import load
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Ints

WORK = ff.Work(steps=10, lr=0.1)
METHODS: dict[str, Any] = {
    "fusion-tree": ff.FusionTree(),
    "fpfc": ff.FPFC(lam=0.6, work=WORK),
    "fpfc-l1": ff.FPFCL1(work=WORK),
    "local": ff.Local(work=WORK),
    "fedavg": ff.FedAvg(work=WORK),
    "lg-fedavg": ff.LGFedAvg(work=WORK),
    "per-fedavg": ff.PerFedAvg(work=WORK),
    "ifca": ff.IFCA(work=WORK, n_models=4),
    "cfl": ff.CFL(work=WORK),
    "pacfl": ff.PACFL(work=WORK),
}


def late(truth: Ints, share: float, seed: int) -> Ints:
    """Return the newcomers: this share of every group."""
    rng, groups = generator(seed, "newcomers"), [np.flatnonzero(truth == g) for g in np.unique(truth)]
    return np.sort(np.concatenate([rng.choice(g, max(1, round(share * len(g))), replace=False) for g in groups]))


def own_group(result: ff.Result, truth: Ints) -> dict[int, int]:
    """Return the group found that most devices of each true group are in."""
    return {int(g): int(np.bincount(result.labels[truth == g]).argmax()) for g in np.unique(truth)}


def one(federation: ff.Federation, method: Any, newcomers: Ints, rounds: int, seed: int) -> dict[str, Any]:
    assert federation.truth is not None
    old = np.setdiff1d(np.arange(federation.m), newcomers)
    share, rounds = (1.0, 500) if method == ff.FusionTree() else (0.3, rounds)  # it ends by itself
    result = ff.fit(
        federation.only(old), method, ff.SoftmaxRegression(), rounds=rounds, participation=share, seed=seed, tol=0
    )
    joined = result.admit(federation.only(newcomers))
    home = own_group(result, federation.truth[old])
    right = [joined.clusters[k] == home.get(int(federation.truth[i]), -1) for k, i in enumerate(newcomers)]
    none = [c is None for c in joined.clusters]
    # what a device of the same group has that was trained
    alike = [result.scores["test"][federation.truth[old] == federation.truth[i]] for i in newcomers]
    same = [scores.mean() for scores in alike if scores.size] or [np.nan]
    return {
        "newcomers": joined.score(), "sd": float(np.std(joined.scores)), "their groups": float(np.mean(same)),
        "trained": result.score(), "right": float(np.mean(right)), "none": float(np.mean(none)),
        "exchanges": max(joined.iterations), "floats each": joined.cost_floats / len(newcomers),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="synthetic:S1")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default=";".join(METHODS), help="names with ; between them")
    parser.add_argument("--out", default="newcomers.csv")
    options = parser.parse_args()
    rows = []
    for name in options.methods.split(";"):
        for seed in range(options.seeds):
            federation, began = load(options.data, seed=seed), time.time()
            assert federation.truth is not None
            found = one(federation, METHODS[name], late(federation.truth, 0.2, seed), options.rounds, seed)
            rows.append({"method": name, "seed": seed, **found})
            print(name, seed, {k: round(v, 4) for k, v in found.items()}, f"{time.time() - began:.0f} s", flush=True)
            if name == "fusion-tree":  # and with a group that nobody has seen
                strangers = np.flatnonzero(federation.truth == seed % (federation.truth.max() + 1))
                found = one(federation, METHODS[name], strangers, options.rounds, seed)
                rows.append({"method": "fusion-tree, a group not in training", "seed": seed, **found})
    table = pd.DataFrame(rows)
    table.to_csv(options.out, index=False)
    print(table.drop(columns="seed").groupby("method", sort=False).mean().round(3).to_string())


if __name__ == "__main__":
    main()
