"""Trees of devices: average linkage, and where validation losses say to cut it.

Every node stands for one group with one model, the weighted mean of its members' estimates. Each device evaluates the
models of all the nodes above it on its validation rows. Two groups stay apart only if a common model is significantly
worse than what was best below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from fedfuse.core.moments import unpack_moments
from fedfuse.utils.typing import Bools, Floats, Ints

# Standard errors by which a partition is significantly worse (one-sided, 5 %).
WORSE_ZSCORE = 1.645


@dataclass
class Tree:
    """A binary tree over ``n`` leaves; nodes n, n + 1, … are merges in the order in which they happen."""

    children: Ints  # the two nodes that each merge joins ((n - 1) x 2)
    leaves: Ints  # the numbers of the devices or groups that the leaves stand for, in increasing order

    @classmethod
    def of(cls, points: Floats, leaves: Ints | None = None) -> Tree:
        """Build the tree of these points (one row per leaf) by average linkage; of none, the empty tree."""
        return cls._average(scipy.spatial.distance.pdist(np.asarray(points, dtype=np.float64)), len(points), leaves)

    @classmethod
    def linked(cls, distances: Floats, leaves: Ints | None = None) -> Tree:
        """Build the tree of leaves with these distances (n x n) by average linkage."""
        return cls._average(distances[np.triu_indices(len(distances), 1)], len(distances), leaves)

    @classmethod
    def _average(cls, condensed: Floats, n: int, leaves: Ints | None) -> Tree:
        merges = scipy.cluster.hierarchy.linkage(condensed, "average") if n > 1 else np.empty((0, 4))
        return cls(merges[:, :2].astype(np.int64), np.arange(n) if leaves is None else leaves)

    @property
    def n(self) -> int:
        return len(self.children) + 1

    def ancestors(self) -> list[Ints]:
        """Return the merges above every leaf, from the lowest to the root."""
        chains: list[list[int]] = [[] for _ in range(2 * self.n - 1)]
        for node in range(2 * self.n - 2, self.n - 1, -1):
            for child in self.children[node - self.n]:
                chains[child] = [node, *chains[node]]
        return [np.array(chain, dtype=np.int64) for chain in chains[: self.n]]

    def means(self, points: Floats, weights: Floats) -> Floats:
        """Return the weighted mean of the leaves below every merge ((n - 1) x d)."""
        total = np.zeros((2 * self.n - 1, points.shape[1] + 1))
        total[: self.n] = np.column_stack([points * weights[:, None], weights])
        for k, (a, b) in enumerate(self.children):
            total[self.n + k] = total[a] + total[b]
        return np.asarray(total[self.n :, :-1] / total[self.n :, -1:])

    def merged_models(self, models: Floats, weights: Ints, leaves: Ints) -> list[Floats]:
        """Return for each of some leaves the weighted mean models of the merges above it; rows are all devices'."""
        means, above = self.means(models[self.leaves], weights[self.leaves].astype(np.float64)), self.ancestors()
        return [means[above[place] - self.n] for place in np.searchsorted(self.leaves, leaves)]

    def cut_by_answers(self, answers: Mapping[int, Floats], rows: Ints, certain: Bools | None = None) -> Ints:
        """Return a label for each device by what leaves answered for their own and all merged models above."""
        labels, place = np.zeros(len(rows), np.int64), {int(i): leaf for leaf, i in enumerate(self.leaves)}
        losses = [PairedLosses(place[i], rows[i], answer) for i, answer in answers.items()]
        labels[self.leaves] = self.cut(losses, certain)
        return labels

    def cut(self, judgements: Sequence[PairedLosses], certain: Bools | None = None, z: float = WORSE_ZSCORE) -> Ints:
        """Return the label of every leaf.

        First the partition with the least total validation loss; then, as in cost-complexity pruning (Breiman et
        al., 1984), its weakest splits are taken back one after the other, as long as the rise in loss is within ``z``
        standard errors by the paired test over validation rows. Splits of ``certain`` nodes are never taken back.

        Where only a share of the devices is then with others, ``z`` shrinks by that share and the cut is made
        again: where hardly any two devices have a model in common, doubtful pairs have none either.
        """
        chains, losses = self.ancestors(), np.zeros(2 * self.n - 1)
        for judgement in judgements:
            judgement.nodes = [judgement.leaf, *chains[judgement.leaf].tolist()]
            losses[judgement.nodes] += judgement.n * judgement.means[: len(judgement.nodes)]
        best = self._least_loss(losses)
        held = self._held(np.zeros_like(best) if certain is None else certain & best)
        labels = self._pruned(judgements, losses, best, held, z)
        members = labels[[j.leaf for j in judgements]]
        together = sharing(members) if len(members) else 1.0
        return labels if together == 1 else self._pruned(judgements, losses, best, held, z * together)

    def _pruned(self, judgements: Sequence[PairedLosses], losses: Floats, best: Bools, held: Bools, z: float) -> Ints:
        split, own = best, self._groups(best)
        while (split & ~held).any():
            pruned = self._without_weakest(split, held, losses)
            group = self._groups(pruned)
            parts = [j.rise(int(group[j.leaf]), int(own[j.leaf])) for j in judgements if group[j.leaf] != own[j.leaf]]
            rise, variance = np.sum(np.reshape(parts, (-1, 2)), axis=0)
            if rise / np.sqrt(max(variance, 1e-300)) > z:
                break
            split = pruned
        return np.unique(self._groups(split)[: self.n], return_inverse=True)[1]

    def least(self, losses: Floats, price: float = 0.0) -> Ints:
        """Return the label of every leaf in the partition with the least total loss, where a split has its price."""
        return np.unique(self._groups(self._least_loss(losses, price))[: self.n], return_inverse=True)[1]

    def _least_loss(self, losses: Floats, price: float = 0.0) -> Bools:
        """Return which nodes are split in the partition with the least total loss."""
        total, split = losses.copy(), np.zeros(len(losses), np.bool_)
        for k, (a, b) in enumerate(self.children):
            apart = total[a] + total[b] + price
            split[self.n + k] = apart < total[self.n + k]
            total[self.n + k] = min(apart, total[self.n + k])
        return self._connected(split)

    def _connected(self, split: Bools) -> Bools:
        """Nothing is split below a node that is not."""
        for node in range(2 * self.n - 2, self.n - 1, -1):
            split[self.children[node - self.n]] &= split[node]
        return split

    def _held(self, certain: Bools) -> Bools:
        """Return the nodes that are certain or have one below."""
        held: Bools = certain.copy()
        for k, (a, b) in enumerate(self.children):
            held[self.n + k] |= held[a] | held[b]
        return held

    def splits(self, points: Floats, weights: Floats) -> Floats:
        """Return for every merge the difference of the weighted means of its two sides ((n - 1) x d)."""
        means = np.concatenate([points, self.means(points, weights)])
        return np.asarray(means[self.children[:, 0]] - means[self.children[:, 1]])

    def _without_weakest(self, split: Bools, held: Bools, losses: Floats) -> Bools:
        """Take back the split that gains least per group."""
        total, groups = losses.copy(), np.ones(len(losses))
        for node in np.flatnonzero(split):
            a, b = self.children[node - self.n]
            total[node], groups[node] = total[a] + total[b], groups[a] + groups[b]
        nodes = np.flatnonzero(split & ~held)
        gain = (losses[nodes] - total[nodes]) / (groups[nodes] - 1)
        fewer = split.copy()
        fewer[nodes[int(np.argmin(gain))]] = False
        return self._connected(fewer)

    def _groups(self, split: Bools) -> Ints:
        """Return the node that stands for the group of every node."""
        group = np.arange(2 * self.n - 1)
        for node in range(2 * self.n - 2, self.n - 1, -1):
            if not split[node]:
                group[self.children[node - self.n]] = group[node]
        return group


