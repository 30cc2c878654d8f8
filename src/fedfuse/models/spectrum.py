"""Means of products of a device's columns, and their eigenvalues: float64, whatever the rows are."""

from __future__ import annotations

import numpy as np

from fedfuse.utils.typing import Floats

ROWS = 1 << 14  # that are copied at a time


def second_moments(X: Floats, y: Floats) -> Floats:
    """Return the mean of z z' over rows, z = (x, 1, y).

    >>> second_moments(np.array([[1.0], [3.0]]), np.array([0.0, 2.0]))
    array([[5., 2., 3.],
           [2., 1., 1.],
           [3., 1., 2.]])
    """
    total = np.zeros((X.shape[1] + 2, X.shape[1] + 2))
    for first in range(0, len(y), ROWS):
        part = slice(first, first + ROWS)
        z = np.column_stack([X[part], np.ones(len(y[part])), y[part]]).astype(np.float64, copy=False)
        total += z.T @ z
    return total / max(len(y), 1)


def spectrum(X: Floats) -> tuple[Floats, Floats]:
    """Return eigenvalues and eigenvectors (columns) of the mean of (x, 1)(x, 1)'; zeros may be left out."""
    n, d = X.shape[0], X.shape[1] + 1
    if n > d:
        values, vectors = np.linalg.eigh(second_moments(X, np.zeros(n))[:d, :d])
        return np.maximum(values, 0), vectors
    ones = np.column_stack([X, np.ones(n)]).astype(np.float64)
    _, singular, rows = np.linalg.svd(ones / np.sqrt(max(n, 1)), full_matrices=False)
    return singular**2, rows.T
