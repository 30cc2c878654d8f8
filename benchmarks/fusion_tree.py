"""The fusion tree on the paper's data: groups, scores against the oracle and local models, floats sent.

    python benchmarks/fusion_tree.py [S1,S2,S3,S4,S5,housing-bodyfat] [0,1,2]

Housing and body fat needs its files in $FEDFUSE_DATA.
"""

from __future__ import annotations

import sys

import numpy as np

import fedfuse as ff
from fedfuse.data.catalog import load
from fedfuse.grouping.refit import Oracle
from fedfuse.training.evaluation import Baselines


def row(name: str, features: str, seed: int) -> tuple[float, float, float]:
    """Run one case and print it; return the scores of fusion tree, oracle and local models."""
    synthetic = name.startswith("S")
    federation = load(f"synthetic:{name}" if synthetic else name, features=features, seed=seed)
    options = {"seed": seed, "participation": 0.3, "rounds": 2000, "evaluate_every": 10**6}
    result = ff.fit(federation, ff.FusionTree(), **options)
    oracle = ff.fit(federation, Oracle(), **options).score("test") if name != "S5" else np.nan
    local = float(np.nanmean(Baselines.of(federation, result.model).scores["local"]))
    print(
        f"{name:16s} {features:8s} seed {seed}  groups {result.n_clusters:3d}  ARI {result.ari:.3f}  "
        f"test {result.score('test'):.4f}  oracle {oracle:.4f}  local {local:.4f}  floats {result.cost_floats:.3g}  "
        f"stability {result.stability:.2f}{'  UNCERTAIN' if result.uncertain else ''}  {result.seconds:.1f} s",
        flush=True,
    )
    return result.score("test"), oracle, local


def main(names: str = "S1,S2,S3,S4,S5,housing-bodyfat", seeds: str = "0,1,2") -> None:
    """Run all cases, and print the means over seeds."""
    for name in names.split(","):
        for features in ("uniform", "normal") if name.startswith("S") else ("uniform",):
            scores = [row(name, features, int(seed)) for seed in seeds.split(",")]
            tree, oracle, local = np.mean(scores, axis=0)
            print(f"  mean: fusion-tree {tree:.4f}  oracle {oracle:.4f}  local {local:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
