"""Data sets by name and files by path."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedfuse.data import available, data_directory, load, read_table
from fedfuse.errors import FedfuseError


@pytest.fixture
def visits(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"hospital": ["a", "b"] * 30, "age": rng.normal(50, 9, 60), "outcome": [0, 1, 1] * 20})
    frame.to_csv(tmp_path / "visits.csv", index=False)
    return tmp_path / "visits.csv"


def test_synthetic_by_name():
    fed = load("synthetic:S4", features="normal", seed=5)
    assert fed.m == 50
    assert fed.X.min() < 0


def test_file_by_path(visits):
    fed = load(str(visits), device="hospital", target="outcome", test=0.5)
    assert fed.names == ("a", "b")
    assert fed.rows("test").counts.tolist() == [15, 15]
    forced = load(str(visits), device="hospital", target="outcome", goal="regression")
    assert forced.goal == "regression"


@pytest.mark.parametrize("suffix", [".csv.gz", ".parquet", ".CSV"])
def test_the_other_kinds_of_files_say_the_same(visits, suffix):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    frame, path = read_table(visits), visits.with_suffix(suffix)
    if suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    pd.testing.assert_frame_equal(read_table(path), frame)


def test_every_name_says_whether_it_is_there(tmp_path):
    sources = {s.name: s for s in available(tmp_path)}
    assert all(sources[f"synthetic:S{k}"].present for k in range(1, 6))
    assert not sources["housing-bodyfat"].present
    assert not sources["mnist"].present
    assert sources["digits:rotated"].present
    for file in {file for source in sources.values() for file in source.files}:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert all(s.present and s.description for s in available(tmp_path))


def test_where_the_data_directory_is(monkeypatch):
    monkeypatch.setenv("FEDFUSE_DATA", "/some/where")
    assert data_directory() == Path("/some/where")
    assert data_directory("/else/where") == Path("/else/where")
    monkeypatch.delenv("FEDFUSE_DATA")
    assert "fedfuse" in str(data_directory())


def test_real_housing_by_name():
    if not any(s.present for s in available() if s.name == "housing-bodyfat"):
        pytest.skip("needs tabular/housing.csv and tabular/bodyfat.csv below FEDFUSE_DATA")
    assert load("housing-bodyfat", seed=1).m == 8
    assert load("housing-bodyfat", data_dir=os.environ["FEDFUSE_DATA"], seed=1).m == 8


def test_housing_without_its_files(tmp_path):
    with pytest.raises(FedfuseError, match=r"needs the file .*housing\.csv.*FEDFUSE_DATA \(or --data-dir\)"):
        load("housing-bodyfat", data_dir=tmp_path)


def test_images_without_their_files(tmp_path):
    words = (
        r"mnist needs the file .*train-images.*get it with 'fedfuse data fetch mnist', or set FEDFUSE_DATA \(or --da"
    )
    with pytest.raises(FedfuseError, match=words):
        load("mnist:rotated", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("dataset", "options", "words"),
    [
        ("synthetic:S9", {}, "no data set is called 'synthetic:S9'; did you mean .*known: .*synthetic:5,5"),
        ("cats", {}, "no data set is called 'cats'; known: .*housing-bodyfat.*csv"),
        ("synthetic:S1", {"device": "x"}, "device='x' is for tables only, but 'synthetic:S1'"),
        ("housing-bodyfat", {"target": "medv"}, "target='medv' is for tables only"),
        ("synthetic:S1", {"goal": "regression"}, "goal='regression' is for tables only"),
        ("housing-bodyfat", {"features": "normal"}, "features='normal' is for synthetic data only"),
        ("digits", {"device": "x"}, "device='x' is for tables only"),
        ("mnist", {"features": "normal"}, "features='normal' is for synthetic data only"),
        ("mnist:rotatd", {}, "did you mean 'mnist:rotated'"),
        ("fashion-mnist", {"test": 0.3}, "test=0.3 was given, but fashion-mnist has test images of its own"),
        ("nowhere.csv", {}, r"there is no file 'nowhere\.csv'"),
    ],
)
def test_bad_input(dataset, options, words):
    with pytest.raises(FedfuseError, match=words) as caught:
        load(dataset, **options)
    assert "\n" not in str(caught.value)


def test_a_table_needs_its_columns_named(visits):
    with pytest.raises(FedfuseError, match=r"is the device and which the target .*'hospital', 'age', 'outcome'"):
        load(str(visits))
    with pytest.raises(FedfuseError, match=r"which column is the target \(--device, --target\)"):
        load(str(visits), device="hospital")


def test_an_existing_file_of_another_kind(tmp_path):
    (tmp_path / "visits.ods").write_text("x")
    with pytest.raises(FedfuseError, match=r"must end in \.csv, .* \.xlsx, \.parquet"):
        load(str(tmp_path / "visits.ods"))
