"""Validation of device arrays and splits: rows x features of finite numbers, enough rows on every device."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError, guess
from fedfuse.utils.typing import Bools, Floats, Ints

# Means of squares are sent as float32, which ends at 3e38.
MAX_ABS_VALUE = 1e18
_MAX_NAMED_DEVICES = 5


def position_of(device: str | int, positions: Mapping[str, int], what: str = "device") -> int:
    """Return the position of a device given by name or position."""
    if isinstance(device, str):
        if device in positions:
            return positions[device]
        known = ", ".join(map(repr, list(positions)[:_MAX_NAMED_DEVICES]))
        more = f", … ({len(positions)} in all)" if len(positions) > _MAX_NAMED_DEVICES else ""
        raise FedfuseError(f"no {what} is called {device!r}; {guess(device, positions)}known: {known}{more}")
    if not 0 <= device < len(positions):
        raise FedfuseError(f"{what} {device} is outside 0 … {len(positions) - 1}")
    return int(device)


def natural_key(name: str) -> tuple[list[Any], str]:
    """Return a sort key that puts site2 before site10.

    >>> sorted(["site10", "site2", "7"], key=natural_key)
    ['7', 'site2', 'site10']
    """
    parts: list[Any] = re.split(r"(\d+)", name)
    parts[1::2] = map(int, parts[1::2])
    return parts, name


def named_pairs(data: Any) -> dict[str, tuple[Any, Any]]:
    """Return the devices' (X, y) by name, from a mapping or a list."""
    if not isinstance(data, Iterable):
        got = f"an object of type {type(data).__name__}"
        raise FedfuseError(f"expected {{name: (X, y)}} or a list of (X, y), got {got}")
    pairs: dict[str, tuple[Any, Any]] = {}
    for key, pair in data.items() if isinstance(data, Mapping) else enumerate(data):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            shape = getattr(pair, "shape", None)
            got = f"an object of type {type(pair).__name__}" if shape is None else f"an array of shape {shape}"
            raise FedfuseError(f"device {str(key)!r}: expected a pair (X, y), got {got}")
        if str(key) in pairs:
            raise FedfuseError(f"two devices are called {str(key)!r} (names are compared as text): rename one")
        pairs[str(key)] = pair[0], pair[1]
    if not pairs:
        raise FedfuseError("the federation is empty: give at least one device with its (X, y)")
    return pairs


def check_same(values: Mapping[str, Any], message: str) -> None:
    """Refuse devices that differ from the first; the message may name {device}, {value}, {first} and {first_value}."""
    first, first_value = next(iter(values.items()))
    for device, value in values.items():
        if value != first_value:
            raise FedfuseError(message.format(device=device, value=value, first=first, first_value=first_value))


def feature_arrays(
    given: Mapping[str, Any], features: Sequence[str] | None, shape: Sequence[int] | None
) -> tuple[list[Floats], tuple[str, ...], tuple[int, ...] | None]:
    """Return every device's array of rows x features, the names of the columns, and the shape of one row.

    Names are those given, else those of data frames, else scikit-learn's. The shape is that given, or that of arrays
    with more than two dimensions, which keep their dtype (images are often bytes); it is None for tables.
    """
    # Where pandas has not been imported there is no data frame; importing it takes half a second.
    frame = sys.modules["pandas"].DataFrame if "pandas" in sys.modules else ()
    headers = {name: tuple(map(str, X.columns)) if isinstance(X, frame) else None for name, X in given.items()}
    if features is None:
        words = "device {device!r} has the columns {value}, device {first!r} has {first_value}: "
        check_same(headers, words + "give all devices the same columns in the same order")
    arrays = {name: as_numpy(X, "X", name) for name, X in given.items()}
    shapes = {name: X.shape[1:] for name, X in arrays.items()}
    if max(map(len, shapes.values())) > 1:
        words = "one row of device {device!r} has the shape {value}, of device {first!r} {first_value}: "
        check_same(shapes, words + "give all devices rows of one shape")
    found = next(iter(shapes.values()))
    form = tuple(int(n) for n in shape) if shape is not None else found if len(found) > 1 else None
    if len(found) > 1 and form != found:
        raise FedfuseError(f"shape {form} was given, but rows have the shape {found}; leave it out")
    Xs = [feature_array(X, name, keep_dtype=form is not None) for name, X in arrays.items()]
    widths = {name: X.shape[1] for name, X in zip(arrays, Xs, strict=True)}
    words = "device {device!r} has {value} features, device {first!r} has {first_value}: "
    check_same(widths, words + "all devices need the same columns")
    width = Xs[0].shape[1]
    columns = next(iter(headers.values())) if features is None else tuple(map(str, features))
    columns = default_features(width) if columns is None else columns
    if len(columns) != width:
        raise FedfuseError(f"{len(columns)} feature names were given for {width} columns; give one name per column")
    for name, X in zip(arrays, Xs, strict=True):
        check_finite(X, name, columns)
    return Xs, columns, form


def default_features(n: int) -> tuple[str, ...]:
    """Return scikit-learn's names for columns without names: x0, x1, …"""
    return tuple(f"x{j}" for j in range(n))


