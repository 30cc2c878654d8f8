"""Marginal likelihood of groupings: which devices have one linear model in common.

Where the server knows the second moments of all rows, nothing needs to be held back to judge a grouping: with

    y | x, w ~ N(x'w, s_i^2) on device i,    w ~ N(w0, I / kappa) for every group

the probability of a group's targets, over all w, has a closed form that needs the sums of x x', x y and y^2 alone. It
is larger for two groups than for one only if two models explain the rows better by more than the second one costs.
A partition has a prior too (Chinese restaurant process), or noise would gain by splits in proportion to its devices.
Every device has noise of its own, so that devices are told apart by their models and not by their noise. Noise and its
prior, w0 and kappa are those with which the devices, each for itself, are most probable (empirical Bayes).

References
----------
D. Aldous. Exchangeability and related topics. 1985 (Chinese restaurant process).
K. Heller, Z. Ghahramani. Bayesian Hierarchical Clustering. ICML 2005.
A. Gelman et al. Bayesian Data Analysis, chapter 14. 2013.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy

from fedfuse.core.dendrogram import Tree
from fedfuse.grouping.selection import Curvature, chance_of_no_difference, nearest
from fedfuse.utils.typing import Floats, Ints

# Log odds by which more groups must be more probable than fewer (1000 : 1).
MIN_LOG_ODDS = 7.0
# Groups that a device, or another group, is tried with.
MAX_NEIGHBOURS = 10
# Sweeps over all devices in a search for a better grouping.
MAX_SWEEPS = 20
# Numerical tolerance on gains.
MIN_GAIN = 1e-6
# Iterations of empirical Bayes.
PRIOR_ITERATIONS = 5
# Rows that the noise of all devices may count for on each device, and iterations for its variance.
NOISE_PRIOR_ROWS, NOISE_ITERATIONS = 2.0 ** np.arange(1, 11), 30
# Variance of noise, in units of the target's: with less, sums lose the digits that matter.
MIN_NOISE = 1e-8
# Precisions of the prior that are tried.
KAPPAS = 10.0 ** np.arange(-2, 5, 0.5)


@dataclass(frozen=True)
class Evidence:
    """Marginal likelihood under a prior of models.

    ``moments`` of devices or groups are sums of the products of (x, 1, y) over rows (k x (d + 1) x (d + 1)), divided
    by the variance of the noise.
    """

    prior_mean: Floats
    kappa: float = 1.0
    margin: float = MIN_LOG_ODDS

    @classmethod
    def learned(cls, moments: Floats, uneven: Floats) -> tuple[Evidence, Floats]:
        """Learn prior and noise from devices, each for itself; return the prior, and moments in units of noise.

        ``uneven`` is how much larger noise is for rows that matter (`protocol.tasks.SendSufficientStatistics`); values
        below 1 count as 1.
        """
        own = cls(np.zeros(moments.shape[1] - 1))
        noise: Floats = np.ones(len(moments))
        for _ in range(PRIOR_ITERATIONS):
            noise = own.noise(moments, noise) * np.maximum(uneven, 1)
            weighted = moments / noise[:, None, None]
            own = replace(own, prior_mean=own.models(weighted).mean(axis=0))
            own = max((replace(own, kappa=float(k)) for k in KAPPAS), key=lambda e: float(e.of(weighted).sum()))
        return own, moments / noise[:, None, None]

    def models(self, moments: Floats) -> Floats:
        """Return the most probable model of each."""
        return self._solved(moments)[1]

    def _solved(self, moments: Floats) -> tuple[Floats, Floats, Floats]:
        d = len(self.prior_mean)
        precision = moments[:, :d, :d] + self.kappa * np.eye(d)
        right = moments[:, :d, d] + self.kappa * self.prior_mean
        return precision, np.linalg.solve(precision, right[:, :, None])[:, :, 0], right

    def of(self, moments: Floats) -> Floats:
        """Return the log likelihood of the targets of each, if they have one model, up to what no grouping changes."""
        d = len(self.prior_mean)
        precision, w, right = self._solved(moments)
        rest = moments[:, d, d] + self.kappa * self.prior_mean @ self.prior_mean - np.einsum("kd,kd->k", w, right)
        volume = d * np.log(self.kappa) - np.linalg.slogdet(precision)[1]
        return np.asarray(volume - rest) / 2

    def of_groups(self, moments: Floats, sizes: Ints) -> Floats:
        """Return the log probability of groups of these sizes, but for the margin: of the targets and the partition.

        The prior of partitions is a Chinese restaurant process with concentration exp(-margin), where each group of n
        devices has the factor (n - 1)!. A split of n into a and b so costs the margin and about log (n over a).
        """
        return np.asarray(self.of(moments) + scipy.special.gammaln(np.maximum(sizes, 1)))

    def noise(self, moments: Floats, before: Floats) -> Floats:
        """Return the variance of every device's noise: of few rows, about what it is on all."""
        d, n = len(self.prior_mean), moments[:, -2, -2]
        precision, w, _ = self._solved(moments / before[:, None, None])
        line = np.concatenate([-w, np.ones((len(w), 1))], axis=1)
        rest = np.maximum(np.einsum("ki,kij,kj->k", line, moments, line), 0)
        # parameters that the rows have told take as many of them away
        told = d - self.kappa * np.trace(np.linalg.inv(precision), axis1=1, axis2=2)
        free = np.maximum(n - told, 0)
        rows, common = _noise_prior(np.maximum(rest, MIN_NOISE * np.maximum(free, 1)), free)
        # the variance of Student's t: a few rows may have little noise by chance
        return np.asarray(np.maximum((rows * common + rest) / np.maximum(rows + free - 2, 1), MIN_NOISE))

    def cut(self, tree: Tree, moments: Floats) -> Ints:
        """Return the label of every leaf of the most probable partition that the tree has."""
        total, sizes = np.zeros((2 * tree.n - 1, *moments.shape[1:])), np.ones(2 * tree.n - 1, np.int64)
        total[: tree.n] = moments
        for k, (a, b) in enumerate(tree.children):
            total[tree.n + k], sizes[tree.n + k] = total[a] + total[b], sizes[a] + sizes[b]
        return tree.least(-self.of_groups(total, sizes), self.margin)

    def grouped(self, tree: Tree, moments: Floats) -> Ints:
        """Return the most probable partition that can be had from a tree."""
        return self.improved(self.cut(tree, moments), moments)

    def improved(self, labels: Ints, moments: Floats) -> Ints:
        """Merge groups and move devices as long as that makes the grouping more probable."""
        groups = _Groups(self, labels.copy(), moments)
        for _ in range(MAX_SWEEPS):
            changed = groups.merge()
            if not (groups.move() or changed):
                break
        return np.unique(groups.labels, return_inverse=True)[1]

    def total(self, labels: Ints, moments: Floats) -> float:
        """Return the log probability of a grouping, up to what is the same for all."""
        total = np.zeros((labels.max() + 1, *moments.shape[1:]))
        np.add.at(total, labels, moments)
        return float(np.sum(self.of_groups(total, np.bincount(labels)) - self.margin))

    def confidence(self, labels: Ints, moments: Floats) -> Floats:
        """Return for every device how probable its group is beside the one that comes next."""
        groups = _Groups(self, labels, moments)
        return np.array([scipy.special.expit(-groups.best_move(i)[1]) for i in range(len(labels))])

    def chance_of_no_difference(self, labels: Ints, moments: Floats) -> float:
        """Return how probable it is that devices of one group have one model (`selection.chance_of_no_difference`)."""
        d, total = len(self.prior_mean), np.zeros((labels.max() + 1, *moments.shape[1:]))
        np.add.at(total, labels, moments)
        models, hessians = self.models(total), moments[:, :d, :d]
        scores = moments[:, :d, d] - np.einsum("kij,kj->ki", hessians, models[labels])
        squares = np.square(hessians).sum(axis=(1, 2))
        found = Curvature(scores, np.einsum("kii->ki", hessians), squares, labels)
        return chance_of_no_difference(found, models, np.zeros(len(models), np.bool_))


