"""Housing and Body fat: two different regressions in one federation (the paper's H&BF)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedfuse.data.checks import check_splits
from fedfuse.data.federation import Federation, cut_points
from fedfuse.data.readers import read_table
from fedfuse.errors import FedfuseError
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Floats

_HOUSING = ("crim", "zn", "indus", "chas", "nox", "rm", "age", "dis", "rad", "tax", "ptratio", "black", "lstat")
_BODYFAT = (
    *("density", "age", "weight", "height", "neck", "chest", "abdomen"),
    *("hip", "thigh", "knee", "ankle", "biceps", "forearm", "wrist"),
)
# Of each table: its name, its rows' response and features, and how many rows each device gets.
_SOURCES = (("housing", "medv", _HOUSING, (85, 85, 84, 84, 84, 84)), ("bodyfat", "bodyfat", _BODYFAT, (126, 126)))


def housing_bodyfat(directory: str | Path, seed: int = 0, test: float = 0.2, validation: float = 0.2) -> Federation:
    """Return six devices with Housing rows and two with Body-fat rows.

    Housing gets a 14th feature of N(0, 1) noise, so that both have 14. Rows are shuffled and then cut into devices and
    parts. Each data set's features are standardised with its own training rows; responses stay in raw units (1000
    dollars, percent). Features carry the names of both columns ("crim|density").
    """
    check_splits(test, validation, seed)
    parts = [_shuffled(Path(directory), seed, *source) for source in _SOURCES]
    X, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    counts = [count for *_, counts in _SOURCES for count in counts]
    truth = np.repeat(np.arange(2), [len(counts) for *_, counts in _SOURCES])
    cuts = cut_points(np.array(counts, dtype=np.int64), test, validation)
    for group in range(2):
        own = cuts[truth == group]
        train = np.concatenate([X[start:stop] for start, stop, *_ in own])
        rows = slice(own[0, 0], own[-1, -1])
        X[rows] = (X[rows] - train.mean(axis=0)) / train.std(axis=0)
    names = tuple(f"{name}-{i + 1}" for name, *_, counts in _SOURCES for i in range(len(counts)))
    features = tuple(f"{h}|{b}" for h, b in zip((*_HOUSING, "noise"), _BODYFAT, strict=True))
    return Federation(names, X, y, cuts, "regression", (), features, truth)


def _shuffled(
    directory: Path, seed: int, name: str, response: str, features: tuple[str, ...], counts: tuple[int, ...]
) -> tuple[Floats, Floats]:
    path, n = directory / "tabular" / f"{name}.csv", sum(counts)
    frame = read_table(path)
    if not {*features, response} <= set(frame.columns) or len(frame) != n:
        wanted = f"{n} rows with the columns {', '.join(features)}, {response} are expected"
        raise FedfuseError(f"{str(path)!r} is not the {name} data set: {wanted}")
    order = generator(seed, f"{name} rows").permutation(n)
    X = frame[list(features)].to_numpy(dtype=np.float64)[order]
    y = frame[response].to_numpy(dtype=np.float64)[order]
    if features is _HOUSING:
        X = np.column_stack([X, generator(seed, "housing noise").normal(size=n)])
    return X, y