def feature_array(array: npt.NDArray[Any], device: str, keep_dtype: bool = False) -> Floats:
    """Return the features as an array of rows x features, of float64 unless numbers are to keep their type."""
    if array.ndim < 2:
        raise FedfuseError(
            f"device {device!r}: X has shape {array.shape}, but must be rows x features; "
            "use X.reshape(-1, 1) for one feature"
        )
    if array.shape[0] == 0:
        raise FedfuseError(f"device {device!r} has no rows: give it rows or leave it out")
    if array.size == 0:
        raise FedfuseError(f"device {device!r}: X has no columns (shape {array.shape}); give at least one feature")
    array = array.reshape(len(array), -1)
    return array if keep_dtype and array.dtype.kind in "biuf" else _as_float64(array, device)


def as_numpy(values: Any, word: str, device: str) -> npt.NDArray[Any]:
    """Return values as an array. Tensors are recognised by their methods: torch is not imported."""
    if hasattr(values, "detach") and hasattr(values, "cpu"):
        values = values.detach().cpu()
        if str(getattr(values, "dtype", "")) == "torch.bfloat16":  # NumPy has no such type.
            values = values.float()
    if hasattr(values, "toarray"):
        raise FedfuseError(f"device {device!r}: {word} is a sparse matrix; give {word}.toarray()")
    try:
        return np.asarray(values)
    except ValueError:
        raise FedfuseError(f"device {device!r}: the rows of {word} differ in length; make it an array") from None


def _as_float64(array: npt.NDArray[Any], device: str) -> Floats:
    if array.dtype.kind in "biuf":
        return np.asarray(array, dtype=np.float64)
    if array.dtype.kind == "O":
        # Object columns may hold plain numbers; text that looks like a number stays text.
        array = np.where(is_missing(array), np.nan, array)
        if not any(isinstance(v, (str, bytes)) for v in array.flat):
            try:
                return array.astype(np.float64)
            except (TypeError, ValueError):
                pass
    numbers = (bool, int, float, np.bool_, np.integer, np.floating)
    row, column = next((at for at in np.ndindex(array.shape) if not isinstance(array[at], numbers)), (0, 0))
    raise FedfuseError(
        f"device {device!r}: X[{row}, {column}] is {array[row, column]!r}, but features must be numbers; "
        "encode such columns first, or use Federation.from_frame, which does"
    )


def check_finite(X: Floats, device: str, features: Sequence[str]) -> None:
    """Refuse NaN, infinity and values too large to be squared, and say where they are."""
    if not X.size or (X.max() <= MAX_ABS_VALUE and X.min() >= -MAX_ABS_VALUE):  # False where there is a NaN.
        return
    row, column = np.argwhere(~(np.abs(X) <= MAX_ABS_VALUE))[0]
    need = f"values above {MAX_ABS_VALUE:g} are too large to be squared; divide the column by a power of ten"
    if not np.isfinite(X[row, column]):
        need = "every value must be a finite number; fill such rows, or use Federation.from_frame, which fills gaps"
    where = f"device {device!r}: X[{row}, {column}] is {X[row, column]:g} (column {features[column]!r})"
    raise FedfuseError(f"{where}, but {need}")


def check_splits(test: float, validation: float, seed: int) -> None:
    """Refuse shares outside [0, 1) and seeds that are not whole numbers of at least 0."""
    for word, share in (("test", test), ("validation", validation)):
        if not isinstance(share, Real) or not 0 <= share < 1:
            raise FedfuseError(f"{word} must be a share of at least 0 and below 1, got {share!r}")
    if not isinstance(seed, Integral) or seed < 0:
        raise FedfuseError(f"seed must be a whole number of at least 0, got {seed!r}")


def check_counts(counts: Ints, names: Sequence[str], test: float, validation: float, advice: str = "drop them") -> None:
    """Refuse devices with too few rows for one row in each part that is asked for."""
    parts = ["training"] + ["validation"] * (validation > 0) + ["test"] * (test > 0)
    short = np.flatnonzero(counts < len(parts))
    if not len(short):
        return
    who = ", ".join(f"{names[i]!r} ({counts[i]})" for i in short[:_MAX_NAMED_DEVICES])
    more = f" and {len(short) - _MAX_NAMED_DEVICES} more" if len(short) > _MAX_NAMED_DEVICES else ""
    fewer = "; fewer are needed with test=0 or validation=0" if len(parts) > 1 else ""
    raise FedfuseError(
        f"too few rows on {len(short)} of {len(counts)} devices: {who}{more}; each needs at least {len(parts)} "
        f"({', '.join(parts)}): give them more rows or {advice.format(len(parts))}{fewer}"
    )


def relative_weights(given: Any, n: int) -> Floats:
    """Return the weights of n rows, scaled so that their mean is 1: only their ratios matter."""
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        weights = np.full(n, np.nan)
    if weights.shape != (n,) or not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise FedfuseError(f"weights must be {n} numbers of at least 0, one for each row and not all zero")
    return np.asarray(weights / weights.mean())


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


def is_missing(array: npt.NDArray[Any]) -> Bools:
    """Return which values of an array of objects are missing; whole numbers, booleans and text never are."""
    if array.dtype.kind != "O":
        return np.zeros(array.shape, np.bool_)
    import pandas as pd

    return np.asarray(pd.isna(array))
