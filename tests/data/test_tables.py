"""Tables: targets, devices and files, and clear words for bad tables."""

from __future__ import annotations

import json
import logging

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedfuse.data import Federation, federation_from_frame
from fedfuse.errors import FedfuseError
from support.tables import N, build, frame_with, rich_frame


def test_infinity_in_a_row_that_is_dropped_does_no_harm():
    frame = frame_with()
    frame.loc[7, ["x", "y"]] = [np.inf, np.nan]
    assert build(frame).rows("all").counts.sum() == N - 1


# ------------------------------------------------------------------ target and devices


@pytest.mark.parametrize(
    ("y", "goal", "classes"),
    [
        (["no", "yes"], "classification", ("no", "yes")),
        ([True, False], "classification", (False, True)),
        ([0, 1], "classification", (0, 1)),
        ([0.0, 2.0], "classification", (0, 2)),
        (pd.Categorical([10, 9]), "classification", (9, 10)),
        ([0.5, 1.5], "regression", ()),
    ],
)
def test_goal_and_classes_are_told_from_the_target(y, goal, classes):
    column = pd.Series(y).repeat(N // 2).reset_index(drop=True)
    frame = frame_with(y=column)
    fed = build(frame)
    assert (fed.goal, fed.classes) == (goal, classes)
    assert (fed.encoder.goal, fed.encoder.classes) == (goal, classes)
    again = fed.encoder.targets(frame)
    assert [classes[k] for k in again] == column.tolist() if classes else np.array_equal(again, column)
    assert json.loads(json.dumps(fed.classes)) == list(classes)


def test_many_whole_numbers_are_values_unless_forced():
    frame = frame_with(n=210, y=np.arange(210) % 21)
    assert build(frame).goal == "regression"
    assert build(frame, goal="classification").n_classes == 21
    assert build(frame_with(y=np.arange(N) % 3), goal="regression").y.dtype == np.float64


def test_targets_that_cannot_be_used():
    with pytest.raises(FedfuseError, match="the target column 'y' holds 'no', but a regression needs numbers"):
        build(frame_with(y=["no", "yes"] * (N // 2)), goal="regression")
    with pytest.raises(FedfuseError, match=r"the target is 1\.0 in every row"):
        build(frame_with(y=1))
    with pytest.raises(FedfuseError, match=r"has 120 different values, 0 of them in at least 5 rows.*regression"):
        build(frame_with(), goal="classification")
    with pytest.raises(FedfuseError, match="has 2 different values, 1 of them"):
        build(frame_with(y=["u"] * (N - 1) + ["v"]))
    with pytest.raises(FedfuseError, match="target column 'y' holds dates"):
        build(frame_with(y=pd.Timestamp("2024-01-01")))
    with pytest.raises(FedfuseError, match="no row has both a device"):
        build(frame_with(y=np.nan))


def test_rare_classes_are_dropped_and_counted(caplog):
    y = np.array(["u", "v"])[np.arange(N) // 2 % 2].astype(object)
    y[:4] = "rare"
    with caplog.at_level(logging.WARNING, "fedfuse"):
        fed = build(frame_with(y=y))
    assert fed.classes == ("u", "v")
    assert fed.rows("all").counts.sum() == N - 4
    assert "4 of 120 rows are dropped: 1 classes have fewer than 5 rows each (rare)" in caplog.text


def test_rows_without_target_or_device_are_dropped_and_counted(caplog):
    frame = frame_with()
    frame.loc[:4, "y"] = np.nan
    frame.loc[10:12, "site"] = None
    with caplog.at_level(logging.WARNING, "fedfuse"):
        fed = build(frame)
    assert fed.rows("all").counts.sum() == N - 8
    assert "5 of 120 rows are dropped: no target (column 'y')" in caplog.text
    assert "3 of 120 rows are dropped: no device (column 'site')" in caplog.text


@pytest.mark.parametrize(
    ("sites", "names"),
    [
        (["site10", "site2", "site1"], ("site1", "site2", "site10")),
        ([10, 9, 100], ("9", "10", "100")),
        ([10.0, 9.0, np.nan], ("9", "10")),
        ([True, False, True], ("False", "True")),
        (pd.Categorical(["z", "b", "a"], categories=["z", "a", "b", "unused"]), ("a", "b", "z")),
    ],
)
def test_devices_are_named_by_text_in_natural_order(sites, names):
    column = pd.Series(sites).repeat(N // 3).reset_index(drop=True)
    frame = frame_with(site=column)
    fed = build(frame)
    assert fed.names == names
    # every row went to its own device
    values = dict(zip(frame["y"], fed.encoder.devices(frame), strict=True))
    for i, name in enumerate(names):
        assert {values[v] for v in fed.rows("all").of(i)[1]} == {name}


def test_devices_with_too_few_rows_are_named():
    site = np.array(["big"] * N, dtype=object)
    site[:3] = ["tiny", "tiny", "small"]
    with pytest.raises(FedfuseError, match=r"2 of 3 devices: 'small' \(1\), 'tiny' \(2\); each needs at least 3"):
        build(frame_with(site=site))


# ------------------------------------------------------------------ whole tables


def test_same_rows_as_the_arrays_and_only_once():
    frame = frame_with()
    fed = build(frame)
    back = dict(zip(fed.y, fed.X[:, 0] * fed.encoder.columns[0].sd + fed.encoder.columns[0].mean, strict=True))
    assert np.allclose([back[v] for v in frame["y"]], frame["x"])
    sites = {name: frame[frame["site"] == name] for name in "ab"}
    arrays = Federation.from_arrays({k: (v[["x"]], v["y"]) for k, v in sites.items()})
    assert np.array_equal(fed.y, arrays.y)
    assert np.array_equal(fed.cuts, arrays.cuts)


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 1000))
def test_the_index_of_the_frame_does_not_matter(seed):
    frame = rich_frame(120, seed)
    shifted = frame.set_index(pd.Index(np.arange(120)[::-1] * 7))
    a, b = (federation_from_frame(f, device="site", target="outcome") for f in (frame, shifted))
    assert a.fingerprint == b.fingerprint


def test_the_frame_is_left_alone():
    frame = rich_frame()
    before = frame.copy(deep=True)
    federation_from_frame(frame, device="site", target="outcome")
    pd.testing.assert_frame_equal(frame, before)


def test_from_frame_is_the_same():
    frame = rich_frame()
    fed = Federation.from_frame(frame, device="site", target="outcome", seed=3, test=0.3)
    same = federation_from_frame(frame, device="site", target="outcome", seed=3, test=0.3)
    assert fed.fingerprint == same.fingerprint


def test_numbered_columns_are_named_as_text():
    frame = frame_with()
    frame.columns = range(3)
    assert federation_from_frame(frame, device="0", target="2").features == ("1",)


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        (
            {},
            {"device": "sites"},
            "no device column 'sites'; did you mean 'site'. its columns are 'site', 'x', 'y'",
        ),
        ({}, {"target": "outcome"}, "no target column 'outcome'; its columns are 'site', 'x', 'y'"),
        ({}, {"target": "site"}, "both 'site'"),
        ({}, {"goal": "sorting"}, "goal must be"),
        ({}, {"test": 2}, "test must be a share"),
        ({"x": 1.0}, {}, "no usable feature column is left beside 'site' and 'y'"),
        ({"k": np.ones(N) * 1j}, {}, "column 'k' holds complex numbers"),
        ({"k": [[1], [2]] * (N // 2)}, {}, "column 'k' holds lists"),
    ],
)
def test_bad_tables_get_one_clear_line(change, options, words):
    with pytest.raises(FedfuseError, match=words) as caught:
        build(frame_with(**change), **options)
    assert "\n" not in str(caught.value)


def test_more_bad_tables():
    with pytest.raises(FedfuseError, match="expected a pandas DataFrame, got a list"):
        build([1, 2])
    with pytest.raises(FedfuseError, match="the table has no rows"):
        build(frame_with()[:0])
    with pytest.raises(FedfuseError, match="two columns are called 'x'"):
        build(pd.concat([frame_with(), frame_with()[["x"]]], axis=1))


# ------------------------------------------------------------------ splits by a column, and small devices


def test_rows_of_the_last_period_are_the_test():
    wave = np.arange(N) // 2 % 3
    fed = build(frame_with(wave=wave, y=wave + 0.5), split_by="wave", goal="regression")
    assert set(fed.y[rows_of(fed, "test")]) == {2.5}
    assert set(fed.y[rows_of(fed, "train")]) == set(fed.y[rows_of(fed, "validation")]) == {0.5, 1.5}
    assert "wave" in fed.features  # A trend may be learned from the periods before.
    parts = [fed.rows(part).counts.tolist() for part in ("train", "validation", "test")]
    assert parts == [[32, 32], [8, 8], [20, 20]]


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(N), unit="D")),
        np.arange(N) / 7,
        [f"{2000 + i // 12}M{i % 12 + 1}" for i in range(N)],
    ],
)
def test_a_column_with_many_values_is_cut_at_the_share(column, caplog):
    fed = build(frame_with(when=column, y=np.arange(N) + 0.5), split_by="when", test=0.25)
    assert sorted(fed.y[rows_of(fed, "test")]) == (np.arange(90, N) + 0.5).tolist()
    assert "30 of 120 rows are for the test: those with when from 20" in caplog.text or isinstance(column, np.ndarray)


@pytest.mark.parametrize("words", [("train", "Test"), ("train", "test", "validation"), (False, True)])
def test_words_name_the_part_of_a_row(words):
    part = np.array(words, dtype=object)[np.arange(N) // 2 % len(words)]
    fed = build(frame_with(part=part, y=np.arange(N) + 0.5), split_by="part")
    held_out = np.flatnonzero([str(word).lower() in ("test", "true") for word in part]) + 0.5
    assert sorted(fed.y[rows_of(fed, "test")]) == held_out.tolist()
    if len(words) == 3:
        assert sorted(fed.y[rows_of(fed, "validation")]) == (np.flatnonzero(part == "validation") + 0.5).tolist()
    assert fed.features == ("x",)


def test_a_device_without_the_last_period_has_no_test_rows():
    frame = frame_with(year=2020 + np.arange(N) % 4)  # Site a has the even years, site b the odd ones.
    assert build(frame, split_by="year").rows("test").counts.tolist() == [0, 30]


def test_splits_that_cannot_be():
    def refused(words, **options):
        with pytest.raises(FedfuseError, match=words):
            build(frame_with(word=list("uv") * (N // 2), one=1), **options)

    refused("no column to split by 'wrod'; did you mean 'word'", split_by="wrod")
    refused("holds 'u', but numbers, dates, text that begins with a year, or the words train", split_by="word")
    refused("column 'one' is 1 in every row", split_by="one")
    refused("split_by='site' is the device or target column", split_by="site")
    refused("test=0 and split_by='x' contradict each other", split_by="x", test=0)
    refused("min_rows must be a whole number of at least 1, got 0", min_rows=0)


def test_small_devices_are_left_out_and_named(caplog):
    frame = frame_with()
    frame.loc[:1, "site"] = "tiny"
    assert build(frame, min_rows=3).names == ("a", "b")
    assert "devices with fewer than 3 rows are left out of the search for groups: 1 of 3 (tiny)" in caplog.text
    with pytest.raises(FedfuseError, match=r"'tiny' \(2\).*join afterwards \(min_rows=3\)"):
        build(frame)


def rows_of(fed, part):
    rows = fed.rows(part)
    return np.concatenate([np.arange(a, b) for a, b in zip(rows.start, rows.stop, strict=True)])
