"""Is the target classes or values, and the numbers that stand for its classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError
from fedfuse.utils.typing import Floats, Ints

if TYPE_CHECKING:
    from fedfuse.data.federation import Goal

GOALS = ("classification", "regression")
# Whole numbers with more distinct values than this are values, not classes.
MOST_CLASSES = 20
# Means of squares are sent as float32, which ends at 3e38.
LARGEST = 1e18


def check_goal(goal: str | None) -> None:
    """Refuse a goal that is neither classification nor regression."""
    if goal is not None and goal not in GOALS:
        raise FedfuseError(f"goal must be 'classification' or 'regression', got {goal!r}")


def goal_of(y: npt.NDArray[Any]) -> Goal:
    """Tell the goal from a target without missing values.

    >>> goal_of(np.array([0.0, 1.0, 1.0])), goal_of(np.array([0.5, 1.0])), goal_of(np.arange(100))
    ('classification', 'regression', 'regression')
    """
    if y.dtype.kind not in "iuf":
        return "classification"
    if y.dtype.kind == "f" and not np.array_equal(y, np.rint(y)):
        return "regression"
    return "classification" if len(np.unique(y)) <= MOST_CLASSES else "regression"


def check_varies(y: npt.NDArray[Any], goal: Goal | None) -> None:
    """Refuse a target that is the same in every row; only a regression that was asked for may do that."""
    if goal != "regression" and bool(np.all(y == y[0])):
        raise FedfuseError(
            f"the target is {y[0]!s} in every row: there is nothing to learn; "
            "give a target with at least two classes or values"
        )


def encode(y: npt.NDArray[Any], goal: Goal | None, where: str) -> tuple[Goal, npt.NDArray[Any], tuple[Any, ...]]:
    """Return the goal, the target as float64 values or int64 class numbers, and the classes."""
    check_goal(goal)
    check_varies(y, goal)
    goal = goal or goal_of(y)
    if goal == "regression":
        return goal, values(y, where), ()
    codes, classes = class_numbers(y, where)
    return goal, codes, classes


def values(y: npt.NDArray[Any], where: str) -> Floats:
    """Return the target of a regression as float64."""
    text = next((v for v in y if isinstance(v, (str, bytes))), None) if y.dtype.kind in "UO" else None
    if text is None:
        try:
            return _squarable(y.astype(np.float64), where)
        except FedfuseError:
            raise
        except (TypeError, ValueError):
            text = y[0]
    raise FedfuseError(f"{where} holds {str(text)!r}, but a regression needs numbers; use goal='classification'")


def _squarable(y: Floats, where: str) -> Floats:
    largest = float(np.abs(y).max(initial=0.0))
    if largest > LARGEST:
        raise FedfuseError(
            f"{where} holds values up to {largest:g}, but values above {LARGEST:g} are too large to be squared; "
            "divide them by a power of ten"
        )
    return y


def class_numbers(y: npt.NDArray[Any], where: str) -> tuple[Ints, tuple[Any, ...]]:
    """Number the classes 0, 1, … in sorted order; return the numbers and the classes."""
    try:
        classes, codes = np.unique(y, return_inverse=True)
    except TypeError:
        kinds = sorted({type(v).__name__ for v in y})
        raise FedfuseError(f"{where} mixes {' and '.join(kinds)}, which have no common order; use one kind") from None
    return codes.astype(np.int64), _plain(classes)


def _plain(classes: npt.NDArray[Any]) -> tuple[Any, ...]:
    # 0.0 and 1.0 are what 0 and 1 become in a column with missing values
    if classes.dtype.kind == "f" and np.array_equal(classes, np.rint(classes)):
        return tuple(int(c) for c in classes)
    return tuple(classes.tolist())
