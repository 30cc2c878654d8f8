"""Tables for tests: a small one, and one with every kind of column."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedfuse.data import federation_from_frame

N = 120


def frame_with(n=N, **columns):
    """A table with two sites and a numeric feature; further columns as given."""
    rng = np.random.default_rng(1)
    base = {"site": np.array(["a", "b"])[np.arange(n) % 2], "x": rng.normal(5, 2, n), "y": rng.normal(size=n)}
    return pd.DataFrame({**base, **columns})


def build(frame, **options):
    return federation_from_frame(frame, **{"device": "site", "target": "y", **options})


def rich_frame(n=400, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "site": rng.choice(["s1", "s2", "s10"], n),
            "age": rng.integers(20, 90, n),
            "dose": np.where(rng.random(n) < 0.2, np.nan, rng.gamma(2, 3, n)),
            "sex": rng.choice(["f", "m"], n),
            "smoker": rng.random(n) < 0.3,
            "ward": rng.choice(["north", "south", "east", None], n),
            "code": rng.choice([f"c{k}" for k in range(50)], n, p=np.array([0.3, 0.3, *[0.4 / 48] * 48])),
            "day": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D"),
            "grade": pd.Categorical(rng.choice([1, 2, 3], n)),
            "outcome": rng.choice(["ill", "well"], n),
        }
    )
