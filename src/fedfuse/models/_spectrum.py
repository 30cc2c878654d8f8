"""Means of products of a device's columns, and their eigenvalues: float64, whatever the rows are."""

from __future__ import annotations

import numpy as np

from fedfuse.types import Floats


def second_moments(X: Floats, y: Floats) -> Floats:
    """Return the mean of z z' over rows, z = (x, 1, y), filled up with zeros to a multiple of four columns.

    >>> second_moments(np.array([[1.0], [3.0]]), np.array([0.0, 2.0]))
    array([[5., 2., 3., 0.],
           [2., 1., 1., 0.],
           [3., 1., 2., 0.],
           [0., 0., 0., 0.]])
    """
    from fedfuse.models._kernels import moments  # compiled: only for who computes

    q = moment_columns(X.shape[1])
    out = np.empty((q, q))
    moments(X, y, out)
    return out


def moment_columns(p: int) -> int:
    """Return the number of columns of `second_moments` of p features."""
    return -(-(p + 2) // 4) * 4


def spectrum(X: Floats) -> tuple[Floats, Floats]:
    """Return eigenvalues and eigenvectors (columns) of the mean of (x, 1)(x, 1)'; zeros may be left out."""
    n, d = X.shape[0], X.shape[1] + 1
    if n > d:
        values, vectors = np.linalg.eigh(second_moments(X, np.zeros(n))[:d, :d])
        return np.maximum(values, 0), vectors
    ones = np.column_stack([X, np.ones(n)]).astype(np.float64)
    _, singular, rows = np.linalg.svd(ones / np.sqrt(max(n, 1)), full_matrices=False)
    return singular**2, rows.T
