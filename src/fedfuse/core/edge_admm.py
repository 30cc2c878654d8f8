"""ADMM for models on a graph whose edges are penalised by the length of the difference of their ends.

The least of sum_i f_i(x_i) + lam sum_edges ||x_i - x_j|| (Hallac, Leskovec, Boyd: Network Lasso, KDD 2015). An edge has
a copy of the model of each of its ends. With f_i = 1/2 ||x - a_i||^2 it is convex clustering (Hocking et al., 2011).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfuse.core.partitions import joined
from fedfuse.utils.typing import Floats, Ints

MAX_ITERATIONS, TOLERANCE = 5000, 1e-9


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

    >>> convex_clustering(np.array([[0.0], [0.2], [5.0]]), 0.2)[1].tolist()
    [0, 0, 1]
    """
    a, m, rho = np.asarray(points, np.float64), len(points), 10 / len(points)
    x, copies = a, EdgeCopies.of(a)
    for _ in range(MAX_ITERATIONS):
        old, before = x, copies.z
        x = (a + rho * copies.pull(m)[0]) / (1 + rho * (m - 1))
        copies.update(x, lam / rho)
        if max(np.abs(x - old).max(), np.abs(copies.z - before).max(initial=0)) <= TOLERANCE * np.abs(a).max():
            break
    return x, copies.labels(m)
