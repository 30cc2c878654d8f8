"""Accuracy and confidence of the fusion tree on random federations.

    python benchmarks/random_federations.py [number] [first seed] [linear]

Each is drawn at random: 8 to 200 devices, 1 to 12 groups of unequal sizes, linear or softmax, few or many rows, groups
from easy to barely separable. Prints one row each: agreement with the truth, score minus the oracle's, and the run's
own stability. With ``linear``, the next ``number`` of those that are for linear regression.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import count, islice

import numpy as np

import fedfuse as ff
from fedfuse.data.federation import Federation
from fedfuse.grouping.refit import Oracle


def draw(seed: int) -> tuple[Federation, str]:
    """Draw a federation and say what it is."""
    rng = np.random.default_rng([20261115, seed])
    m = int(np.exp(rng.uniform(np.log(8), np.log(201))))
    groups = int(rng.integers(1, min(12, m // 2) + 1))
    share = rng.dirichlet(np.full(groups, 2.0))
    truth = np.sort(np.concatenate([np.arange(groups), rng.choice(groups, m - groups, p=share)]))
    p = int(rng.integers(2, 31))
    classes = int(rng.choice([0, 2, 3, 5]))
    median = float(np.exp(rng.uniform(np.log(30), np.log(500))))
    counts = np.maximum(15, rng.lognormal(np.log(median), 0.8, m)).astype(int)
    separation = float(np.exp(rng.uniform(np.log(0.15), np.log(3))))
    common = rng.normal(size=(max(classes, 1), p + 1))
    models = common + separation * rng.normal(size=(groups, max(classes, 1), p + 1))
    mean, noise = rng.normal(size=p) * rng.choice([0, 1]), float(rng.uniform(0.3, 2))
    data = []
    for g, n in zip(truth, counts, strict=True):
        X = mean + rng.normal(size=(n, p))
        scores = X @ models[g, :, :-1].T + models[g, :, -1]
        if classes:
            y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
        else:
            y = scores[:, 0] + noise * rng.normal(size=n)
        data.append((X, y))
    what = f"m={m} groups={groups} p={p} classes={classes} rows~{median:.0f} separation={separation:.2f}"
    goal = "classification" if classes else "regression"
    return Federation.from_arrays(data, truth=truth, goal=goal, seed=seed), what


def drawn(first: int, linear: bool) -> Iterator[tuple[int, Federation, str]]:
    """Draw one after the other."""
    for seed in count(first):
        federation, what = draw(seed)
        if not linear or federation.goal == "regression":
            yield seed, federation, what


def main(number: str = "30", first: str = "0", only: str = "") -> None:
    """Run and print."""
    agreements, gaps, models, wrong_and_sure = [], [], [], 0
    for seed, federation, what in islice(drawn(int(first), only == "linear"), int(number)):
        clock = time.perf_counter()
        result = ff.fit(federation, ff.FusionTree(), seed=seed, tol=0)
        seconds = time.perf_counter() - clock
        oracle = ff.fit(federation, Oracle(), seed=seed)
        sign = 1 if federation.goal == "classification" else -1
        gap = sign * (result.score("test") - oracle.score("test"))
        if federation.goal == "regression":
            gap /= oracle.score("test")
        agreements.append(result.ari)
        gaps.append(gap)
        models.append(result.cost_floats / result.models.size)
        wrong_and_sure += result.ari < 0.9 and not result.uncertain
        print(
            f"{seed:3d} {what:70s} found={result.n_clusters:3d} ARI {result.ari:.3f} gap {gap:+.4f} "
            f"stability {result.stability:.2f} unsure {len(result.unsure)} "
            f"{'UNCERTAIN' if result.uncertain else 'sure'} {seconds:.1f}s",
            flush=True,
        )
    quantiles = [0, 0.1, 0.25, 0.5, 0.75, 1]
    for name, values in (("ARI", agreements), ("score minus oracle (accuracy; RMSE relative)", gaps)):
        found = np.quantile(values, quantiles).round(4)
        print(f"{name}: mean {np.mean(values):.4f}, quantiles 0/10/25/50/75/100 %: {found}")
    print("models sent for each device:", np.mean(models).round(1))
    print("ARI below 0.9 without saying so:", wrong_and_sure)


if __name__ == "__main__":
    main(*sys.argv[1:])
