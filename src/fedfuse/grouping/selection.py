"""Select a grouping by what devices say of models on their validation rows.

Whatever proposes groupings, these functions compare them: a tree of models is cut where validation losses are least,
the coarsest of several groupings is taken that is not significantly worse than the best, groups that lose nothing by a
common model merge, a device that does better with another group's model moves, and a group is split in which the
gradients of devices still agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from scipy.special import logsumexp

from fedfuse.core.dendrogram import WORSE_ZSCORE, PairedLosses, Tree, alike, sharing
from fedfuse.core.partitions import group_means
from fedfuse.protocol.reply_checks import apart
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Bools, Floats, Ints

# Other groups' models that a device tries; where there are very many devices, fewer.
MAX_NEIGHBOURS, MAX_NEIGHBOURS_OF_MANY = 5, 2
# Standard errors by which another group's model must be better for a device to move (5 %).
MOVE_ZSCORE = 1.645
# Standard errors from which on two groups differ beyond doubt.
CERTAIN_ZSCORE = 3.0
# Standard errors by which gradients must agree for a group to have structure left in it (1 %); of very many devices
# there are many groups to look at (0.1 %).
STRUCTURE_ZSCORE, STRUCTURE_ZSCORE_OF_MANY = 2.33, 3.1
# Devices that are compared with each other pair by pair; of more, a sample.
MAX_COMPARED = 5000
# Confidence in the group of a device that has not answered.
UNKNOWN_CONFIDENCE = 0.5
# Differences inside a group that are considered, relative to the usual size of a parameter; and where there are several
# groups, relative to how far these are apart, which is the more probable beforehand.
RELATIVE_DIFFERENCES = (0.14, 0.2, 0.28, 0.4, 0.8)
SPREAD_RATIOS, SPREAD_PRIOR = (0.5, 0.7, 1.0, 1.4), 0.9
# Shares of a group's devices that may differ (the least is one device), and how probable these are beforehand.
DIFFERENT_SHARES, SHARE_PRIORS = (0.0, 0.3, 1.0), (0.05, 0.15, 0.8)
# How probable it is that devices differ in one parameter, and not in all.
SPARSE_PRIOR = 0.1
# Odds beforehand that groups hide a difference: one group, and several (benchmarks/calibration.py).
ONE_GROUP_PRIOR_ODDS, HIDDEN_PRIOR_ODDS = 0.25, 0.2
# Groups by which the usual distance of groups is told.
MAX_SPREAD_GROUPS = 1000
# Exponent of likelihoods at models that are estimates: by themselves they are too sure (benchmarks/calibration.py).
LIKELIHOOD_POWER = 0.3
# Share of the devices that may be in the wrong group for a grouping to count as right.
MAX_MISPLACED_SHARE = 0.02


def certain_splits(tree: Tree, leaves: Ints, halves: Floats, weights: Ints) -> Bools:
    """Return the nodes of a tree whose two sides differ beyond doubt, by two independent estimates alike.

    The difference of the sides' mean estimates is taken in either half. Where the sides are the same, both are
    independent noise, and their cosine varies as that of two devices' own noise (half 1 less half 2) does.

    ``halves`` are two estimates for each device (2 x m x d), ``leaves`` the leaf of each. A leaf without devices, as
    where they have become suspects, differs from nothing.
    """
    certain, sizes = np.zeros(2 * tree.n - 1, np.bool_), np.bincount(leaves, weights, tree.n).astype(np.float64)
    sums = np.zeros((2, tree.n, halves.shape[2]))
    for half, total in zip(halves, sums, strict=True):
        np.add.at(total, leaves, weights[:, None] * half)
    with np.errstate(invalid="ignore"):
        first, second = (tree.splits(total / np.maximum(sizes, 1)[:, None], sizes) for total in sums)
    certain[tree.n :] = alike(first, second) > CERTAIN_ZSCORE * _usual_cosine(halves[0] - halves[1])
    certain[tree.n :] &= ~np.append(sizes == 0, np.zeros(tree.n - 1, np.bool_))[tree.children].any(axis=1)
    return certain


def spread_labels(labels: Ints, sample: Ints, points: Floats, everyone: Ints) -> Ints:
    """Return labels for all of these, from those of a sample: others join the group whose mean is nearest.

    Nobody joins a point that is alone in its group, unless all are: its mean is as uncertain as its own.
    """
    others = np.setdiff1d(everyone, sample, assume_unique=True)
    if not others.size:
        return labels
    found, place, sizes = np.unique(labels[sample], return_inverse=True, return_counts=True)
    new: Ints = labels.copy()
    means = group_means(points[sample], place, np.ones(len(sample)))
    shared = np.flatnonzero((sizes > 1) | (sizes.max() == 1))
    nearest_group = [
        scipy.spatial.distance.cdist(points[some], means[shared], "sqeuclidean").argmin(axis=1)
        for some in np.array_split(others, len(others) // MAX_COMPARED + 1)
    ]
    new[others] = found[shared[np.concatenate(nearest_group)]]
    return new


def coarsest_good(candidates: Ints, answers: Mapping[int, Floats], rows: Ints, trusted: Ints) -> Ints:
    """Return the grouping (of k x m) with the fewest groups that is not significantly worse than the best."""
    losses = [PairedLosses(i, rows[i], v) for i, v in answers.items()]
    if not losses:
        return np.asarray(candidates[0])
    best = int(np.argmin(sum(each.n * each.means for each in losses)))
    worse = np.array([[each.difference(c, best) for each in losses] for c in range(len(candidates))]).sum(axis=1)
    margins = np.array([WORSE_ZSCORE * sharing(labels[trusted]) for labels in candidates])
    good = np.flatnonzero(worse[:, 0] <= margins * np.sqrt(worse[:, 1]))
    return np.asarray(candidates[good[np.argmin(candidates[good].max(axis=1))]])


def nearest(models: Floats, most: int = MAX_NEIGHBOURS) -> Ints:
    """Return for every model the others that are nearest to it."""
    distances = scipy.spatial.distance.cdist(models, models)
    np.fill_diagonal(distances, np.inf)
    return np.argsort(distances, axis=1, kind="stable")[:, : min(most, len(models) - 1)]


def best_alternative(losses: PairedLosses, first: int, n: int) -> tuple[int, float, float]:
    """Compare a device's own model (0) with n others, from ``first`` on.

    Return which has the least loss, by how many standard errors its own model is better than any of them, and the
    chance that it is.
    """
    rises = np.array([losses.difference(first + k, 0) for k in range(n)])
    z = float((rises[:, 0] / np.sqrt(np.maximum(rises[:, 1], 1e-300))).min())
    return int(np.argmin(rises[:, 0])), z, float(scipy.special.ndtr(z))


@dataclass
class GroupCheck:
    """A comparison of groups after a refit: every member tries its own model, merged ones, and the nearest others."""

    tree: Tree
    models: Floats
    neighbours: int = MAX_NEIGHBOURS

    def __post_init__(self) -> None:
        self.near, self.above = nearest(self.models, self.neighbours), self.tree.ancestors()

    def sent(self, sizes: Floats) -> list[Floats]:
        """Return what each group's members evaluate: their own, those of the merges above, those near it."""
        n, models, merged = self.tree.n, self.models, self.tree.means(self.models, sizes)
        return [np.concatenate([models[c : c + 1], merged[self.above[c] - n], models[self.near[c]]]) for c in range(n)]

    def regroup(
        self, labels: Ints, answers: Mapping[int, Floats], rows: Ints, suspects: Bools, certain: Bools
    ) -> tuple[Ints, Floats]:
        """Return new labels, after moves and merges, and how much worse the nearest others are in every row (m x k)."""
        moved, losses, tried = labels.copy(), [], self.near.shape[1]
        excess = np.full((len(labels), tried), np.nan)
        for i, answer in answers.items():
            c = int(labels[i])
            first = 1 + len(self.above[c])
            losses.append(PairedLosses(c, int(rows[i]), answer))
            other, z, _ = best_alternative(losses[-1], first, tried)
            excess[i] = losses[-1].means[first : first + tried] - losses[-1].means[0]
            if z < -MOVE_ZSCORE:
                moved[i] = self.near[c, other]
        cut = self.tree.cut(losses, certain, z=WORSE_ZSCORE * sharing(labels[~suspects]))
        return apart(cut[np.minimum(moved, self.tree.n - 1)], suspects), excess

    def confidence(
        self, labels: Ints, excess: Floats, gradients: Floats, counts: Mapping[str, Ints], units: Floats
    ) -> Floats:
        """Return how probable each device's group is beside the one that comes next; nan if it has not answered.

        A device's validation rows say by themselves how much better its group's model is. Of its training rows it is
        known from the gradient at that model, and from how the loss of the whole group grows towards the other model;
        they count for less the larger their part in the group's model is, which has been fitted to them. Losses
        are divided by ``units`` to be log likelihoods.
        """
        train, validation, c = counts["train"], counts["validation"], np.minimum(labels, self.tree.n - 1)
        judges = validation * ~np.isnan(excess[:, 0])
        growth = group_means(np.nan_to_num(excess), labels, np.maximum(judges, 1e-9))[labels]
        slope = np.einsum("kd,kjd->kj", gradients, self.models[self.near[c]] - self.models[c][:, None])
        unseen = train * (1 - train / np.maximum(np.bincount(labels, train)[labels], 1))
        better = (validation[:, None] * excess + unseen[:, None] * (slope + growth)) / units[:, None]
        return np.asarray(scipy.special.expit(LIKELIHOOD_POWER * better.min(axis=1)))


