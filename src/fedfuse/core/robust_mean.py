"""Means that a few wrong values cannot move far."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from fedfuse.utils.typing import Floats, Ints

Robust: TypeAlias = Literal["none", "screen", "median", "trimmed", "krum"]
# A device's mean further out than so many times the usual size counts as if it were there.
MAX_MEAN_RATIO = 10.0
# Share of the values that a trimmed mean leaves out on either side.
TRIMMED_RATIO = 0.2
# Quantile of lengths that says what is usual: honest devices decide it even if most others send longer vectors.
USUAL_LENGTH_QUANTILE = 0.1
# A positive number is absurd if its logarithm is this many robust standard deviations above the median of all. One of
# these is at least MIN_LOG_DEVIATION, so that 20 times the median never is.
MAX_LOG_ZSCORE, MIN_LOG_DEVIATION = 6.0, 0.5
# A move is too long if it is this many times as long as usual, which is ...
MAX_MOVE_RATIO = 10.0
# ... at least this, relative to the parameters: not every move of devices that have all but come to rest is too long.
MIN_USUAL_MOVE_RATIO = 0.01


def pooled_moments(answers: Floats, weights: Ints) -> tuple[Floats, Floats]:
    """Return the weighted means of columns and of their squares; who is far out counts as if on the verge of it."""
    first, second = np.split(np.asarray(answers, dtype=np.float64), 2, axis=1)
    middle, usual = np.median(first, axis=0), np.median(second, axis=0)
    # a column that is zero on most devices says nothing of what is far
    reach = np.where(usual > 0, MAX_MEAN_RATIO * np.sqrt(usual), np.inf)
    first = np.clip(first, middle - reach, middle + reach)
    second = np.minimum(second, np.where(usual > 0, 2 * MAX_MEAN_RATIO**2 * usual, np.inf))
    return np.average(first, axis=0, weights=weights), np.average(second, axis=0, weights=weights)


def robust_mean(values: Floats, weights: Floats, how: Robust) -> Floats:
    """Return one row for these (devices x n), of whom a minority may send anything.

    Coordinate by coordinate the median or the mean without the outer fifths (Yin et al., 2018), or the mean of those
    devices that have the nearest neighbours (multi-Krum, Blanchard et al., 2017).
    """
    n = len(values)
    if how == "median":
        return np.asarray(np.median(values, axis=0))
    if how == "trimmed":
        cut = int(TRIMMED_RATIO * n)
        return np.asarray(np.sort(values, axis=0)[cut : n - cut].mean(axis=0))
    if how == "krum" and n > 3:
        keep = central(values)
        return np.asarray(np.average(values[keep], axis=0, weights=weights[keep]))
    return np.asarray(np.average(values, axis=0, weights=weights))


def group_medians(values: Floats, labels: Ints, n_groups: int) -> Floats:
    """Return the lower median of every group's values; of an empty group, infinity."""
    order, sizes = np.lexsort((values, labels)), np.bincount(labels, minlength=n_groups)
    medians, known = np.full(n_groups, np.inf), sizes > 0
    middle = np.cumsum(sizes) - sizes + (sizes - 1) // 2
    medians[known] = values[order[middle[known]]]
    return medians


def upper_fence(values: Floats | Ints, labels: Ints | None = None, n_groups: int = 1) -> Floats:
    """Return the largest of such positive numbers that is not absurd, if few of them lie; or of every group.

    Medians are lower ones: of two numbers, the smaller one says what is usual. Where that is zero, infinity.
    """
    group = np.zeros(len(values), np.int64) if labels is None else labels
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.asarray(values, np.float64))
        middle = group_medians(logs, group, n_groups)
        away = np.nan_to_num(np.abs(logs - middle[group]), nan=0.0)
        deviation = np.maximum(1.4826 * group_medians(away, group, n_groups), MIN_LOG_DEVIATION)
        return np.where(np.isfinite(middle), np.exp(middle + MAX_LOG_ZSCORE * deviation), np.inf)


def usual_length(lengths: Floats) -> Floats:
    """Return a low quantile of lengths, an honest device's even where most are far too long; of none, infinity."""
    if not lengths.shape[-1]:
        return np.full(lengths.shape[:-1], np.inf)
    return np.asarray(np.quantile(lengths, USUAL_LENGTH_QUANTILE, axis=-1, method="lower"))


def longest_moves(rows: Ints, moves: Floats, rows_moved: Ints, size: float) -> Floats:
    """Return how far devices with these rows may move parameters of this size, by how far others have moved them.

    Who has more rows takes more steps in an epoch, and may move as much further.
    """
    steps = np.maximum(1.0, rows[:, None] / np.maximum(rows_moved, 1))
    return MAX_MOVE_RATIO * np.maximum(usual_length(moves * steps), MIN_USUAL_MOVE_RATIO * size)


def central(values: Floats) -> Ints:
    """Return the rows that Krum keeps: those with the nearest neighbours, if just under half of all may lie."""
    n = len(values)
    liars = (n - 3) // 2
    squares = np.square(values).sum(axis=1)
    distances = squares[:, None] + squares[None] - 2 * values @ values.T
    scores = np.sort(distances, axis=1)[:, 1 : n - liars - 1].sum(axis=1)
    return np.sort(np.argsort(scores, kind="stable")[: n - liars])
