"""Whom to believe: what no honest device can send, and means that a few liars do not move.

An honest device's accuracy is a share, its losses are not negative, the mean of its squares is at least the square of
its mean, and the gradient of its convex loss f is monotone: for any two points, (w - w') (g - g') >= 0 and
f(w) >= f(w') + g' (w - w'). Who breaks these rules lies, whatever the others send, and if they are the most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from fedfuse.core.partitions import canonical
from fedfuse.data.federation import Goal
from fedfuse.protocol.sufficient_statistics import Summary, parts
from fedfuse.protocol.tasks import STATISTICS, Order, Reply, Subspace, Task
from fedfuse.utils.typing import Bools, Floats, Ints

SLACK = 1e-3  # relative: what rounding and inexact solvers may do
ROUNDED = 1e-5  # relative: what rounding alone may do
TINY = 1e-4  # and absolute, for gradients
FAINT = 1e-6  # relative: what rounding may do to a covariance
DEVIATIONS = 6.0  # robust standard deviations of the logarithm beyond which a length is absurd,
LEAST = 0.5  # of which one is at least this
FEWEST = 5  # uploads, to say anything


def overlong(uploads: Mapping[int, Floats]) -> list[int]:
    """Return the devices whose vectors are absurdly long, by the others' lengths.

    >>> overlong({i: np.ones(3) * (1 + i / 10) for i in range(6)} | {6: np.full(3, 1e4)})
    [6]
    """
    if len(uploads) < FEWEST:
        return []
    logs = np.log([max(float(np.linalg.norm(v)), 1e-12) for v in uploads.values()])
    middle = np.median(logs)
    spread = max(1.4826 * float(np.median(np.abs(logs - middle))), LEAST)
    return [i for i, length in zip(uploads, logs, strict=True) if length > middle + DEVIATIONS * spread]


def possible_moments(answer: Floats) -> bool:
    """Whether means and means of squares can be of the same numbers."""
    first, second = np.split(np.asarray(answer, dtype=np.float64), 2)
    return bool((second >= (1 - ROUNDED) * first**2).all())


def possible_score(score: float, goal: Goal) -> bool:
    """Whether this can be an accuracy, or for values an RMSE.

    >>> possible_score(1.5, "classification"), possible_score(1.5, "regression")
    (False, True)
    """
    return 0 <= score <= (1 + ROUNDED if goal == "classification" else np.inf)


def possible_judgement(answer: Floats, models: int) -> bool:
    """Whether these can be mean losses and the covariances of them (see `protocol.tasks.EvaluateModels`)."""
    means, matrix = np.asarray(answer[:models], dtype=np.float64), np.zeros((models, models))
    matrix[np.triu_indices(models)] = answer[models:]
    variances = np.diag(matrix)
    if (means < 0).any() or (variances < 0).any():
        return False
    bound = np.sqrt(np.outer(variances, variances))
    return bool((np.abs(matrix) <= (1 + SLACK) * bound + 1e-9 * variances.max(initial=0)).all())


def possible_summary(answer: Floats, rows: Sequence[int]) -> bool:
    """Whether these can be means and covariances of so many rows of either part.

    No combination of columns has a negative variance, n rows vary in n - 1 directions at the most, and two parts that
    vary are not the same to the last digit.

    >>> good, other, bad = [5.0, 7.0, 1.0, 0.9, 1.0], [5.1, 7.0, 1.0, 0.9, 1.0], [5.0, 7.0, 1.0, 9.0, 1.0]
    >>> [possible_summary(np.array([*good, *piece, 1.0]), (9, 4)) for piece in (other, bad, good)]
    [True, False, False]
    """
    first, second = parts(answer[None]).values()
    summaries = [Summary.read(piece, np.array([n])) for piece, n in zip((first, second), rows, strict=True)]
    alike = min(rows) > 0 and np.array_equal(first, second) and summaries[0].covariance.any()
    return bool(answer[-1] >= 0) and not alike and all(map(_possible_part, summaries))


def _possible_part(summary: Summary) -> bool:
    n, covariance = int(summary.n[0]), summary.covariance[0]
    variances = np.diag(covariance)
    if (variances < 0).any():
        return False
    # in units of the columns, so that what is small beside the others is looked at, too
    unit = np.sqrt(variances)
    unit[unit <= FAINT * np.abs(summary.mean[0])] = np.inf  # a column that is the same in all rows, but for rounding
    unit[unit == 0] = np.inf
    values, slack = np.linalg.eigvalsh(covariance / np.outer(unit, unit)), FAINT * len(covariance)
    return bool(values[0] >= -slack and (values[: max(len(values) - max(n - 1, 0), 0)] <= slack).all())


def judged_models(numbers: int) -> int:
    """Return how many models an answer to `EvaluateModels` is about: n means and n (n + 1) / 2 covariances."""
    return int((np.sqrt(9 + 8 * numbers) - 3) / 2 + 0.5)


def monotone(w: Floats, g: Floats, w2: Floats, g2: Floats) -> bool:
    """Whether these can be the gradients of one convex function at two points."""
    way = np.asarray(w2, dtype=np.float64) - w
    return bool(way @ (g2 - g) >= -_noise(way, g, g2))


def supported(w: Floats, g: Floats, f: float, w2: Floats, g2: Floats, f2: float) -> bool:
    """Whether these can be values and gradients of one convex function that is nowhere negative."""
    if f < 0 or f2 < 0:
        return False
    way = np.asarray(w2, dtype=np.float64) - w
    noise = _noise(way, g, g2) + SLACK * (f + f2)
    return bool(f2 - f - g @ way >= -noise and f - f2 + g2 @ way >= -noise)


def _noise(way: Floats, g: Floats, g2: Floats) -> float:
    lengths = [float(np.linalg.norm(v)) for v in (way, g, g2)]
    return lengths[0] * (SLACK * (lengths[1] + lengths[2]) + TINY)


def apart(labels: Ints, suspects: Bools) -> Ints:
    """Number the groups of trusted devices by first appearance, and after them every suspect as a group of its own.

    >>> apart(np.array([3, 3, 7, 7]), np.array([False, True, False, False])).tolist()
    [0, 2, 1, 1]
    """
    new = np.empty(len(labels), np.int64)
    trusted = ~suspects
    new[trusted] = canonical(labels[trusted]) if trusted.any() else 0
    new[suspects] = new[trusted].max(initial=-1) + 1 + np.arange(int(suspects.sum()))
    return new


def largest_value(d: int, dtype: npt.DTypeLike) -> float:
    """Return the largest number that ``d`` parameters may hold: squared distances must not overflow."""
    return _largest_value(d, np.dtype(dtype))


@cache
def _largest_value(d: int, dtype: np.dtype[np.floating]) -> float:
    return float(np.sqrt(np.finfo(dtype).max / (16 * max(d, 1))))


def fault(reply: Reply, asked: Mapping[int, Order], m: int, d: int, dtype: npt.DTypeLike) -> str | None:
    """Say what is wrong with a reply, or None: the gate between devices and the server's state.

    >>> asked = {1: Order(1, 7, Gradient(np.zeros(2)))}
    >>> fault(Reply(1, 6, np.ones(2)), asked, m=3, d=2, dtype="float32")
    'not asked for, or too late'
    """
    if not 0 <= reply.device < m:
        return "unknown device"
    order = asked.get(reply.device)
    if order is None or reply.round != order.round:
        return "not asked for, or too late"
    values = np.asarray(reply.values)
    if values.ndim != 1 or not _fits(order.task, values.size, d):
        return "wrong length"
    if values.dtype.kind not in "fiu":
        return "not numbers"
    largest = float(np.abs(values).max(initial=0))
    if not np.isfinite(largest):
        return "not finite"
    kind = np.float64 if isinstance(order.task, STATISTICS) else dtype
    return "too large" if largest > largest_value(d, kind) else None


def _fits(task: Task, size: int, d: int) -> bool:
    if isinstance(task, Subspace):
        return 0 < size <= task.floats_up(d) and size % task.features == 0
    return size == task.floats_up(d)