def structured_groups(cosines: Floats, labels: Ints, least: float) -> list[int]:
    """Return the groups in which devices' gradients agree by this z-score, by the cosines of two halves of each."""
    sums = [(cosines[labels == c].sum(), np.square(cosines[labels == c]).sum()) for c in range(int(labels.max()) + 1)]
    return [c for c, (total, squares) in enumerate(sums) if total / np.sqrt(max(float(squares), 1e-300)) > least]


def split_in_two(labels: Ints, groups: Iterable[int], estimates: Floats) -> Ints:
    """Cut groups in two by their members' own estimates; the next check says whether that was right."""
    new: Ints = labels.copy()
    for c in groups:
        inside = np.flatnonzero(new == c)
        if len(inside) > 1:
            sample = np.sort(generator(0, "split").permutation(inside)[:MAX_COMPARED])
            linkage = scipy.cluster.hierarchy.linkage(estimates[sample], "ward")
            halves = np.zeros(len(new), np.int64)
            halves[sample] = scipy.cluster.hierarchy.fcluster(linkage, 2, "maxclust")
            halves = spread_labels(halves, sample, estimates, inside)
            new[halves == 2] = new.max() + 1
    return new


@dataclass(frozen=True)
class Curvature:
    """Devices' scores s at their group's model, the gradients of their log likelihoods, and how these vary.

    A is a device's negative Hessian: ``diagonals`` have its diagonal, ``squares`` the trace of its square. A group's
    model has been fitted to the device's rows as well, so that a score is shorter than it would be otherwise.
    """

    scores: Floats
    diagonals: Floats
    squares: Floats
    labels: Ints

    def dense(self, variance: float) -> Floats:
        """Return the log odds (m) that a device's parameters are spread around its group's, against that they are not.

        Its score then has the covariance A + variance A^2. A is taken to be alike in tr(A)^2 / tr(A^2) directions.
        """
        trace = np.maximum(self.diagonals.sum(axis=1), 1e-300)
        squares = np.maximum(self.squares, 1e-300)
        free = trace**2 / squares * (1 - trace / np.bincount(self.labels, trace)[self.labels])
        growth = variance * squares / trace
        return np.asarray((variance * np.square(self.scores).sum(axis=1) / (1 + growth) - free * np.log1p(growth)) / 2)

    def sparse(self, variance: float) -> Floats:
        """Return the same for one parameter that is spread while all others are the group's (m x d)."""
        whole = np.zeros((int(self.labels.max()) + 1, self.diagonals.shape[1]))
        np.add.at(whole, self.labels, self.diagonals)
        free = 1 - self.diagonals / np.maximum(whole, 1e-300)[self.labels]
        # A score that is longer than its curvature counts rare events, whose number varies by as much.
        growth = variance * np.maximum(self.diagonals, np.abs(self.scores))
        return np.asarray((variance * np.square(self.scores) / (1 + growth) - free * np.log1p(growth)) / 2)


