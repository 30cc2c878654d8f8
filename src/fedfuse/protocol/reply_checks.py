"""Checks of replies: what no honest device can send.

An honest device's accuracy is a share, its losses are not negative, the mean of its squares is at least the square of
its mean, and the gradient of its convex loss f is monotone: for any two points, (w - w') (g - g') >= 0 and
f(w) >= f(w') + g' (w - w'). A device that breaks these rules lies, whatever the others send, even if most of them lie.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedfuse.core.moments import unpack_moments
from fedfuse.core.partitions import canonical
from fedfuse.core.robust_mean import upper_fence
from fedfuse.data.federation import Goal
from fedfuse.protocol.sufficient_statistics import SufficientStatistics, parts
from fedfuse.protocol.tasks import STATISTICS, Order, Reply, Subspace, Task
from fedfuse.utils.typing import Bools, Floats, Ints

# Relative tolerances: for rounding and inexact solvers together, for rounding alone, and for rounding in a covariance.
SOLVER_TOLERANCE, ROUNDING_TOLERANCE, COVARIANCE_TOLERANCE = 1e-3, 1e-5, 1e-6
# Absolute tolerance for gradients.
GRADIENT_TOLERANCE = 1e-4


def possible_moments(answer: Floats) -> bool:
    """Whether means and means of squares can be of the same numbers."""
    first, second = np.split(np.asarray(answer, dtype=np.float64), 2)
    return bool((second >= (1 - ROUNDING_TOLERANCE) * first**2).all())


def possible_score(score: float, goal: Goal) -> bool:
    """Whether this can be an accuracy, or for values an RMSE."""
    return 0 <= score <= (1 + ROUNDING_TOLERANCE if goal == "classification" else np.inf)


def absurd_scores(scores: Floats, greater_is_better: bool) -> list[int]:
    """Return whose scores (nan: unknown; the best is 1, of errors 0) cannot be, or are far worse than others."""
    errors = 1 - scores if greater_is_better else scores
    known = np.isfinite(errors)
    fence = max(float(upper_fence(errors[known & (errors > 0)])[0]), float(greater_is_better))
    far = known & (errors > fence)
    far &= 4 * far.sum() <= known.sum()  # So many are no liars, but a group with a bad model.
    return [int(i) for i in np.flatnonzero(far | (known & (errors < -ROUNDING_TOLERANCE)))]


def possible_judgement(answer: Floats) -> bool:
    """Whether these can be mean losses and the covariances of them (see `protocol.tasks.EvaluateModels`)."""
    means, matrix = (each[0] for each in unpack_moments(answer[None]))
    variances = np.diag(matrix)
    if (means < 0).any() or (variances < 0).any():
        return False
    bound = np.sqrt(np.outer(variances, variances))
    return bool((np.abs(matrix) <= (1 + SOLVER_TOLERANCE) * bound + 1e-9 * variances.max(initial=0)).all())


def possible_statistics(answer: Floats, rows: Sequence[int]) -> bool:
    """Whether these can be means and covariances of so many rows of either part.

    No combination of columns has a negative variance, n rows vary in at most n - 1 directions, and two parts that
    vary are not the same to the last digit.
    """
    first, second = pieces = [*parts(answer[None]).values()]
    read = [SufficientStatistics.read(piece, np.array([n])) for piece, n in zip(pieces, rows, strict=True)]
    alike = min(rows) > 0 and np.array_equal(first, second) and read[0].covariance.any()
    return bool(answer[-1] >= 0) and not alike and all(map(_possible_part, read))


def _possible_part(part: SufficientStatistics) -> bool:
    n, covariance = int(part.n[0]), part.covariance[0]
    variances = np.diag(covariance)
    if (variances < 0).any():
        return False
    # Columns are scaled, so that those with small numbers count too; columns that are constant up to rounding do not.
    unit = np.sqrt(variances)
    unit[(unit <= COVARIANCE_TOLERANCE * np.abs(part.mean[0])) | (unit == 0)] = np.inf
    values, slack = np.linalg.eigvalsh(covariance / np.outer(unit, unit)), COVARIANCE_TOLERANCE * len(covariance)
    return bool(values[0] >= -slack and (values[: max(len(values) - max(n - 1, 0), 0)] <= slack).all())


def monotone(w: Floats, g: Floats, w2: Floats, g2: Floats) -> bool:
    """Whether these can be the gradients of one convex function at two points."""
    way = np.asarray(w2, dtype=np.float64) - w
    return bool(way @ (g2 - g) >= -_noise(way, g, g2))


def supported(w: Floats, g: Floats, f: float, w2: Floats, g2: Floats, f2: float) -> bool:
    """Whether these can be values and gradients of one convex function that is nowhere negative."""
    if f < 0 or f2 < 0:
        return False
    way = np.asarray(w2, dtype=np.float64) - w
    noise = _noise(way, g, g2) + SOLVER_TOLERANCE * (f + f2)
    return bool(f2 - f - g @ way >= -noise and f - f2 + g2 @ way >= -noise)


def _noise(way: Floats, g: Floats, g2: Floats) -> float:
    lengths = [float(np.linalg.norm(v)) for v in (way, g, g2)]
    return lengths[0] * (SOLVER_TOLERANCE * (lengths[1] + lengths[2]) + GRADIENT_TOLERANCE)


def apart(labels: Ints, suspects: Bools) -> Ints:
    """Number the groups of trusted devices by first appearance, and after them every suspect as a group of its own."""
    new = np.empty(len(labels), np.int64)
    trusted = ~suspects
    new[trusted] = canonical(labels[trusted]) if trusted.any() else 0
    new[suspects] = new[trusted].max(initial=-1) + 1 + np.arange(int(suspects.sum()))
    return new


def largest_value(d: int, dtype: npt.DTypeLike) -> float:
    """Return the largest number that ``d`` parameters may hold: squared distances must not overflow."""
    return float(np.sqrt(np.finfo(dtype).max / (16 * max(d, 1))))


def fault(reply: Reply, order: Order | None, m: int, d: int, dtype: npt.DTypeLike) -> str | None:
    """Say what is wrong with a reply to an order, or None: the gate between devices and the server's state."""
    if not 0 <= reply.device < m:
        return "unknown device"
    if order is None or (reply.device, reply.round) != (order.device, order.round):
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
