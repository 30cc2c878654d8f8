"""The rows of newcomers, in the form of the run that they come to: its columns, its class numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedfuse.data import checks
from fedfuse.data.encoders import Encoder, natural_key
from fedfuse.data.federation import Federation, cut_points, shuffled_rows
from fedfuse.data.targets import target_array
from fedfuse.errors import FedfuseError
from fedfuse.utils.typing import Bools, Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

    from fedfuse.results.result import Result

ALONE = "newcomer"  # the name of one that has none


def gathered(
    result: Result, data: Any, y: Any = None, *, test: float = 0.2, validation: float = 0.2, seed: int = 0
) -> Federation:
    """Return newcomers as a federation with the classes and columns of the run.

    ``data`` and ``y`` are the rows of one newcomer; or ``data`` alone is ``{name: (X, y)}`` or a list of (X, y). Parts
    are drawn by key as in every federation; a newcomer with few rows has fewer parts, but always rows to train on.
    """
    checks.check_splits(test, validation, seed)
    pairs = checks.named_pairs(data if y is None else {ALONE: (data, y)})
    profile = result.profile
    Xs, ys = [], []
    for name, (X, target) in pairs.items():
        rows = checks.feature_array(_flat(checks.as_numpy(X, "X", name), profile.shape), name)
        if rows.shape[1] != len(profile.features):
            raise FedfuseError(f"device {name!r} has {rows.shape[1]} features, the run has {len(profile.features)}")
        checks.check_finite(rows, name, profile.features)
        Xs.append(rows)
        ys.append(_numbers(target_array(target, name, len(rows)), profile.classes, name))
    return _cut(result, tuple(pairs), Xs, ys, test, validation, seed)


def aligned(result: Result, newcomers: Federation) -> Federation:
    """Return the newcomers with the class numbers of the run; raise where they do not fit it."""
    model, classes = result.model, result.profile.classes
    if newcomers.n_features != model.n_features or newcomers.goal != model.goal:
        raise FedfuseError(
            f"newcomers need {model.n_features} features for {model.goal}, "
            f"got {newcomers.n_features} for {newcomers.goal}"
        )
    if newcomers.classes == classes:
        return newcomers
    known = _numbers(np.array(newcomers.classes), classes, "newcomers")
    return replace(newcomers, y=known[newcomers.y.astype(np.int64)], classes=classes)


@dataclass(frozen=True)
class Arrivals:
    """What a table says of newcomers.

    Attributes
    ----------
    federation
        Newcomers with at least one row whose target is known; None if there is none.
    devices, X, waiting
        Of every row of the table: its device, its features, and whether it is a newcomer's without a target.
    strangers
        Newcomers without a single target: nothing can be told of them.
    familiar
        Rows of devices that the run knows already; they are left alone.
    """

    federation: Federation | None
    devices: npt.NDArray[np.object_]
    X: Floats
    waiting: Bools
    strangers: tuple[str, ...]
    familiar: int


def from_table(
    result: Result, frame: pd.DataFrame, *, test: float = 0.2, validation: float = 0.2, seed: int = 0
) -> Arrivals:
    """Read a table with the columns of the run's own: every device that is not of the run is a newcomer."""
    encoder = result.profile.encoder
    if encoder is None:
        raise FedfuseError("this run was not trained on a table: its newcomers come from a data set, or from Python")
    devices, X, (y, known) = encoder.devices(frame), encoder.transform(frame), _targets(encoder, frame)
    new = ~np.isin(devices, [*result.profile.names, ""])
    names = sorted(set(devices[new]), key=natural_key)
    able = [name for name in names if (known & (devices == name)).any()]
    rows = [np.flatnonzero(known & (devices == name)) for name in able]
    federation = None
    if able:
        federation = _cut(result, able, [X[r] for r in rows], [y[r] for r in rows], test, validation, seed)
    strangers = tuple(name for name in names if name not in able)
    familiar = int(np.isin(devices, result.profile.names).sum())
    return Arrivals(federation, devices, X, new & ~known & ~np.isin(devices, strangers), strangers, familiar)


def _targets(encoder: Encoder, frame: pd.DataFrame) -> tuple[npt.NDArray[Any], Bools]:
    """Return the targets, and which of them are known; a class that the run has not seen is not."""
    if encoder.target not in frame.columns:
        return np.zeros(len(frame)), np.zeros(len(frame), np.bool_)
    y = encoder.targets(frame)
    return y, np.asarray(np.isfinite(y) if encoder.goal == "regression" else y >= 0)


def _flat(X: npt.NDArray[Any], shape: tuple[int, ...] | None) -> npt.NDArray[Any]:
    return X.reshape(len(X), -1) if shape is not None and X.shape[1:] == shape else X


def _numbers(y: npt.NDArray[Any], classes: tuple[Any, ...], name: str) -> npt.NDArray[Any]:
    """Return values as they are, and classes as the run numbers them."""
    if not classes:
        return y.astype(np.float64)
    place: Mapping[Any, int] = {c: k for k, c in enumerate(classes)}
    found = np.array([place.get(v, -1) for v in y.tolist()], dtype=np.int64)
    if (found < 0).any():
        strange, known = y[found < 0][0], ", ".join(map(str, classes[:6])) + (", …" if len(classes) > 6 else "")
        raise FedfuseError(f"device {name!r}: the class {strange!s} is not one of the run's ({known})")
    return found


def _cut(
    result: Result,
    names: Sequence[str],
    Xs: Sequence[Floats],
    ys: Sequence[npt.NDArray[Any]],
    test: float,
    validation: float,
    seed: int,
) -> Federation:
    profile = result.profile
    counts: Ints = np.array([len(X) for X in Xs], dtype=np.int64)
    rows = shuffled_rows(counts, seed)
    return Federation(
        names=tuple(names),
        X=np.concatenate(Xs)[rows],
        y=np.concatenate(ys)[rows],
        cuts=cut_points(counts, test, validation),
        goal=profile.goal,
        classes=profile.classes,
        features=profile.features,
        encoder=profile.encoder,
        shape=profile.shape,
    )
