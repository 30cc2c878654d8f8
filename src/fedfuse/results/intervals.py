"""Confidence intervals of the groups' coefficients, and of the differences between groups.

Computed from the training and validation rows of the federation, where they are at hand; nothing is sent. Estimates
have no penalty (`core.standard_errors`), so they may differ a little from a run's models. A column that others
determine is left out, as the first level of a category with all its levels: its effect is 0, the intercept is for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedfuse.core.standard_errors import estimate, interval
from fedfuse.data.federation import Federation
from fedfuse.errors import FedfuseError
from fedfuse.models.linear import second_moments
from fedfuse.results.result import Result
from fedfuse.utils.typing import Floats, Ints

AVERAGE_INTERCEPT = "intercept (at average features)"
# Each group is compared with every other; with more groups than this, with the largest.
MAX_PAIRED_GROUPS = 20
# Newton steps and the leverages of every device cost the cube of this.
MAX_COEFFICIENTS = 150
# A column of which other columns leave no larger share of the variance is a combination of these.
MIN_VARIANCE_LEFT = 1e-8


def infer(result: Result, federation: Federation) -> pd.DataFrame:
    """Return a row for each coefficient of a group (``against`` is 0), and for each difference between two groups."""
    outputs = [str(c) for c in result.profile.classes][1:] or ["value"]
    n = len(outputs) * (result.model.n_features + 1)
    if not result.model.convex or n > MAX_COEFFICIENTS or not len(result.groups):
        allowed = f"the groups of linear and softmax regression with at most {MAX_COEFFICIENTS:,} coefficients"
        raise FedfuseError(f"intervals are for {allowed}, got {len(result.groups)} groups and {n:,} coefficients")
    design = _Design(result, federation)
    combinations = np.kron(np.eye(len(outputs)), design.units)
    found = [estimate(design.devices(cluster), result.model.n_classes) for cluster in result.groups.tolist()]
    own = np.array([[*each.of(combinations), np.full(len(combinations), each.df)] for each in found])
    theirs, ours = np.triu_indices(len(own), 1)
    if len(own) > MAX_PAIRED_GROUPS:
        theirs, ours = theirs[: len(own) - 1], ours[: len(own) - 1]
    names = {"output": np.repeat(outputs, len(design.names)), "feature": np.tile(design.names, len(outputs))}
    coefficients = _rows(own, names, np.arange(1, len(own) + 1), np.zeros(len(own), np.int64))
    differences = _rows(_differences(own[ours], own[theirs]), names, ours + 1, theirs + 1)
    table: pd.DataFrame = pd.concat([coefficients, differences], ignore_index=True)
    table.insert(0, "cluster", result.groups[table["group"].to_numpy() - 1])
    return table


class _Design:
    """Columns of all rows with mean 0 and deviation 1, a column of ones last; and the way back to the table's units."""

    def __init__(self, result: Result, federation: Federation) -> None:
        if federation.weights is not None or result.profile.class_weights:
            raise FedfuseError("standard errors need equal weights, but this run has weights of rows or classes")
        encoder, p = result.profile.encoder, federation.n_features
        self._rows, self._labels = federation.rows("train+validation"), result.labels
        moments = second_moments(federation.X, np.zeros(len(federation.X)))
        shift, covariance = moments[p, :p], moments[:p, :p] - np.outer(moments[p, :p], moments[p, :p])
        self._kept = _independent(covariance)
        self._shift, self._scale = shift[self._kept], np.sqrt(np.diag(covariance))[self._kept]
        back = np.zeros((len(self._kept) + 1, p + 1))  # From coefficients of the design to those of all columns.
        back[np.arange(len(self._kept)), self._kept] = 1 / self._scale
        back[:, -1] = np.append(-self._shift / self._scale, 1.0)
        self.names = [*(result.profile.features[j] for j in self._kept), "intercept"]
        self.units = (encoder.unscale(back) if encoder else back).T[[*self._kept, p]]
        if encoder:
            self.names.append(AVERAGE_INTERCEPT)
            self.units = np.vstack([self.units, back[:, -1]])

    def devices(self, group: int) -> list[tuple[Floats, Floats]]:
        """Return the design and the target of every device of a group that has rows."""
        members = np.flatnonzero((self._labels == group) & (self._rows.counts > 0))
        rows = [self._rows.of(i) for i in members.tolist()]
        return [
            (np.column_stack([(X[:, self._kept] - self._shift) / self._scale, np.ones(len(X))]), y) for X, y in rows
        ]


def _independent(covariance: Floats) -> Ints:
    """Return the columns that are no linear combination of a constant and of columns after them."""
    left, kept = covariance.copy(), []
    for j in reversed(range(len(left))):
        if left[j, j] > MIN_VARIANCE_LEFT * covariance[j, j]:
            kept.append(j)
            left -= np.outer(left[:, j], left[j]) / left[j, j]
    return np.array(kept[::-1], np.int64)


def _differences(ours: Floats, theirs: Floats) -> Floats:
    """Return values, standard errors and Welch's degrees of freedom of differences between independent groups."""
    (a, of_a, df_a), (b, of_b, df_b) = ours.swapaxes(0, 1), theirs.swapaxes(0, 1)
    errors = np.hypot(of_a, of_b)
    with np.errstate(invalid="ignore"):
        return np.stack([a - b, errors, errors**4 / (of_a**4 / df_a + of_b**4 / df_b)], axis=1)


def _rows(found: Floats, names: dict[str, npt.NDArray[Any]], group: Ints, against: Ints) -> pd.DataFrame:
    """Return a row for each estimate (groups x (value, error, df) x names); Holm's correction is over all of them."""
    values, errors, df = found.swapaxes(0, 1).reshape(3, -1)
    table: pd.DataFrame = pd.DataFrame({
        **{name: np.repeat(of, found.shape[2]) for name, of in (("group", group), ("against", against))},
        **{name: np.tile(column, len(group)) for name, column in names.items()},
        "estimate": values, "se": errors, "df": df, **interval(values, errors, df),
    })  # fmt: skip
    return table


def feature_tests(table: pd.DataFrame) -> pd.DataFrame:
    """Return for each feature the smallest Holm-corrected p-value of a difference, and what could have been seen.

    ``detectable`` is that of the median difference between two groups. The intercept is that of `Result.contrasts`.
    """
    if AVERAGE_INTERCEPT in set(table["feature"]):
        table = table[table["feature"] != "intercept"].replace({"feature": {AVERAGE_INTERCEPT: "intercept"}})
    differences = table[table["against"] > 0].groupby("feature", sort=False)
    tests: pd.DataFrame = differences.agg({"p_holm": "min", "detectable": "median"})
    return tests
