"""The fusion tree: devices fuse pair by pair as the penalty's reach grows, and validation says where to stop.

Average linkage on the devices' own estimates gives the order in which groups meet as lambda rises. Every node of the
tree stands for one group with one model, the weighted mean of its members' estimates. Each device judges the models
of all the nodes above it on its validation rows (one exchange), and the cut follows from the leaves up: two groups
stay apart only if a common model is significantly worse than what was best below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import pdist

from fedfuse.types import Bools, Floats, Ints

Z = 1.645  # one-sided, 5 %


@dataclass(frozen=True)
class Tree:
    """A binary tree over ``n`` leaves; nodes n, n + 1, … are merges in the order in which they happen.

    Attributes
    ----------
    children
        The two nodes that each merge joins ((n - 1) x 2).
    heights
        The distance at which they meet.
    """

    children: Ints
    heights: Floats

    @classmethod
    def of(cls, points: Floats) -> Tree:
        """Build the tree of these points (one row per leaf)."""
        if len(points) == 1:
            return cls(np.empty((0, 2), np.int64), np.empty(0))
        merges = linkage(pdist(np.asarray(points, dtype=np.float64)), "average")
        return cls(merges[:, :2].astype(np.int64), merges[:, 2])

    @property
    def n(self) -> int:
        return len(self.children) + 1

    def ancestors(self) -> list[list[int]]:
        """Return the merges above every leaf, from the lowest to the root."""
        parent = np.full(2 * self.n - 1, -1)
        for k, (a, b) in enumerate(self.children):
            parent[[a, b]] = self.n + k
        chains = []
        for leaf in range(self.n):
            chain, node = [], int(parent[leaf])
            while node >= 0:
                chain.append(node)
                node = int(parent[node])
            chains.append(chain)
        return chains

    def means(self, points: Floats, weights: Floats) -> Floats:
        """Return the weighted mean of the leaves below every merge ((n - 1) x d)."""
        total = np.zeros((2 * self.n - 1, points.shape[1] + 1))
        total[: self.n, :-1] = points * weights[:, None]
        total[: self.n, -1] = weights
        for k, (a, b) in enumerate(self.children):
            total[self.n + k] = total[a] + total[b]
        return np.asarray(total[self.n :, :-1] / total[self.n :, -1:])

    def cut(self, judgements: Sequence[Judgement], z: float = Z) -> Ints:
        """Return the label of every leaf.

        From the leaves up, two groups stay apart only if their members lose significantly by a common model: the
        total rise in loss exceeds ``z`` standard errors, by the paired test over all their validation rows.
        """
        chains = self.ancestors()
        for judgement in judgements:
            judgement.stand(chains[judgement.leaf])
        below: list[list[Judgement]] = [[] for _ in range(2 * self.n - 1)]
        for judgement in judgements:
            below[judgement.leaf].append(judgement)
        whole = np.ones(2 * self.n - 1, np.bool_)
        for k, (a, b) in enumerate(self.children):
            node = self.n + k
            below[node] = below[a] + below[b]
            rises = np.array([j.rise(node) for j in below[node]]).reshape(-1, 2).sum(axis=0)
            whole[node] = rises[0] <= z * np.sqrt(rises[1])
            if whole[node]:
                for judgement in below[node]:
                    judgement.best = node
        return self._labels(whole)

    def _labels(self, whole: Bools) -> Ints:
        labels, groups = np.zeros(2 * self.n - 1, np.int64), 1
        for node in range(2 * self.n - 2, self.n - 1, -1):
            a, b = self.children[node - self.n]
            labels[[a, b]] = labels[node]
            if whole[node]:
                whole[[a, b]] = True
            else:
                labels[b] = groups
                groups += 1
        return labels[: self.n]


class Judgement:
    """What one device says of the models of its leaf and of all nodes above it, on ``n`` validation rows."""

    def __init__(self, leaf: int, n: int, means: Floats, covariance: Floats) -> None:
        self.leaf, self.n = leaf, n
        self.means, self.covariance = means, covariance
        self.best = leaf
        self._place: dict[int, int] = {}

    @classmethod
    def read(cls, leaf: int, n: int, answer: Floats, models: int) -> Judgement:
        """Take apart the answer to `tasks.Judge` for so many models."""
        covariance = np.zeros((models, models))
        covariance[np.triu_indices(models)] = answer[models:]
        covariance = covariance + covariance.T - np.diag(np.diag(covariance))
        return cls(leaf, n, answer[:models], covariance)

    def stand(self, chain: list[int]) -> None:
        """Say which node each model is of: the leaf first, then those above it."""
        self._place = {self.leaf: 0} | {node: 1 + k for k, node in enumerate(chain)}

    def rise(self, node: int) -> tuple[float, float]:
        """Return how much the total loss rises from the best model so far to that of ``node``, and its variance."""
        return self.difference(self._place[node], self._place[self.best])

    def difference(self, a: int, b: int) -> tuple[float, float]:
        """Return the total loss of model a less that of model b, and its variance."""
        c = self.covariance
        variance = max(c[a, a] + c[b, b] - 2 * c[a, b], 0.0)
        return self.n * float(self.means[a] - self.means[b]), self.n**2 * variance