def chance_of_no_difference(found: Curvature, models: Floats, noisy: Bools) -> float:
    """Return how probable it is that devices of one group have one model.

    ``models`` are those of the groups; scores at models that are ``noisy``, fitted to few rows, cannot speak against a
    difference. Any group may hide one, beforehand in proportion to its devices: of all parameters or of one; of a
    single device, some or all; by one of `RELATIVE_DIFFERENCES`, or about as far as groups are apart. What rows are too
    few to see stays as probable as it was.
    """
    labels = found.labels
    size = np.exp(np.log(np.maximum(np.square(models).mean(axis=1), 1e-300))[labels].mean())
    usual = [size * ratio**2 for ratio in RELATIVE_DIFFERENCES]
    dense, sparse, spread = [found.dense(v) for v in usual], [found.sparse(v) for v in usual], []
    if len(models) > 1:
        apart = np.median(scipy.spatial.distance.pdist(models[:MAX_SPREAD_GROUPS], "sqeuclidean")) / models.shape[1]
        spread = [found.dense(apart / 2 * ratio**2) for ratio in SPREAD_RATIOS]
    hidden = [-np.inf]
    for c in np.flatnonzero(np.bincount(labels) > 1):
        who = labels == c
        odds = float(logsumexp(
            [_log_mean([_any(each[who]) for each in dense]), _log_mean([each[who].sum(axis=0) for each in sparse])],
            b=[1 - SPARSE_PRIOR, SPARSE_PRIOR],
        ))  # fmt: skip
        if spread:
            near = _log_mean([_any(each[who]) for each in spread])
            odds = float(logsumexp([odds, near], b=[1 - SPREAD_PRIOR, SPREAD_PRIOR]))
        hidden.append(np.log(who.mean()) + (max(odds, 0.0) if noisy[c] else odds))
    prior = HIDDEN_PRIOR_ODDS if len(models) > 1 else ONE_GROUP_PRIOR_ODDS
    return float(scipy.special.expit(-logsumexp(hidden) - np.log(prior)))


def _any(odds: Floats) -> float:
    """Return the log odds that a single device differs, some, or all."""
    shares = np.maximum(DIFFERENT_SHARES, 1 / len(odds))
    with np.errstate(divide="ignore"):
        return float(logsumexp([np.logaddexp(np.log1p(-s), np.log(s) + odds).sum() for s in shares], b=SHARE_PRIORS))


def _log_mean(logs: Any) -> float:
    return float(logsumexp(logs) - np.log(np.size(logs)))


def chance_of_few_misplaced(confidence: Floats) -> float:
    """Return how probable it is that at most one device in fifty is in the wrong group (Poisson)."""
    return float(scipy.special.pdtr(np.floor(MAX_MISPLACED_SHARE * confidence.size), np.sum(1 - confidence)))


def _usual_cosine(rows: Floats) -> float:
    """Return the root mean square cosine between two different rows (1 if there is only one)."""
    rows = rows[:: len(rows) // MAX_COMPARED + 1]
    m = len(rows)
    if m == 1:
        return 1.0
    directions = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    squares = np.square(directions @ directions.T)
    return float(np.sqrt((squares.sum() - np.trace(squares)) / (m * (m - 1))))
