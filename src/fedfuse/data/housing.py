"""Housing and Body fat: two different regressions in one federation (the paper's H&BF)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedfuse.data.checks import check_splits
from fedfuse.data.federation import Federation, cut_points
from fedfuse.data.readers import read_table
from fedfuse.errors import FedfuseError
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Floats


@dataclass(frozen=True)
class _Source:
    """A table: its file, its rows' response and features, and how many rows each device gets."""

    file: str
    name: str
    response: str
    features: tuple[str, ...]
    counts: tuple[int, ...]


_HOUSING = _Source(
    "tabular/housing.csv",
    "housing",
    "medv",
    ("crim", "zn", "indus", "chas", "nox", "rm", "age", "dis", "rad", "tax", "ptratio", "black", "lstat"),
    (85, 85, 84, 84, 84, 84),
)
_BODYFAT = _Source(
    "tabular/bodyfat.csv",
    "bodyfat",
    "bodyfat",
    (
        *("density", "age", "weight", "height", "neck", "chest", "abdomen"),
        *("hip", "thigh", "knee", "ankle", "biceps", "forearm", "wrist"),
    ),
    (126, 126),
)
_SOURCES = (_HOUSING, _BODYFAT)


def housing_bodyfat(directory: str | Path, seed: int = 0, test: float = 0.2, validation: float = 0.2) -> Federation:
    """Return six devices with Housing rows and two with Body-fat rows.

    Housing gets a 14th feature of N(0, 1) noise, so that both have 14. Rows are shuffled once per seed and then
    cut into devices and parts. Each data set's features are standardised with its own training rows; responses
    stay in raw units (1000 dollars, percent). Features carry the names of both columns ("crim|density").

    The directory holds ``tabular/housing.csv`` and ``tabular/bodyfat.csv``; the seed draws the order of the rows and
    the noise; test and validation are as in `Federation.from_arrays`.
    """
    check_splits(test, validation, seed)
    parts = [_shuffled(Path(directory), source, seed) for source in _SOURCES]
    X, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    truth = np.repeat(np.arange(2), [len(source.counts) for source in _SOURCES])
    cuts = cut_points(np.array(_HOUSING.counts + _BODYFAT.counts, dtype=np.int64), test, validation)
    for group in range(2):
        own = cuts[truth == group]
        train = np.concatenate([X[start:stop] for start, stop, *_ in own])
        rows = slice(own[0, 0], own[-1, -1])
        X[rows] = (X[rows] - train.mean(axis=0)) / train.std(axis=0)
    names = tuple(f"{source.name}-{i + 1}" for source in _SOURCES for i in range(len(source.counts)))
    features = tuple(f"{h}|{b}" for h, b in zip((*_HOUSING.features, "noise"), _BODYFAT.features, strict=True))
    return Federation(names, X, y, cuts, "regression", (), features, truth)


def _shuffled(directory: Path, source: _Source, seed: int) -> tuple[Floats, Floats]:
    path, n = directory / source.file, sum(source.counts)
    frame = read_table(path)
    if not {*source.features, source.response} <= set(frame.columns) or len(frame) != n:
        raise FedfuseError(
            f"{str(path)!r} is not the {source.name} data set: {n} rows with the columns "
            f"{', '.join(source.features)}, {source.response} are expected"
        )
    order = generator(seed, f"{source.name} rows").permutation(n)
    X = frame[list(source.features)].to_numpy(dtype=np.float64)[order]
    y = frame[source.response].to_numpy(dtype=np.float64)[order]
    if source is _HOUSING:
        X = np.column_stack([X, generator(seed, "housing noise").normal(size=n)])
    return X, y
