"""Partitions of devices: labels, the gap between groups, mean models of groups, adjusted Rand index."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedfuse.utils.typing import Floats, Ints

# Ratio of two neighbouring linkage heights from which on there is a gap between them; below the length up to which
# links count as fused, the loop must have come to rest for one.
MIN_GAP_RATIO, MIN_GAP_RATIO_AT_REST = 1.5, 8.0
# Shares of that length: below the first lengths say nothing, up to the second links are never cut.
FUSED_SCATTER, ALWAYS_FUSED = 0.05, 0.5

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


class Gap(NamedTuple):
    """Where groups part: links within them are at most ``below`` long, links between them at least ``above``."""

    below: float
    above: float

    @property
    def nu(self) -> float:
        """The threshold in the middle of the gap, on a ratio scale."""
        return float(np.sqrt(self.below * self.above)) if np.isfinite(self.above) else self.below


def linkage_heights(norms: Floats) -> Floats:
    """Return the heights of single linkage, in increasing order: the edges of the minimum spanning tree.

    >>> linkage_heights(np.array([[0, 0.1, 5], [0.1, 0, 4], [5, 4, 0]])).tolist()
    [0.1, 4.0]
    """
    # Prim's algorithm by hand: SciPy's takes a tenth of the time of a whole small run to import.
    left: Floats = np.where(np.isnan(norms), np.inf, norms).astype(np.float64)
    away, heights, nearest = np.full(len(norms), np.inf), np.empty(max(len(norms) - 1, 0)), 0
    for k in range(len(heights)):
        away[nearest] = left[:, nearest] = np.inf  # those already in the tree
        away = np.minimum(away, left[nearest])
        nearest = int(away.argmin())
        heights[k] = away[nearest]
    return np.sort(heights)


def widest_gap(heights: Floats, fused: float, reach: float = np.inf) -> Gap:
    """Return the widest gap in increasing linkage heights, on a ratio scale.

    Links up to ``fused`` are cut at a very wide gap only, and those up to half of it never; links beyond the reach
    always are. Where no gap is wide, groups part at ``fused``.

    >>> widest_gap(np.array([0.4, 1.1, 1.3, 5.8]), fused=0.5)
    Gap(below=1.3, above=5.8)
    """
    known = np.clip(heights, FUSED_SCATTER * fused, reach)
    above, ratios = known[1:], known[1:] / known[:-1]
    needed = np.where(above > fused, MIN_GAP_RATIO, MIN_GAP_RATIO_AT_REST)
    wide = (ratios >= needed) & (above > ALWAYS_FUSED * fused)
    if not wide.any():
        return Gap(fused, float(min((h for h in heights if h > fused), default=np.inf)))
    widest = int(np.argmax(np.where(wide, ratios, 0.0)))
    return Gap(float(heights[widest]), float(heights[widest + 1]))


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