def _noise_prior(squares: Floats, free: Floats) -> tuple[float, float]:
    """Return the inverse gamma prior (rows, variance) with which sums of squares of free rows are most probable."""
    rows, gammaln = NOISE_PRIOR_ROWS[:, None], scipy.special.gammaln
    variance = np.full(rows.shape, squares.sum() / max(free.sum(), 1.0))
    for _ in range(NOISE_ITERATIONS):
        variance = 1 / np.mean((rows + free) / (rows * variance + squares), axis=1, keepdims=True)
    density = gammaln((rows + free) / 2) - gammaln(rows / 2) + rows / 2 * np.log(rows * variance)
    density -= (rows + free) / 2 * np.log(rows * variance + squares)
    best = int(np.argmax(density.sum(axis=1)))
    return float(rows[best, 0]), float(variance[best, 0])


class _Groups:
    """A grouping that changes, with all sums kept up to date."""

    def __init__(self, evidence: Evidence, labels: Ints, moments: Floats) -> None:
        self.labels, self._moments, self._evidence = labels, moments, evidence
        # There is room for as many groups as devices.
        self._sizes = np.bincount(labels, minlength=len(labels))
        self._total = np.zeros((self._sizes.size, *moments.shape[1:]))
        np.add.at(self._total, labels, moments)
        self._value, self._models = evidence.of_groups(self._total, self._sizes), evidence.models(self._total)
        self._alone, self._own = evidence.of(moments), evidence.models(moments)

    @property
    def _living(self) -> Ints:
        return np.flatnonzero(self._sizes)

    def merge(self) -> bool:
        """Merge the two groups that gain most by it, again and again; False if there are none."""
        changed = False
        while self._living.size > 1:
            pairs = self._neighbours()
            together = self._evidence.of_groups(self._total[pairs].sum(axis=1), self._sizes[pairs].sum(axis=1))
            gains = together - self._value[pairs].sum(axis=1)
            best = int(np.argmax(gains))
            if gains[best] <= -self._evidence.margin:
                break
            a, b = pairs[best]
            self.labels[self.labels == b] = a
            self._set(int(a), self._total[a] + self._total[b], int(self._sizes[a] + self._sizes[b]))
            self._sizes[b], changed = 0, True
        return changed

    def _neighbours(self) -> Ints:
        """Return pairs of groups whose models are near."""
        living = self._living
        near = nearest(self._models[living], MAX_NEIGHBOURS)
        pairs = np.column_stack([np.repeat(living, near.shape[1]), living[near.ravel()]])
        return np.unique(np.sort(pairs, axis=1), axis=0)

    def move(self) -> bool:
        """Let every device go where it is most probable; False if none goes."""
        changed = False
        for i in range(len(self.labels)):
            target, gain = self.best_move(i)
            if gain > MIN_GAIN:
                self._go(i, target)
                changed = True
        return changed

    def best_move(self, i: int) -> tuple[int, float]:
        """Return the group (-1: new) that device i had best go to, and the gain; an emptied group saves its margin."""
        own, mine = int(self.labels[i]), self._moments[i : i + 1]
        of, margin, shared = self._evidence.of_groups, self._evidence.margin, self._sizes[own] > 1
        left = of(self._total[own : own + 1] - mine, self._sizes[own] - 1)[0] if shared else margin
        others = self._living[self._living != own]
        if others.size > MAX_NEIGHBOURS:
            distances = np.linalg.norm(self._models[others] - self._own[i], axis=1)
            others = others[np.argsort(distances)[:MAX_NEIGHBOURS]]
        joined = of(self._total[others] + mine, self._sizes[others] + 1) - self._value[others]
        alone = self._alone[i] - margin if shared else -np.inf
        gains = np.append(joined, alone) + left - self._value[own]
        best = int(np.argmax(gains))
        return (int(others[best]) if best < others.size else -1), float(gains[best])

    def _go(self, i: int, target: int) -> None:
        own = int(self.labels[i])
        self._set(own, self._total[own] - self._moments[i], int(self._sizes[own]) - 1)
        if target < 0:
            target = int(np.flatnonzero(self._sizes == 0)[0])
            self._total[target] = 0
        self._set(target, self._total[target] + self._moments[i], int(self._sizes[target]) + 1)
        self.labels[i] = target

    def _set(self, group: int, total: Floats, size: int) -> None:
        self._total[group], self._sizes[group] = total, size
        self._value[group] = float(self._evidence.of_groups(total[None], np.array([size]))[0])
        self._models[group] = self._evidence.models(total[None])[0]
