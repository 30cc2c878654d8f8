"""Metrics as functions of sums that every device computes at home.

A device sends the sums of a metric, a fixed number of floats; the server adds them up. Accuracy, log-loss, RMSE and MAE
of a federation are plain means over its devices. AUC, F1, balanced accuracy and R² are taken over all rows together:
many a device has rows of one class only, or too few to have a variance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedfuse.core.robust_mean import upper_fence
from fedfuse.errors import FedfuseError, guess
from fedfuse.utils.typing import Bools, Floats, Ints

Goal: TypeAlias = Literal["classification", "regression"]
# For every row the cells that it adds to, and what (k x rows each, or to be broadcast).
Terms: TypeAlias = tuple[npt.NDArray[Any], Floats]

# AUC counts log-odds in bins. At a width of 1/16 the ties within a bin hardly matter (tests: below 0.002).
LOGIT_BINS, MAX_LOGIT = 512, 16.0
ROUNDING_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Metric:
    """A score of predictions."""

    name: str  # as the command line and ``summary.json`` have it
    label: str  # as people write it
    goal: Goal
    greater_is_better: bool
    _terms: Callable[[Floats, npt.NDArray[Any], Floats], Terms]
    _value: Callable[[Floats], Floats]
    size: Callable[[int], int] = lambda n_classes: 2  # how many sums a device has
    _rows: Callable[[Floats], Floats] = lambda sums: np.asarray(sums.sum(axis=1))
    _signed: tuple[int, ...] = ()  # cells that may be negative
    pooled: bool = False  # whether `overall` is taken over all rows together, or is the mean over devices
    percent: bool = False  # whether it is shown in percent

    def sums(
        self, outputs: Floats, y: npt.NDArray[Any], start: Ints, stop: Ints, weights: Floats | None = None
    ) -> Floats:
        """Return the sums of every device (m x size), whose rows are ``start[i]:stop[i]``.

        ``outputs`` are predicted values, or class probabilities (rows x classes); ``y`` are values or class numbers.
        """
        m, size, counts = len(start), self.size(outputs.shape[1] if outputs.ndim > 1 else 0), stop - start
        device = np.repeat(np.arange(m), counts)
        row = np.arange(device.size) - np.repeat(counts.cumsum() - stop, counts)
        outputs, weight = outputs[row], np.ones(row.size) if weights is None else weights[row]
        finite = np.isfinite(outputs).reshape(row.size, -1).all(axis=1)  # Models that diverged have no score.
        cells, terms = np.broadcast_arrays(*self._terms(outputs, y[row], np.where(finite, weight, np.nan)))
        sums: Floats = np.bincount((device * size + cells).ravel(), terms.ravel(), m * size).astype(np.float64)
        return sums.reshape(m, size)

    def by_device(self, sums: Floats) -> Floats:
        """Return every device's value; nan where it has none."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self._value(np.asarray(sums, np.float64))

    def overall(self, sums: Floats) -> float:
        """Return the value of the federation: of all rows together, or the mean over devices that have one."""
        return float(self.by_device(sums.sum(axis=0)[None])[0] if self.pooled else _mean(self.by_device(sums)))

    def impossible(self, sums: Floats, rows: Ints | float) -> Bools:
        """Return whose sums cannot be of so many rows (without weights), or are absurd beside those of others."""
        counted, size = self._rows(sums), np.abs(sums).sum(axis=1)
        negative = (np.delete(sums, self._signed, axis=1) < 0).any(axis=1)
        per_row = np.divide(size, counted, out=np.where(size > 0, np.inf, 0.0), where=counted > 0)
        far = per_row > upper_fence(per_row[per_row > 0])
        return np.asarray(negative | far | (counted > rows * (1 + ROUNDING_TOLERANCE)))

    def difference(self, sums_a: Floats, sums_b: Floats) -> tuple[float, float]:
        """Return the difference of two overall values, and its standard error by the jackknife (nan for one device)."""
        known = np.flatnonzero(sums_a.any(axis=1) & sums_b.any(axis=1))
        a, b = sums_a[known], sums_b[known]
        without = self._leave_one_out(a) - self._leave_one_out(b)
        k = len(without)
        error = np.sqrt((k - 1) / k * np.square(without - without.mean()).sum()) if k > 1 else np.nan
        return self.overall(a) - self.overall(b) if k else np.nan, float(error)

    def _leave_one_out(self, sums: Floats) -> Floats:
        """Return the overall value without each of the devices."""
        if self.pooled:
            return self.by_device(sums.sum(axis=0) - sums)
        values = self.by_device(sums)
        return np.asarray((values.sum() - values) / max(len(values) - 1, 1))


def metric_for(goal: str, name: str | None = None) -> Metric:
    """Return the metric of this name, by default accuracy or RMSE; an error where it does not suit the goal."""
    known = [metric.name for metric in METRICS.values() if metric.goal == goal]
    name = known[0] if name is None else name
    if name not in known:
        what = "classes" if goal == "classification" else "values"
        raise FedfuseError(f"there is no metric {name!r} for {what}; {guess(name, known)}known: {', '.join(known)}")
    return METRICS[name]