class PairedLosses:
    """What one device says of the models of its leaf and of all nodes above it, on ``n`` validation rows."""

    def __init__(self, leaf: int, n: int, answer: Floats) -> None:
        """Take apart the answer to `protocol.tasks.EvaluateModels`."""
        self.leaf, self.n = leaf, n
        (self.means,), (self.covariance,) = unpack_moments(answer[None])
        self.nodes = [leaf]  # that the first models are of: the leaf, then those above it

    def rise(self, node: int, other: int) -> tuple[float, float]:
        """Return how much the total loss rises from one node's model to another's, and its variance."""
        return self.difference(self.nodes.index(node), self.nodes.index(other))

    def difference(self, a: int, b: int) -> tuple[float, float]:
        """Return the total loss of model a less that of model b, and its variance."""
        c = self.covariance
        variance = max(c[a, a] + c[b, b] - 2 * c[a, b], 0.0)
        return self.n * float(self.means[a] - self.means[b]), self.n**2 * variance


def sharing(labels: Ints) -> float:
    """Return the share of the devices that are not alone in their group.

    >>> sharing(np.array([0, 0, 1, 2]))
    0.5
    """
    return float(np.mean(np.bincount(labels)[labels] > 1))


def alike(first: Floats, second: Floats) -> Floats:
    """Return the cosine of every row of one array with the same row of the other."""
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return np.asarray(np.einsum("kd,kd->k", first, second) / np.maximum(lengths, 1e-300))
