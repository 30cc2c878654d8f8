"""Tables as they come, each by one command: files of other countries and programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

WORDS = ("--device", "Straße", "--target", "Höhe", "--no-baselines", "--no-report", "--out", "run")


def streets(rows=30):
    """Six streets in two groups with slopes of opposite sign."""
    rng = np.random.default_rng(0)
    names = np.repeat([f"Süd {i}" for i in range(6)], rows)
    x = rng.normal(size=len(names))
    y = np.where(names < "Süd 3", 3, -3) * x + 0.3 * rng.normal(size=len(names))
    return pd.DataFrame({"Straße": names, "x": x, "Höhe": y})


def labels():
    return pd.read_csv("run/labels.csv").set_index("device")["group"]


def write(frame, kind):
    if kind == "xlsx":
        pytest.importorskip("openpyxl")
        frame.to_excel("t.xlsx", index=False)
        return "t.xlsx"
    how = {"latin": {"sep": ";", "decimal": ",", "encoding": "latin-1"}, "tabs": {"sep": "\t", "encoding": "utf-16"}}
    frame.to_csv("t.csv", index=False, **how[kind])
    return "t.csv"


@pytest.mark.parametrize("kind", ["latin", "tabs", "xlsx"])
def test_files_of_other_countries_and_programs(fedfuse, kind):
    """The same groups, and predictions for the same file, whatever wrote it."""
    frame = streets()
    path = write(frame, kind)
    status, out, err = fedfuse("run", path, *WORDS)
    assert status == 0
    assert "in 2 groups" in out.splitlines()[0]
    assert err == ("note: t.csv is not UTF-8 text: read as cp1252 (Western European)\n" if kind == "latin" else "")
    assert labels().groupby(labels()).size().tolist() == [3, 3]
    status, out, _ = fedfuse("predict", "run", path, "--out", "p.csv")
    assert status == 0
    assert np.corrcoef(pd.read_csv("p.csv")["prediction"], frame["Höhe"])[0, 1] > 0.95


def test_whole_numbers_that_are_taken_as_classes_are_said(fedfuse):
    frame = streets()
    frame["Höhe"] = np.digitize(frame["Höhe"], [-2, 0, 2])
    frame.to_csv("t.csv", index=False)
    status, _, err = fedfuse("run", "t.csv", *WORDS)
    assert status == 0
    assert "note: the target column 'Höhe' has 4 different whole numbers: taken as classes; --task regression" in err
    status, _, err = fedfuse("run", "t.csv", *WORDS[:-1], "numbers", "--task", "regression")
    assert (status, err) == (0, "")
    assert json.loads(Path("numbers/summary.json").read_text())["metric"] == "rmse"
