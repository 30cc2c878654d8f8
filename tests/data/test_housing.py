"""Housing and Body fat (protocol 1.2), on the real files where they are and on look-alikes everywhere."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedfuse.data import housing_bodyfat
from fedfuse.data.housing import _SOURCES
from fedfuse.errors import FedfuseError


def look_alikes(directory: Path) -> Path:
    """Files of the right shape, in which every value says where it came from."""
    (directory / "tabular").mkdir()
    for name, response, features, counts in _SOURCES:
        names, n = [*features, response], sum(counts)
        values = np.arange(n)[:, None] * np.arange(1.0, len(names) + 1) + 1000.0
        pd.DataFrame(values, columns=names).to_csv(directory / f"tabular/{name}.csv", index=False)
    return directory


@pytest.fixture
def made(tmp_path):
    return look_alikes(tmp_path)


@pytest.fixture(scope="module")
def real():
    directory = Path(os.environ.get("FEDFUSE_DATA", ""))
    if not os.environ.get("FEDFUSE_DATA") or not (directory / "tabular" / "housing.csv").is_file():
        pytest.skip("needs tabular/housing.csv and tabular/bodyfat.csv below FEDFUSE_DATA")
    return directory


def training(fed, group):
    rows = fed.rows("train")
    return np.concatenate([rows.of(i)[0] for i in np.flatnonzero(fed.truth == group)])


def test_devices_sizes_truth_and_names(made):
    fed = housing_bodyfat(made)
    assert fed.rows("all").counts.tolist() == [85, 85, 84, 84, 84, 84, 126, 126]
    assert fed.rows("test").counts.tolist() == [17, 17, 17, 17, 17, 17, 25, 25]
    assert fed.truth.tolist() == [0] * 6 + [1] * 2
    assert fed.names[0] == "housing-1"
    assert fed.names[-1] == "bodyfat-2"
    assert fed.goal == "regression"
    assert fed.n_features == len(fed.features) == 14
    assert fed.features[0] == "crim|density"
    assert fed.features[-1] == "noise|wrist"


@pytest.mark.parametrize("seed", [0, 1])
def test_training_rows_have_mean_0_and_sd_1_and_only_they(made, seed):
    fed = housing_bodyfat(made, seed=seed)
    for group in range(2):
        X = training(fed, group)
        assert np.allclose(X.mean(axis=0), 0, atol=1e-12)
        assert np.allclose(X.std(axis=0), 1)
    assert not np.allclose(fed.X[:506].mean(axis=0), 0, atol=1e-6)


def test_rows_are_all_there_once_and_fit_together(made):
    fed = housing_bodyfat(made)
    for group, ((_, _, features, counts), span) in enumerate(
        zip(_SOURCES, (slice(0, 506), slice(506, 758)), strict=True)
    ):
        n, width = sum(counts), len(features) + 1
        row = np.rint((fed.y[span] - 1000) / width)
        assert np.array_equal(np.sort(row), np.arange(n))
        # features of the look-alikes are linear in the row number
        real_columns = fed.X[span][:, : width - 1]
        assert np.allclose(np.abs(np.corrcoef(real_columns.T, row)[-1, :-1]), 1), group


def test_seed_moves_rows_and_noise(made):
    a, b, c = (housing_bodyfat(made, seed=s) for s in (0, 0, 1))
    assert a.fingerprint == b.fingerprint != c.fingerprint
    assert not np.array_equal(a.X[:506, 13], c.X[:506, 13])
    assert not np.array_equal(a.y, c.y)


def test_another_file_is_refused(made):
    frame = pd.read_csv(made / "tabular/housing.csv")
    frame.drop(columns="rm").to_csv(made / "tabular/housing.csv", index=False)
    with pytest.raises(FedfuseError, match="is not the housing data set: 506 rows with the columns crim, zn"):
        housing_bodyfat(made)


def test_missing_directory(tmp_path):
    with pytest.raises(FedfuseError, match=r"there is no file .*housing\.csv"):
        housing_bodyfat(tmp_path)


def test_real_files_give_the_rmse_the_protocol_expects(real):
    # pooled least squares: about 4.9 for Housing, about 1.5 for Body fat (density tells nearly all)
    rmse = {0: [], 1: []}
    for seed in range(3):
        fed = housing_bodyfat(real, seed=seed)
        fit, held_out = fed.rows("train+validation"), fed.rows("test")
        for group in range(2):
            members = np.flatnonzero(fed.truth == group)
            X, y = (np.concatenate([fit.of(i)[k] for i in members]) for k in range(2))
            w = np.linalg.lstsq(np.column_stack([X, np.ones(len(X))]), y, rcond=None)[0]
            for i in members:
                X, y = held_out.of(i)
                rmse[group].append(np.sqrt(np.mean((X @ w[:-1] + w[-1] - y) ** 2)))
    assert 4.0 < np.mean(rmse[0]) < 5.5
    assert 0.5 < np.mean(rmse[1]) < 2.5


def test_real_files_have_raw_responses(real):
    fed = housing_bodyfat(real)
    assert (fed.y[:506].min(), fed.y[:506].max()) == (5.0, 50.0)
    assert 15 < fed.y[506:].mean() < 25
