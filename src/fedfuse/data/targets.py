"""Targets: classification or regression, and the class numbers that stand for labels."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.core.metrics import Goal as Goal
from fedfuse.data.checks import MAX_ABS_VALUE, as_numpy, is_missing
from fedfuse.errors import FedfuseError, check_choice
from fedfuse.utils.typing import Floats, Ints

# Whole numbers with more distinct values than this are values, not classes.
MAX_INTEGER_CLASSES = 20
KIND_WORDS = {"i": "numbers", "u": "numbers", "f": "numbers", "b": "booleans", "U": "text", "O": "text"}


def target_array(y: Any, device: str, n: int) -> npt.NDArray[Any]:
    """Return a device's y as one value per row: numbers, booleans, text or objects, none of them missing."""
    array = as_numpy(y, "y", device)
    if "pandas" in sys.modules and isinstance(getattr(y, "dtype", None), sys.modules["pandas"].CategoricalDtype):
        array = array.astype(object)
    if array.dtype.kind in "ST":
        array = array.astype(str)
    if array.ndim != 1:
        raise FedfuseError(f"device {device!r}: y has shape {array.shape}, but needs one value per row (y.ravel()?)")
    if len(array) != n:
        raise FedfuseError(f"device {device!r}: X has {n} rows but y has {len(array)} values; they must match")
    if array.dtype.kind not in KIND_WORDS:
        raise FedfuseError(f"device {device!r}: y has the type {array.dtype}, but must be numbers, booleans or text")
    bad = ~np.isfinite(array) if array.dtype.kind == "f" else is_missing(array)
    if bad.any():
        i = int(np.argmax(bad))
        raise FedfuseError(f"device {device!r}: y[{i}] is {array[i]}, but every target must be known; drop such rows")
    return array


def class_weights(
    given: str | Mapping[Any, float], classes: Sequence[Any], counts: npt.NDArray[Any]
) -> tuple[float, ...]:
    """Return the weight of every class: as given, else 1; or balanced, so that all classes together weigh the same.

    >>> class_weights("balanced", ("a", "b"), np.array([90, 10])), class_weights("b=5", ("a", "b"), np.ones(2))
    ((0.5555555555555556, 5.0), (1.0, 5.0))
    """
    if given == "balanced":
        return tuple(np.where(counts > 0, counts.sum() / (len(counts) * np.maximum(counts, 1e-300)), 1.0).tolist())
    pairs = given.items() if isinstance(given, Mapping) else (word.rpartition("=")[::2] for word in given.split(","))
    try:
        named = {str(label).strip(): float(number) for label, number in pairs}
    except (TypeError, ValueError):
        named = {}
    known = [str(label) for label in classes]
    if not named or not named.keys() <= set(known) or not all(0 < number < np.inf for number in named.values()):
        need = f"balanced, or positive numbers by class, as {known[0]}=1,{known[-1]}=5"
        raise FedfuseError(f"class weights must be {need}, got {given!r}; classes are {', '.join(known[:20])}")
    return tuple(named.get(label, 1.0) for label in known)


def infer_goal(y: npt.NDArray[Any]) -> Goal:
    """Tell the goal from a target without missing values.

    >>> infer_goal(np.array([0.0, 1.0, 1.0])), infer_goal(np.array([0.5, 1.0])), infer_goal(np.arange(100))
    ('classification', 'regression', 'regression')
    """
    if y.dtype.kind not in "iuf":
        return "classification"
    if y.dtype.kind == "f" and not np.array_equal(y, np.rint(y)):
        return "regression"
    return "classification" if len(np.unique(y)) <= MAX_INTEGER_CLASSES else "regression"


def encode_target(y: npt.NDArray[Any], goal: Goal | None, where: str) -> tuple[Goal, npt.NDArray[Any], tuple[Any, ...]]:
    """Return goal, target as values or class numbers, and classes; only values asked for may be constant."""
    if goal is not None:
        check_choice("goal", goal, Goal)
    if goal != "regression" and bool(np.all(y == y[0])):
        raise FedfuseError(
            f"the target is {y[0]!s} in every row, so there is nothing to learn; "
            "give a target with at least two classes or values"
        )
    goal = goal or infer_goal(y)
    return (goal, _values(y, where), ()) if goal == "regression" else (goal, *_class_numbers(y, where))


def _values(y: npt.NDArray[Any], where: str) -> Floats:
    """Return the target of a regression as float64."""
    text = [v for v in y if isinstance(v, (str, bytes))] if y.dtype.kind in "UO" else []
    try:
        values: Floats = y.astype(np.float64)
    except (TypeError, ValueError):
        text = text or [y[0]]
    if text:
        raise FedfuseError(f"{where} holds {str(text[0])!r}, but a regression needs numbers; use goal='classification'")
    largest = float(np.abs(values).max(initial=0.0))
    if largest > MAX_ABS_VALUE:
        raise FedfuseError(
            f"{where} holds values up to {largest:g}, but values above {MAX_ABS_VALUE:g} are too large to be squared; "
            "divide them by a power of ten"
        )
    return values


def _class_numbers(y: npt.NDArray[Any], where: str) -> tuple[Ints, tuple[Any, ...]]:
    """Number the classes 0, 1, … in sorted order; return the numbers and the classes."""
    try:
        classes, codes = np.unique(y, return_inverse=True)
    except TypeError:
        kinds = sorted({type(v).__name__ for v in y})
        raise FedfuseError(f"{where} mixes {' and '.join(kinds)}, which have no common order; use one kind") from None
    # 0 and 1 become 0.0 and 1.0 in a column with missing values.
    whole = classes.dtype.kind == "f" and np.array_equal(classes, np.rint(classes))
    return codes.astype(np.int64), tuple(int(c) for c in classes) if whole else tuple(classes.tolist())
