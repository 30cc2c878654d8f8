"""Partitions of devices: labels, mean models of groups, adjusted Rand index."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedfuse.utils.typing import Floats, Ints

# Edges that are joined together.
EDGES_PER_BATCH = 1 << 17


def canonical(labels: npt.ArrayLike) -> Ints:
    """Number groups in the order in which their first device comes.

    >>> canonical(["b", "a", "b", "c"]).tolist()
    [0, 1, 0, 2]
    """
    _, first, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    place = np.empty(first.size, np.int64)
    place[np.argsort(first)] = np.arange(first.size)
    return place[inverse]


def components(norms: Floats, nu: float) -> Ints:
    """Return the connected components of the graph that joins devices with ``||theta_ij|| <= nu``.

    >>> components(np.array([[0, 0.05, 9], [0.05, 0, 9], [9, 9, 0]]), nu=0.1).tolist()
    [0, 0, 1]
    """
    return joined(len(norms), *np.nonzero(norms <= nu))


def joined(m: int, i: Ints, j: Ints) -> Ints:
    """Return the connected components of the graph of m devices that joins i[0] with j[0], i[1] with j[1] and so on.

    >>> joined(4, np.array([3]), np.array([0])).tolist()
    [0, 1, 2, 0]
    """
    # By hand, since SciPy's takes a tenth of the time of a whole small run to import. Every device points to another of
    # its component, or to itself; where an edge's ends point to different ones, the higher is led to the lower.
    points = np.arange(m)
    for first in range(0, i.size, EDGES_PER_BATCH):  # what the first edges have joined, the others need not
        u, v = i[first : first + EDGES_PER_BATCH], j[first : first + EDGES_PER_BATCH]
        while u.size:
            a, b = points[u], points[v]
            apart = a != b
            u, v, a, b = u[apart], v[apart], a[apart], b[apart]
            np.minimum.at(points, np.maximum(a, b), np.minimum(a, b))
            while (points != points[points]).any():
                points = points[points]
    return canonical(points)


def group_means(omega: Floats, labels: Ints, weights: npt.ArrayLike) -> Floats:
    """Return each group's mean parameter vector, weighted by the devices' numbers of rows (float64)."""
    weight = np.asarray(weights, dtype=np.float64)
    sums = np.zeros((int(labels.max()) + 1, omega.shape[1]))
    np.add.at(sums, labels, weight[:, None] * omega)
    return np.asarray(sums / np.bincount(labels, weight)[:, None])


def adjusted_rand(truth: npt.ArrayLike | None, labels: npt.ArrayLike) -> float | None:
    """Return the adjusted Rand index, or None where the truth is unknown.

    1 for equal partitions, trivial ones included; about 0 for unrelated ones.

    >>> adjusted_rand([0, 0, 1, 1], [5, 5, 3, 3]), adjusted_rand(None, [0, 0])
    (1.0, None)
    """
    if truth is None:
        return None
    # By hand, since scikit-learn's takes a third of the time of a whole small run to import.
    (a, b), n = (np.unique(np.asarray(each), return_inverse=True)[1] for each in (truth, labels)), np.size(labels)
    if np.size(truth) != n:
        raise ValueError(f"{np.size(truth)} devices have a true group, and {n} a label")
    both, first, second = (_pairs_within(each) for each in (a * (n + 1) + b, a, b))
    # of all pairs: together in both, in one alone, in none
    only_first, only_second = first - both, second - both
    neither = n * (n - 1) // 2 - both - only_first - only_second
    if only_first == only_second == 0:
        return 1.0
    mixed = (both + only_first) * (only_first + neither) + (both + only_second) * (only_second + neither)
    return 2 * (both * neither - only_first * only_second) / mixed


def _pairs_within(labels: Ints) -> int:
    """Return how many pairs have the same label."""
    counts = np.unique(labels, return_counts=True)[1]
    return int((counts * (counts - 1)).sum()) // 2