def _mean(values: Floats) -> Floats:
    """Return the mean over the last axis of what is not nan; nan where all is."""
    known = ~np.isnan(values)
    total = np.where(known, values, 0.0).sum(axis=-1)
    return np.asarray(np.divide(total, known.sum(axis=-1), out=np.full(np.shape(total), np.nan), where=known.any(-1)))


def _averaged(term: Callable[[Floats, npt.NDArray[Any]], Floats]) -> Callable[..., Terms]:
    """Return terms that sum up to a weighted sum and the weights."""
    return lambda outputs, y, weight: (np.array([[0], [1]]), np.stack([weight * term(outputs, y), weight]))


def _right(outputs: Floats, y: npt.NDArray[Any]) -> Floats:
    return np.asarray(outputs.argmax(axis=1) == y, np.float64)


def _surprise(outputs: Floats, y: npt.NDArray[Any]) -> Floats:
    likelihood = outputs[np.arange(len(y)), y].astype(np.float64)
    return np.asarray(-np.log(np.clip(likelihood, np.finfo(np.float64).eps, 1.0)))


def _ratio(sums: Floats) -> Floats:
    return np.asarray(sums[:, 0] / sums[:, 1])


def _confusion(outputs: Floats, y: npt.NDArray[Any], weight: Floats) -> Terms:
    return y * outputs.shape[1] + outputs.argmax(axis=1), weight


def _margins(sums: Floats) -> tuple[Floats, Floats, Floats]:
    """Return for every class the rows that are right, those predicted and those that are there."""
    classes = round(np.sqrt(sums.shape[1]))
    tables = sums.reshape(-1, classes, classes)
    return np.diagonal(tables, axis1=1, axis2=2), tables.sum(axis=1), tables.sum(axis=2)


def _mean_recall(sums: Floats) -> Floats:
    right, _, there = _margins(sums)
    return _mean(right / there)


def _mean_f1(sums: Floats) -> Floats:
    right, predicted, there = _margins(sums)
    return _mean(2 * right / (predicted + there))


def _scored(n_classes: int) -> int:
    """Return how many classes are told from the rest: of two, one says all."""
    return 1 if n_classes == 2 else n_classes


def _histogram(outputs: Floats, y: npt.NDArray[Any], weight: Floats) -> Terms:
    """Return the cells (class, rest or itself, bin) of every row."""
    C = _scored(outputs.shape[1])
    p = np.asarray(outputs, np.float64)[:, -C:]
    with np.errstate(divide="ignore"):
        logit = np.nan_to_num(np.log(p) - np.log1p(-p)).clip(-MAX_LOGIT, MAX_LOGIT)
    bins = np.minimum((logit + MAX_LOGIT) * (LOGIT_BINS / (2 * MAX_LOGIT)), LOGIT_BINS - 1).astype(np.int64)
    of_class = y[:, None] == np.arange(outputs.shape[1])[-C:]
    return ((2 * np.arange(C) + of_class) * LOGIT_BINS + bins).T, weight


def _area(sums: Floats) -> Floats:
    """Return the mean over classes of P(score of the class > score of the rest), ties count half."""
    counts = sums.reshape(len(sums), -1, 2, LOGIT_BINS)
    rest, own = counts[:, :, 0], counts[:, :, 1]
    below = np.cumsum(rest, axis=-1) - rest / 2
    return _mean((own * below).sum(axis=-1) / (own.sum(axis=-1) * rest.sum(axis=-1)))


def _squares(outputs: Floats, y: npt.NDArray[Any], weight: Floats) -> Terms:
    return np.arange(4)[:, None], weight * np.stack([np.square(outputs - y), np.square(y), y, np.ones(len(y))])


def _explained(sums: Floats) -> Floats:
    errors, squares, total, weight = sums.T
    spread = squares - total**2 / weight
    # A device with one row, or with a constant target, has no variance to explain.
    return np.where(spread > 1e-12 * squares, 1 - errors / spread, np.nan)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "accuracy", "classification", True, _averaged(_right), _ratio, percent=True),
        Metric(
            "balanced-accuracy", "balanced accuracy", "classification", True, _confusion, _mean_recall, lambda c: c * c,
            pooled=True, percent=True,
        ),
        Metric("log-loss", "log-loss", "classification", False, _averaged(_surprise), _ratio),
        Metric(
            "auc", "AUC", "classification", True, _histogram, _area, lambda c: 2 * LOGIT_BINS * _scored(c), pooled=True,
            _rows=lambda s: s.sum(axis=1) * (2 * LOGIT_BINS / s.shape[1]),
        ),
        Metric("f1", "F1", "classification", True, _confusion, _mean_f1, lambda c: c * c, pooled=True),
        Metric(
            "rmse", "RMSE", "regression", False, _averaged(lambda p, y: np.square(p - y)), lambda s: np.sqrt(_ratio(s))
        ),
        Metric("mae", "MAE", "regression", False, _averaged(lambda p, y: np.abs(p - y)), _ratio),
        Metric(
            "r2", "R²", "regression", True, _squares, _explained, lambda c: 4, pooled=True, _rows=lambda s: s[:, 3],
            _signed=(2,),
        ),
    )
}  # fmt: skip
