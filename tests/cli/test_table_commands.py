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
    assert "form 2 groups" in out.splitlines()[0]
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


def test_a_table_split_by_year(fedfuse):
    """The last year is the test of all sites, is said, and is the same after resume."""
    frame = streets().assign(year=np.tile(np.repeat([2019, 2020, 2021], 10), 6))
    frame.loc[frame["year"] == 2021, "Höhe"] += 100
    frame.to_csv("t.csv", index=False)
    status, _, err = fedfuse("run", "t.csv", *WORDS, "--split-by", "year")
    assert (status, err) == (0, "note: 60 of 180 rows are for the test: those with year 2021\n")
    assert json.loads(Path("run/summary.json").read_text())["test"] > 90  # Nobody has learned of the rise.
    assert json.loads(Path("run/config.json").read_text())["source"]["split_by"] == "year"
    assert fedfuse("report", "run")[0] == 0


def test_sites_with_one_row_join_afterwards(fedfuse, refused):
    frame = streets()
    x = np.array([-2.0, 2, 1])
    few = pd.DataFrame({"Straße": ["Weg 1", "Weg 2", "Weg 2"], "x": x, "Höhe": 3 * x})
    pd.concat([frame, few]).to_csv("t.csv", index=False)
    assert "join afterwards (--min-rows 3)" in refused("run", "t.csv", *WORDS)
    status, out, err = fedfuse("run", "t.csv", *WORDS, "--min-rows", "5")
    assert status == 0
    assert err.startswith("note: devices with fewer than 5 rows are left out of the search for groups: 2 of 8 (Weg 1")
    group = labels()["Süd 0"]
    assert f"2 straßes with few rows joined after the groups were found: 2 in group {group}" in " ".join(out.split())
    status, out, err = fedfuse("predict", "run", "t.csv", "--out", "p.csv")
    assert (status, err) == (0, "")
    np.testing.assert_allclose(pd.read_csv("p.csv")["prediction"][-3:], 3 * x, atol=0.3)
    Path("t.csv").rename("moved.csv")  # A run that is complete needs its table no more.
    assert fedfuse("resume", "run")[0] == 0
    assert "no device has --min-rows 99 rows; the largest has 30" in refused(
        "run", "moved.csv", *WORDS[:-1], "other", "--min-rows", "99"
    )


def test_dates_tell_the_season_and_the_weekend(fedfuse):
    frame = streets(60)
    when = pd.Timestamp("2021-01-01") + pd.to_timedelta(np.random.default_rng(1).integers(0, 1000, len(frame)), "D")
    season = 3 * np.sin(2 * np.pi * when.day_of_year / 365.25) + 2 * (when.day_of_week >= 5)
    frame.assign(**{"Tag": when.strftime("%Y-%m-%d"), "Höhe": frame["Höhe"] + season}).to_csv("t.csv", index=False)
    status, _, err = fedfuse("run", "t.csv", *WORDS)
    assert (status, err) == (0, "")
    found = json.loads(Path("run/summary.json").read_text())
    assert (found["n_clusters"], found["test"] < 0.4) == (2, True)  # The noise is 0.3.
