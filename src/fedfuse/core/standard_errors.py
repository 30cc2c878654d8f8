"""Standard errors of regression coefficients that hold where noise differs between rows and between devices.

Linear and softmax regression are fitted by maximum likelihood, without a ridge: no standard error would tell its bias.
The covariance is the sandwich CR2 of Bell and McCaffrey (2002), a sum of delta delta' over
blocks of rows. With r the residuals of a block, W their weights (1 for linear regression, diag(pi) - pi pi' for
softmax), s = X' r, B = X' W X, and A the sum of all B,

    delta = A^-1/2 (I - A^-1/2 B A^-1/2)^-1/2 A^-1/2 s

For linear regression with equal noise it is unbiased. Blocks are devices where there are at least `MIN_DEVICES`, which
allows for devices that differ a little within a group; otherwise rows are cut into blocks. Degrees of freedom are the
blocks less one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import softmax, stdtr, stdtrit

from fedfuse.utils.typing import Floats

# The rows X and the target y of some devices, or blocks of rows.
Blocks: TypeAlias = Sequence[tuple[Floats, npt.NDArray[Any]]]

MIN_DEVICES = 5
MAX_ROW_BLOCKS, MIN_BLOCK_ROWS = 40, 2
LEVEL, POWER = 0.95, 0.8
MAX_NEWTON_STEPS, MAX_HALVINGS, STEP_TOLERANCE = 60, 20, 1e-9
# Eigenvalues of the information below this share of the largest count as zero: rows say nothing of such directions.
RANK_TOLERANCE = 1e-9
# A combination of coefficients is known if no larger share of it lies in directions of which rows say nothing. A block
# with less than this left of 1 - leverage is all that is known of a direction, and nothing tells how well.
ESTIMABLE_TOLERANCE, MIN_LEVERAGE_LEFT = 1e-5, 1e-8


@dataclass(frozen=True)
class Estimate:
    """Coefficients (outputs x columns, flat), their covariance, and its degrees of freedom.

    ``known`` projects onto what rows tell of them.
    """

    values: Floats
    covariance: Floats
    known: Floats
    df: float

    def of(self, combinations: Floats) -> tuple[Floats, Floats]:
        """Return values and standard errors of linear combinations (rows); nan for those that rows cannot tell."""
        unknown = np.abs(combinations @ self.known - combinations).max(axis=1)
        told = unknown <= ESTIMABLE_TOLERANCE * np.abs(combinations).max(axis=1)
        errors = np.sqrt(np.einsum("ij,jk,ik->i", combinations, self.covariance, combinations))
        return np.where(told, combinations @ self.values, np.nan), np.where(told, errors, np.nan)


def estimate(devices: Blocks, n_classes: int = 0) -> Estimate:
    """Fit the rows (X, y) of some devices together; X has a column of ones, and columns of like size.

    Classes are 0 … n_classes - 1, and their coefficients log-odds against class 0; without classes y are values.

    >>> X, y = np.ones((4, 1)), np.array([1.0, 2.0, 3.0, 6.0])
    >>> mean = estimate([(X, y)])  # two blocks, with sums of residuals -3 and 3: delta = 3 / 4 / (1 - 1/2)^1/2
    >>> mean.values.tolist(), mean.covariance.round(9).tolist(), mean.df
    ([3.0], [[2.25]], 1.0)
    """
    w = _maximum(devices, n_classes)
    whole = _total(_derivatives(X, y, w, n_classes)[1] for X, y in devices)
    root = _inverse_root(whole)
    for blocks in ([devices] if len(devices) >= MIN_DEVICES else []) + [_row_blocks(devices)]:
        deltas, carried = _deltas(blocks, root, w, n_classes)
        if not carried.size:
            break
    known = root @ (np.eye(root.shape[1]) - carried @ carried.T) @ root.T @ whole
    return Estimate(w.ravel(), deltas.T @ deltas, known, max(len(blocks) - 1.0, 1.0))


def _maximum(devices: Blocks, n_classes: int) -> Floats:
    """Maximise the likelihood by Newton's method; return coefficients (outputs x columns).

    Where classes can be separated some directions lead to infinity. Rows soon tell nothing more of these, and steps
    leave them out.
    """

    def derivatives(w: Floats) -> tuple[Floats, Floats]:
        found = _total(np.column_stack(_derivatives(X, y, w, n_classes)) for X, y in devices)
        return found[:, 0], found[:, 1:]

    w = np.zeros((max(n_classes - 1, 1), devices[0][0].shape[1]))
    score, information = derivatives(w)
    for _ in range(MAX_NEWTON_STEPS):
        root = _inverse_root(information)
        step, before = root @ (root.T @ score), score
        for halvings in range(MAX_HALVINGS):  # The likelihood is concave: a steep way down ahead means too far.
            there = w + 0.5**halvings * step.reshape(w.shape)
            score, information = derivatives(there)
            if step @ score >= -step @ before:
                break
        w = there
        if np.abs(step).max() <= STEP_TOLERANCE * (1 + np.abs(w).max()):
            break
    return w


def _derivatives(X: Floats, y: npt.NDArray[Any], w: Floats, n_classes: int) -> tuple[Floats, Floats]:
    """Return the score X' r and the information X' W X of some rows."""
    if not n_classes:
        return X.T @ (y - X @ w[0]), X.T @ X
    p = softmax(np.column_stack([np.zeros(len(X)), X @ w.T]), axis=1)[:, 1:]
    score = ((np.asarray(y)[:, None] == np.arange(1, n_classes)) - p).T @ X
    weights = [[p[:, k] * ((k == c) - p[:, c]) for c in range(len(w))] for k in range(len(w))]
    return score.ravel(), np.block([[(X * weight[:, None]).T @ X for weight in row] for row in weights])


def _row_blocks(devices: Blocks) -> Blocks:
    X, y = (np.concatenate(parts) for parts in zip(*devices, strict=True))
    n = max(1, min(len(y) // MIN_BLOCK_ROWS, MAX_ROW_BLOCKS))
    return list(zip(np.array_split(X, n), np.array_split(y, n), strict=True))


def _total(parts: Iterable[Floats]) -> Floats:
    """Add arrays up one by one: those of all devices at once may be large."""
    return np.asarray(sum(parts))


def _inverse_root(information: Floats) -> Floats:
    """Return R with R R' the pseudo-inverse of a symmetric matrix, a column for each direction that is known."""
    values, vectors = np.linalg.eigh(information)
    known = values > RANK_TOLERANCE * max(values[-1], np.finfo(float).tiny)
    return np.asarray(vectors[:, known] / np.sqrt(values[known]))


