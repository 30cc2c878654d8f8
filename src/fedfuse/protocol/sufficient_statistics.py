"""Rows in summary: what a device sends for `protocol.tasks.SendSufficientStatistics`, and what the server reads in it.

With mean mu and covariance matrix S of the columns (x, y), the squared error of a linear model is

    mean (y - x'w - b)^2 = v'S v + (v'mu - b)^2,    v = (-w, 1)

and so are its gradient and its minimum told by mu and S.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedfuse.core.moments import unpack_moments
from fedfuse.data.federation import Federation
from fedfuse.protocol.tasks import SUMMARISED
from fedfuse.utils.typing import Floats, Ints

# Rows for each column of a part that is summed up, where rows are private: means and covariances of fewer tell rows.
MIN_ROWS_PER_COLUMN = 2
# Ridge of the fit whose residuals say how uneven noise is.
RESIDUAL_RIDGE = 1e-2
# A row of more leverage says nothing of the noise.
MAX_LEVERAGE = 0.9


@dataclass(frozen=True)
class SufficientStatistics:
    """Means (k x c) and covariances (k x c x c) of the columns of one part of k devices, over ``n`` rows each."""

    n: Ints
    mean: Floats
    covariance: Floats

    @classmethod
    def read(cls, sent: Floats, n: Ints) -> SufficientStatistics:
        """Take apart what devices have sent of one part (one row each)."""
        mean, covariance = unpack_moments(np.asarray(sent, np.float64))
        return cls(n, mean, covariance)

    def of(self, devices: Ints) -> SufficientStatistics:
        """Return those of these devices."""
        return SufficientStatistics(self.n[devices], self.mean[devices], self.covariance[devices])

    def rescaled(self, shift: Floats, scale: Floats) -> SufficientStatistics:
        """Return what they are of ``(column - shift) / scale``."""
        return SufficientStatistics(self.n, (self.mean - shift) / scale, self.covariance / np.outer(scale, scale))

    def __add__(self, other: SufficientStatistics) -> SufficientStatistics:
        """Return the summary of both parts together."""
        n = self.n + other.n
        share = (other.n / np.where(n > 0, n, 1))[:, None]
        gap = other.mean - self.mean
        between = (share * (1 - share))[:, :, None] * gap[:, :, None] * gap[:, None, :]
        within = (1 - share)[:, :, None] * self.covariance + share[:, :, None] * other.covariance
        return SufficientStatistics(n, self.mean + share * gap, within + between)

    @property
    def moments(self) -> Floats:
        """Return sums over rows of the products of (x, 1, y)."""
        line = np.insert(self.mean, -1, 1.0, axis=1)
        second = line[:, :, None] * line[:, None, :]
        columns = np.delete(np.arange(line.shape[1]), -2)
        second[:, columns[:, None], columns] += self.covariance
        return np.asarray(self.n[:, None, None] * second)

    @property
    def lengths(self) -> Floats:
        """Return the median over columns of their root mean squares, in units of what is usual on these devices."""
        squares = np.einsum("kcc->kc", self.covariance) + self.mean**2
        usual = np.quantile(squares, 0.5, axis=0, method="lower")
        return np.asarray(np.sqrt(np.median((squares / np.where(usual > 0, usual, np.inf))[:, usual > 0], axis=1)))

    def evaluate(self, w: Floats) -> tuple[Floats, Floats]:
        """Return the mean squared error of one model each (k x d), and its gradient."""
        v = np.column_stack([-w[:, :-1], np.ones(len(w))])
        away = np.einsum("kc,kc->k", v, self.mean) - w[:, -1]
        slopes = np.einsum("kij,kj->ki", self.covariance, v)
        loss = np.einsum("kc,kc->k", v, slopes) + away**2
        gradient = -2 * np.column_stack([slopes[:, :-1] + away[:, None] * self.mean[:, :-1], away])
        return np.where(self.n > 0, loss, 0.0), np.where(self.n[:, None] > 0, gradient, 0.0)

    def fit(self, ridge: float) -> Floats:
        """Return the minimum of the squared error and ``ridge / 2`` times that of the parameters, one model each."""
        second = 2 * self.moments / np.where(self.n > 0, self.n, 1)[:, None, None]
        H = second[:, :-1, :-1] + ridge * np.eye(second.shape[1] - 1)
        return np.asarray(np.linalg.solve(H, second[:, :-1, -1:])[:, :, 0])


def parts(sent: Floats) -> dict[str, Floats]:
    """Return what was sent of every part (one row for each device)."""
    pieces = np.split(np.asarray(sent[:, :-1], np.float64), len(SUMMARISED), axis=1)
    return dict(zip(SUMMARISED, pieces, strict=True))


def tells_rows(federation: Federation) -> bool:
    """Whether a part of some device has so few rows that its sums would tell them."""
    columns = federation.n_features + (federation.goal == "regression")
    counts = np.stack([federation.rows(part).counts for part in SUMMARISED])
    return bool(((counts > 0) & (counts < MIN_ROWS_PER_COLUMN * columns)).any())


# -- on the device


def written(parts: Sequence[tuple[Floats, Floats | None]]) -> Floats:
    """Return the summary of a device's rows: for each part a table, the target in the last column, and weights."""
    tables, weights = zip(*parts, strict=True)
    whole = None if weights[0] is None else np.concatenate(weights)
    sent = [_covariances(*part) for part in parts]
    return np.concatenate([*sent, [_unevenness(np.concatenate(tables), whole)]])


def column_means(table: Floats, weights: Floats | None) -> Floats:
    """Return the (weighted) means of columns."""
    return np.asarray(table.mean(axis=0) if weights is None else weights @ table / (weights.sum() or 1.0))


def _covariances(table: Floats, weights: Floats | None) -> Floats:
    """Return means and the upper triangle of the covariance matrix; zeros if there are no rows."""
    columns = table.shape[1]
    if not len(table):
        return np.zeros(columns * (columns + 3) // 2)
    mean = column_means(table, weights)
    away = table - mean
    heavy = away if weights is None else weights[:, None] * away
    covariance = heavy.T @ away / (len(table) if weights is None else weights.sum() or 1.0)
    return np.concatenate([mean, covariance[np.triu_indices(columns)]])


def _unevenness(table: Floats, weights: Floats | None) -> float:
    """Return the mean of the squared residuals of a ridge fit, weighted by their leverage, against the plain mean.

    Either is divided by what is left of the noise in a residual (White, 1980; the HC2 of MacKinnon and White, 1985).
    """
    total = len(table) if weights is None else weights.sum()
    if not total:
        return 1.0
    away = table - column_means(table, weights)
    scale = away.std(axis=0) if weights is None else np.sqrt(column_means(np.square(away), weights))
    X = np.column_stack([away / np.where(scale > 0, scale, 1.0), np.ones(len(away))])
    X, y = np.delete(X, -2, axis=1), X[:, -2]
    heavy = X if weights is None else weights[:, None] * X
    inverse = np.linalg.inv(heavy.T @ X + RESIDUAL_RIDGE * total * np.eye(X.shape[1]))
    leverage = np.minimum(np.einsum("ij,jk,ik->i", X, inverse, X), MAX_LEVERAGE)
    squares = np.square(y - X @ (inverse @ (heavy.T @ y))) / (1 - leverage)
    plain, leverage = column_means(squares, weights), leverage if weights is None else weights * leverage
    return float((leverage @ squares) / leverage.sum() / max(plain, 1e-300)) if squares.any() else 1.0
