"""Models on a graph whose edges are penalised by the length of the difference of their ends: ADMM, and AMA for points.

The least of sum_i f_i(x_i) + lam sum_edges ||x_i - x_j|| (Hallac, Leskovec, Boyd: Network Lasso, KDD 2015). An edge has
a copy of the model of each of its ends. With f_i = 1/2 ||x - a_i||^2 it is convex clustering (Hocking et al., 2011).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse

from fedfuse.core.partitions import group_means, joined
from fedfuse.utils.typing import Floats, Ints

# Of convex clustering: iterations, error relative to the spread of the points, and iterations between two looks at it.
MAX_ITERATIONS, TOLERANCE, GAP_EVERY = 20_000, 1e-6, 10


@dataclass
class EdgeCopies:
    """For each end of each edge: who it is, its copy z of the model, and the scaled dual u; the other ends follow."""

    ends: Ints
    z: Floats
    u: Floats

    @classmethod
    def of(cls, x: Floats, edges: tuple[tuple[int, int], ...] = ()) -> EdgeCopies:
        """Return the copies of these models before the first step; without edges, those of the complete graph."""
        pairs = np.array(edges, np.int64).reshape(-1, 2).T if edges else np.array(np.triu_indices(len(x), 1))
        ends = pairs.ravel()
        return cls(ends, x[ends].astype(np.float64), np.zeros((len(ends), x.shape[1])))

    def update(self, x: Floats, threshold: float) -> None:
        """Draw the two copies of every edge together, by ``threshold`` = lam / rho each, at most to their middle."""
        here = x[self.ends] + self.u
        there = np.roll(here, len(here) // 2, axis=0)
        apart = np.maximum(np.linalg.norm(here - there, axis=1, keepdims=True), 1e-300)
        share = np.maximum(1 - threshold / apart, 0.5)
        self.z = share * here + (1 - share) * there
        self.u = here - self.z

    def pull(self, m: int) -> tuple[Floats, Ints]:
        """Return the sum of z - u over the edges of each device, and the number of these edges (m x 1)."""
        total = np.zeros((m, self.z.shape[1]))
        np.add.at(total, self.ends, self.z - self.u)
        return total, np.bincount(self.ends, minlength=m)[:, None]

    def labels(self, m: int) -> Ints:
        """Return the groups of devices that edges join whose copies have met."""
        (here, there), (a, b) = np.split(self.ends, 2), np.split(self.z, 2)
        met = (a == b).all(axis=1)
        return joined(m, here[met], there[met])


def convex_clustering(points: Floats, lam: float) -> tuple[Floats, Ints]:
    """Return the least of 1/2 sum_i ||x_i - a_i||^2 + lam sum_{i<j} ||x_i - x_j||, and the groups of equal x.

    Accelerated projected gradients on the dual (AMA; Chi, Lange: Splitting Methods for Convex Clustering, JCGS 2015),
    with restarts, in coordinates of the points' own span. The gap of primal and dual bounds the error of x.

    >>> convex_clustering(np.array([[0.0], [0.2], [5.0]]), 0.2)[1].tolist()
    [0, 0, 1]
    """
    points = np.asarray(points, np.float64)
    m, mean = len(points), points.mean(axis=0)
    u, s, axes = np.linalg.svd(points - mean, full_matrices=False)
    a, (lo, hi) = u * s, np.triu_indices(m, 1)
    pairs = np.arange(lo.size)
    ones, shape = np.ones(lo.size), (m, lo.size)
    across = scipy.sparse.csr_array((ones, (lo, pairs)), shape) - scipy.sparse.csr_array((ones, (hi, pairs)), shape)
    q = ahead = np.zeros((lo.size, a.shape[1]))
    x, speed = a, 1.0
    for k in range(MAX_ITERATIONS + 1):
        if k % GAP_EVERY == 0:
            x = a - across @ q
            apart = np.linalg.norm(x[lo] - x[hi], axis=1)
            # the primal value less the dual one; rounding may leave it below zero
            gap = (np.square(x - a).sum() + np.square(x).sum() - np.square(a).sum()) / 2 + lam * apart.sum()
            error = max(2 * gap, (TOLERANCE / 10 * s[0]) ** 2) ** 0.5
            if error <= TOLERANCE * s[0]:
                break
        y = a - across @ ahead
        new = ahead + (y[lo] - y[hi]) / m
        new *= np.minimum(1, lam / np.maximum(np.linalg.norm(new, axis=1, keepdims=True), 1e-300))
        if np.vdot(ahead - new, new - q) > 0:
            speed = 1.0
        faster = (1 + (1 + 4 * speed**2) ** 0.5) / 2
        ahead, q, speed = new + (speed - 1) / faster * (new - q), new, faster
    met = apart <= 2**0.5 * error
    labels = joined(m, lo[met], hi[met])
    return mean + group_means(x, labels, np.ones(m))[labels] @ axes, labels
