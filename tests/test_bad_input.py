"""What can go wrong with what people give: one clear line, and nothing left behind that stands in the way."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from fedfuse.report.charts import Axis

TABLE = ["reg.csv", "--device", "site", "--target", "y"]
RUN = ["run", *TABLE]


@pytest.fixture
def frame():
    """Six devices of 30 rows, two groups with slopes of opposite sign."""
    rng = np.random.default_rng(0)
    X, sign = rng.normal(size=(180, 3)), np.repeat([1, -1] * 3, 30)
    sites = np.repeat([f"h{i}" for i in range(6)], 30)
    target = 3 * sign * X[:, 0] + 0.3 * rng.normal(size=180)
    return pd.DataFrame({"site": sites, **dict(zip("abc", X.T, strict=True)), "y": target})


@pytest.fixture
def reg(here, frame):
    frame.to_csv("reg.csv", index=False)
    return frame


def test_an_axis_of_powers_without_a_positive_value():
    axis = Axis.around([0, np.nan, -1], log=True)
    assert 0 < axis.low < axis.high
    assert axis.ticks()


def test_a_comparison_in_which_nothing_is_sent(fedfuse, reg):
    """LOCAL costs nothing, and an axis of costs has no power of ten to begin with."""
    status, _, err = fedfuse("compare", *TABLE, "--methods", "local", "--seeds", "1", "--out", "c1")
    assert (status, err) == (0, "")
    assert fedfuse("resume", "c1")[0] == 0
    assert fedfuse("report", "c1")[0] == 0
