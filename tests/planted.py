"""Small federations and tables whose groups are known, and a callback that keeps the run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from fedfuse.data.federation import Federation
from fedfuse.training import Callback


class Keep(Callback):
    """Remembers the run, so that a test can look at its state."""

    run = None

    def on_start(self, run):
        self.run = run


def planted(goal="regression", m=6, n=40, p=3, groups=2, noise=0.1, seed=0, **splits):
    """Devices of unequal size; device i belongs to group ``i * groups // m``."""
    rng = np.random.default_rng(seed)
    classes = 3 if goal == "classification" else 1
    W = 3 * rng.normal(size=(groups, p, classes))
    truth = np.arange(m) * groups // m
    data = {}
    for i, g in enumerate(truth):
        X = rng.normal(size=(n + 7 * (i % 3), p))
        scores = X @ W[g] + 0.5 + noise * rng.normal(size=(len(X), classes))
        data[f"d{i}"] = (X, scores.argmax(axis=1) if classes > 1 else scores[:, 0])
    return Federation.from_arrays(data, goal=goal, truth=truth, seed=seed, **splits)


def permuted(federation, order):
    """The same devices in another order, with the same rows in the same parts."""
    pieces = [np.arange(federation.cuts[i, 0], federation.cuts[i, 3]) for i in order]
    rows, starts = np.concatenate(pieces), np.cumsum([0, *(len(p) for p in pieces)])[:-1]
    cuts = federation.cuts[order] - federation.cuts[order, :1] + starts[:, None]
    return replace(
        federation,
        names=tuple(federation.names[i] for i in order),
        X=federation.X[rows],
        y=federation.y[rows],
        cuts=cuts,
        truth=None if federation.truth is None else federation.truth[order],
    )


def visits(n=2500, seed=0):
    """Ten sites in two groups: age counts the other way in the second; ward counts the same everywhere."""
    rng = np.random.default_rng(seed)
    site = rng.integers(0, 10, n)
    frame = pd.DataFrame(
        {
            "site": site,
            "age": rng.normal(50, 12, n).round(1),
            "dose": np.where(rng.random(n) < 0.1, np.nan, rng.gamma(2, 3, n)),
            "ward": rng.choice(["north", "south", "east"], n),
        }
    )
    score = np.where(site < 6, 1, -1) * (frame["age"] - 50) / 6 + (frame["ward"] == "north")
    frame["stay"] = 20 + score + 0.1 * rng.normal(size=n)
    frame["outcome"] = np.where(score + rng.logistic(size=n) > 0.3, "well", "ill")
    return frame