def _deltas(blocks: Blocks, root: Floats, w: Floats, n_classes: int) -> tuple[Floats, Floats]:
    """Return each block's delta, and the directions (columns, rotated by the root) that one block alone tells."""
    deltas, carried = [], [np.empty((root.shape[1], 0))]
    for X, y in blocks:
        score, information = _derivatives(X, y, w, n_classes)
        leverages, Q = np.linalg.eigh(root.T @ information @ root)
        alone = 1 - leverages < MIN_LEVERAGE_LEFT
        carried.append(Q[:, alone])
        Q, leverages = Q[:, ~alone], leverages[~alone]
        deltas.append(root @ (Q / np.sqrt(1 - leverages)) @ Q.T @ root.T @ score)
    return np.array(deltas), np.concatenate(carried, axis=1)


def interval(values: Floats, errors: Floats, df: Floats) -> dict[str, Floats]:
    """Return two-sided 95 % limits by Student's t, p-values of 0, and the size that is found with 80 % power.

    >>> {name: x.round(3).tolist() for name, x in interval(np.array([2.0]), np.ones(1), np.array([1e9])).items()}
    {'low': [0.04], 'high': [3.96], 'p': [0.046], 'p_holm': [0.046], 'detectable': [2.802]}
    """
    tail, power = stdtrit(df, (1 + LEVEL) / 2) * errors, stdtrit(df, POWER) * errors
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stdtr(df, -np.abs(values / errors))
    return {"low": values - tail, "high": values + tail, "p": p, "p_holm": holm(p), "detectable": tail + power}


def holm(p: Floats) -> Floats:
    """Return p-values adjusted for the number of tests by Holm's method; nan are no tests.

    >>> holm(np.array([0.01, 0.04, np.nan, 0.03])).round(3).tolist()
    [0.03, 0.06, nan, 0.06]
    """
    adjusted, tests = np.full(len(p), np.nan), np.flatnonzero(~np.isnan(p))
    order = tests[np.argsort(p[tests], kind="stable")]
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted
