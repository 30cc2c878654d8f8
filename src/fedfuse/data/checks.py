"""Checks of the devices' arrays: rows x features of finite numbers, and one target per row."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.data.targets import LARGEST
from fedfuse.errors import FedfuseError
from fedfuse.utils.typing import Floats, Ints

_TARGET_WORDS = {"i": "numbers", "u": "numbers", "f": "numbers", "b": "booleans", "U": "text", "O": "text"}


def named_pairs(data: Any) -> tuple[tuple[str, ...], list[tuple[Any, Any]]]:
    """Return the devices' names and their (X, y), from a mapping or a list."""
    if isinstance(data, Mapping):
        keys, pairs = [str(k) for k in data], list(data.values())
    else:
        if not isinstance(data, Iterable):
            raise FedfuseError(f"expected {{name: (X, y)}} or a list of (X, y), got {_brief(data)}")
        pairs = list(data)
        keys = [str(i) for i in range(len(pairs))]
    if not keys:
        raise FedfuseError("the federation is empty: give at least one device with its (X, y)")
    for name, pair in zip(keys, pairs, strict=True):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise FedfuseError(f"device {name!r}: expected a pair (X, y), got {_brief(pair)}")
    twice = sorted({k for k in keys if keys.count(k) > 1}) if len(set(keys)) < len(keys) else []
    if twice:
        raise FedfuseError(f"two devices are called {twice[0]!r} (names are compared as text): rename one")
    return tuple(keys), [(pair[0], pair[1]) for pair in pairs]


def feature_names(names: Sequence[str], given: Sequence[Any], features: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return the column names: those asked for, else those of the devices' data frames, else None."""
    if features is not None:
        return tuple(str(f) for f in features)
    columns = [tuple(map(str, X.columns)) if _is_frame(X) else None for X in given]
    for name, these in zip(names, columns, strict=True):
        if these != columns[0]:
            raise FedfuseError(
                f"device {name!r} has the columns {these}, device {names[0]!r} has {columns[0]}: "
                "give all devices the same columns in the same order"
            )
    return columns[0]


def row_shape(
    Xs: Sequence[npt.NDArray[Any]], names: Sequence[str], shape: Sequence[int] | None
) -> tuple[int, ...] | None:
    """Return the shape of one row's features, asked for or told from arrays of more than two dimensions."""
    forms = [X.shape[1:] for X in Xs]
    for name, form in zip(names, forms, strict=True):
        if form != forms[0] and max(len(form), len(forms[0])) > 1:
            raise FedfuseError(
                f"one row of device {name!r} has the shape {form}, of device {names[0]!r} {forms[0]}: "
                "give all devices rows of one shape"
            )
    told = forms[0] if len(forms[0]) > 1 else None
    if shape is None:
        return told
    asked = tuple(int(n) for n in shape)
    if told not in (None, asked):
        raise FedfuseError(f"shape {asked} was given, but rows have the shape {told}; leave it out")
    return asked


def feature_array(array: npt.NDArray[Any], device: str, keep: bool = False) -> Floats:
    """Return the features as a float64 array of rows x features, without a copy where it is one already.

    With ``keep`` numbers stay of their own type: images are often bytes, and eight times as large in float64.
    """
    if array.ndim == 1:
        raise FedfuseError(
            f"device {device!r}: X has shape {array.shape}, but must be rows x features; "
            "use X.reshape(-1, 1) for one feature"
        )
    if array.ndim == 0:
        raise FedfuseError(f"device {device!r}: X is a single value, but must be a table of rows x features")
    if array.shape[0] == 0:
        raise FedfuseError(f"device {device!r} has no rows: give it rows or leave it out")
    if array.size == 0:
        raise FedfuseError(f"device {device!r}: X has no columns (shape {array.shape}); give at least one feature")
    array = array.reshape(len(array), -1)
    return array if keep and array.dtype.kind in "biuf" else _as_numbers(array, device)


def as_numpy(values: Any, word: str, device: str) -> npt.NDArray[Any]:
    """Return values as an array; a tensor on any processor is known by what it can do, torch is not imported."""
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        values = values.detach().cpu()
        if str(getattr(values, "dtype", "")) == "torch.bfloat16":  # numpy has no such numbers
            values = values.float()
    if hasattr(values, "toarray"):
        raise FedfuseError(f"device {device!r}: {word} is a sparse matrix; give {word}.toarray()")
    try:
        return np.asarray(values)
    except ValueError:
        raise FedfuseError(f"device {device!r}: the rows of {word} differ in length; make it an array") from None


def _as_numbers(array: npt.NDArray[Any], device: str) -> Floats:
    if array.dtype.kind in "biuf":
        return np.asarray(array, dtype=np.float64)
    if array.dtype.kind == "O":
        # object columns may hold plain numbers; text that looks like a number stays text
        array = np.where(_missing(array), np.nan, array)
        if not any(isinstance(v, (str, bytes)) for v in array.flat):
            try:
                return array.astype(np.float64)
            except (TypeError, ValueError):
                pass
    row, column = _first_text(array)
    raise FedfuseError(
        f"device {device!r}: X[{row}, {column}] is {array[row, column]!r}, but features must be numbers; "
        "encode such columns first, or use Federation.from_frame, which does"
    )


def _first_text(array: npt.NDArray[Any]) -> tuple[int, int]:
    for row, column in np.ndindex(array.shape):
        if not isinstance(array[row, column], (bool, int, float, np.bool_, np.integer, np.floating)):
            return row, column
    return 0, 0


def check_finite(X: Floats, device: str, features: Sequence[str]) -> None:
    """Refuse NaN, infinity and what is too large to be squared, and say where."""
    if not X.size or (X.max() <= LARGEST and X.min() >= -LARGEST):  # not so if there is a NaN
        return
    finite = np.isfinite(X)
    if finite.all():
        row, column = np.argwhere(np.abs(X) > LARGEST)[0]
        raise FedfuseError(
            f"device {device!r}: X[{row}, {column}] is {X[row, column]:g} (column {features[column]!r}), but values "
            f"above {LARGEST:g} are too large to be squared; divide the column by a power of ten"
        )
    row, column = np.argwhere(~finite)[0]
    raise FedfuseError(
        f"device {device!r}: X[{row}, {column}] is {X[row, column]} (column {features[column]!r}), but "
        "every value must be a finite number; fill or drop such rows, or use Federation.from_frame, "
        "which fills missing values"
    )


def target_array(y: Any, device: str, n: int) -> npt.NDArray[Any]:
    """Return y as one value per row: numbers, booleans, text or objects, none of them missing."""
    array = as_numpy(y, "y", device)
    if _is_categorical(getattr(y, "dtype", None)):
        array = array.astype(object)
    if array.dtype.kind in "ST":
        array = array.astype(str)
    if array.ndim != 1:
        raise FedfuseError(
            f"device {device!r}: y has shape {array.shape}, but must hold one value per row (y.ravel()?)"
        )
    if len(array) != n:
        raise FedfuseError(f"device {device!r}: X has {n} rows but y has {len(array)} values; they must match")
    if array.dtype.kind not in _TARGET_WORDS:
        raise FedfuseError(f"device {device!r}: y has the type {array.dtype}, but must be numbers, booleans or text")
    _check_target_present(array, device)
    return array


def _check_target_present(y: npt.NDArray[Any], device: str) -> None:
    bad = ~np.isfinite(y) if y.dtype.kind == "f" else _missing(y)
    if bad.any():
        row = int(np.argmax(bad))
        raise FedfuseError(f"device {device!r}: y[{row}] is {y[row]}, but every target must be known; drop such rows")


def check_same_kind(ys: Sequence[npt.NDArray[Any]], names: Sequence[str]) -> None:
    """Refuse devices whose targets are of different kinds, for instance numbers here and text there."""
    first = _TARGET_WORDS[ys[0].dtype.kind]
    for y, name in zip(ys, names, strict=True):
        word = _TARGET_WORDS[y.dtype.kind]
        if word != first:
            raise FedfuseError(
                f"the target of device {name!r} is {word}, that of device {names[0]!r} is {first}: "
                "give all devices the same kind"
            )


def check_widths(Xs: Sequence[Floats], names: Sequence[str], features: tuple[str, ...] | None) -> None:
    """Refuse devices with different numbers of features, or other than there are names."""
    width = Xs[0].shape[1]
    for X, name in zip(Xs, names, strict=True):
        if X.shape[1] != width:
            raise FedfuseError(
                f"device {name!r} has {X.shape[1]} features, device {names[0]!r} has {width}: "
                "all devices need the same columns"
            )
    if features is not None and len(features) != width:
        raise FedfuseError(f"{len(features)} feature names were given for {width} columns; give one name per column")


def check_splits(test: float, validation: float, seed: int) -> None:
    """Refuse shares outside [0, 1) and seeds that are no seeds."""
    for word, share in (("test", test), ("validation", validation)):
        if not isinstance(share, Real) or not 0 <= share < 1:
            raise FedfuseError(f"{word} must be a share of at least 0 and below 1, got {share!r}")
    if not isinstance(seed, Integral) or seed < 0:
        raise FedfuseError(f"seed must be a whole number of at least 0, got {seed!r}")


def check_counts(counts: Ints, names: Sequence[str], test: float, validation: float) -> None:
    """Refuse devices with too few rows for one row in each part that is asked for."""
    least = 1 + (test > 0) + (validation > 0)
    short = np.flatnonzero(counts < least)
    if not len(short):
        return
    who = ", ".join(f"{names[i]!r} ({counts[i]})" for i in short[:5])
    more = f" and {len(short) - 5} more" if len(short) > 5 else ""
    parts = ["training"] + ["validation"] * (validation > 0) + ["test"] * (test > 0)
    advice = "give them more rows or drop them"
    if least > 1:
        advice += "; fewer are needed with test=0 or validation=0"
    raise FedfuseError(
        f"too few rows on {len(short)} of {len(counts)} devices: {who}{more}; "
        f"each needs at least {least} ({', '.join(parts)}): {advice}"
    )


def truth_array(truth: Any, m: int) -> Ints | None:
    """Return the true groups as integers, one per device."""
    if truth is None:
        return None
    array = np.asarray(truth)
    if array.shape != (m,):
        raise FedfuseError(f"truth has shape {array.shape}, but must hold one group for each of the {m} devices")
    if array.dtype.kind in "iu":
        return array.astype(np.int64)
    return np.unique(array.astype(str), return_inverse=True)[1].astype(np.int64)


def _brief(thing: Any) -> str:
    shape = getattr(thing, "shape", None)
    return f"an array of shape {shape}" if shape is not None else f"an object of type {type(thing).__name__}"


def _missing(array: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    if array.dtype.kind != "O":  # whole numbers, booleans and text are always there
        return np.zeros(array.shape, np.bool_)
    import pandas as pd

    return np.asarray(pd.isna(array))


def _is_frame(X: Any) -> bool:
    # nobody has a data frame where pandas has not been imported, and who has none is spared its half second
    return "pandas" in sys.modules and isinstance(X, sys.modules["pandas"].DataFrame)


def _is_categorical(dtype: Any) -> bool:
    return "pandas" in sys.modules and isinstance(dtype, sys.modules["pandas"].CategoricalDtype)
