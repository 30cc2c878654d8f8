"""The fusion tree: hierarchical clustering of devices' own models, cut by validation, then a refit.

    devices: fit halves of their rows, to tell signal from noise; then all training rows, with a common ridge
    server:  average linkage of these models, of a sample where there are many; the tree says which groups meet as they
             are allowed to differ less
    devices: evaluate the mean models of the groups above them on their validation rows
    server:  cuts the tree where that is best (cost-complexity pruning, by paired losses)
             repeats for a few ridges: noise asks for a strong one, close groups for a weak one
    devices: evaluate their models in all groupings found; the coarsest good one is taken
    all:     fit one model per group (`refit`)
    devices: evaluate their group's model, merged models and the nearest others; groups merge, devices move
    devices: send by how much their own gradients agree; groups with structure left are split and checked again
    all:     final fit, with validation rows

Linear regression with a few dozen columns needs none of these exchanges: devices send sufficient statistics, and the
server cuts the trees where the marginal likelihood is largest (`marginal_likelihood`).

There is no lambda. Only validation rows choose, or training and validation rows together; test rows are never used.
Networks have `network_tree`.

Departures from FL+HC (Briggs et al.): the linkage is of exact ridge fits and not of updates after rounds of FedAvg, no
distance threshold is given, and groups are checked after the refit.

References
----------
C. Briggs, Z. Fan, P. Andras. Federated learning with hierarchical clustering of local updates to improve training on
    non-IID data. IJCNN 2020 (FL+HC).
L. Breiman, J. Friedman, R. Olshen, C. Stone. Classification and Regression Trees. 1984 (cost-complexity pruning).
K. Heller, Z. Ghahramani. Bayesian Hierarchical Clustering. ICML 2005 (merges by marginal likelihood).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedfuse.core.dendrogram import Tree
from fedfuse.core.partitions import canonical, group_means
from fedfuse.data.federation import Part
from fedfuse.errors import FedfuseError
from fedfuse.grouping import selection
from fedfuse.grouping.marginal_likelihood import Evidence
from fedfuse.grouping.refit import RefitState, Transition, begin_final_fit, begin_fit, refit_steps
from fedfuse.grouping.selection import UNKNOWN_CONFIDENCE, GroupCheck
from fedfuse.grouping.simulated_replies import sends_statistics
from fedfuse.grouping.steps import EvaluationStep, Step, StepMethod, by_name
from fedfuse.methods.method import FederationInfo, Outcome
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.reply_checks import SOLVER_TOLERANCE, apart
from fedfuse.protocol.tasks import EvaluateModels, GradientCosine, Install, Task, Train
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Bools, Floats, Ints

# Ridges of the devices' own models, from strong to weak; one of them is common to all comparisons.
RIDGES = (0.1, 0.03, 0.01)
COMMON_RIDGE = 1
# Devices that a tree is built of; of more, a sample. The others join the groups whose mean models are nearest.
MAX_TREE_DEVICES = 1000
# Rows for each parameter that a group's model needs for devices' scores at it to speak against a difference.
MIN_ROWS_PER_PARAMETER = 5
# Columns for each training row from which on models are linked by direction alone.
MIN_COLUMNS_PER_ROW = 2
# How often groups are checked and refitted before the next split.
MAX_CHECKS = 3
# How often groups with structure left in them are split.
MAX_SPLITS = 4


@dataclass
class FusionTreeState(RefitState):
    """Devices' own models, and the groupings that were found with them."""

    half: int = field(init=False, default=0)  # halves that are fitted
    halves: Floats = field(init=False)  # models of either half of every device's rows
    ridge: int = field(init=False, default=0)  # ridges that are done
    estimates: Floats = field(init=False)  # devices' models for every ridge
    groupings: Ints = field(init=False)  # that were proposed
    tree: Tree = field(init=False)
    checks: int = field(init=False, default=0)
    splits: int = field(init=False, default=0)
    already_split: Ints = field(init=False)  # groupings in which groups were split before
    curvature: Floats = field(init=False)  # diagonal of every device's Hessian, trace of its square (`GradientCosine`)
    none_hidden: float = 1.0  # chance that groups hide no difference, by statistics of the rows

    def __post_init__(self, previous: Outcome | None) -> None:
        super().__post_init__(previous)
        m, d = self.info.m, self.info.d
        self.halves, self.estimates = np.zeros((2, m, d)), np.zeros((len(RIDGES), m, d))
        self.groupings, self.already_split = np.empty((2, 0, m), np.int64)
        self.tree, self.confidence = Tree.of(np.empty((0, d))), np.ones(m)
        self.curvature = np.zeros((m, d + 1))

    def certain_splits(self, leaves: Ints, who: Ints) -> Bools:
        """Return the nodes of the tree whose sides differ beyond doubt, by these devices and their leaves."""
        rows = self.info.counts["train"]
        return selection.certain_splits(self.tree, leaves[who], self.halves[:, who], rows[who])

    def sampled(self) -> Ints:
        """Return the devices that a tree is built of: those that are trusted, but not more than it has room for."""
        who = self.trusted
        if len(who) <= MAX_TREE_DEVICES:
            return who
        return np.sort(generator(self.info.seed, "tree", self.ridge).choice(who, MAX_TREE_DEVICES, replace=False))

    def linked_models(self, who: Ints) -> Floats:
        """Return what the tree is built of: devices' models, or their directions where columns far outnumber rows.

        The length of a model that is fitted to few rows is mostly noise, and a short model is near to all others.
        """
        models = self.models[who]
        if self.info.model.n_features < MIN_COLUMNS_PER_ROW * np.median(self.info.counts["train"][who]):
            return models
        return np.asarray(models / np.maximum(np.linalg.norm(models, axis=1, keepdims=True), 1e-300))

    def propose(self, labels: Ints) -> None:
        """Add a grouping to those that are compared."""
        self.groupings = np.vstack([self.groupings, apart(labels, self.suspects)])

    def candidates(self) -> Ints:
        """Return the different groupings that were proposed."""
        return np.unique([apart(labels, self.suspects) for labels in self.groupings], axis=0)

    def select(self) -> str:
        """Compare the groupings that were proposed, or fit the only one."""
        candidates = self.candidates()
        return CompareCandidates.name if len(candidates) > 1 else self.group_by_estimates(candidates[0])

    def group(self, labels: Ints, models: Floats) -> str:
        """Fit these groups, from the means of their members' models."""
        self.labels = apart(labels, self.suspects)
        self.models = group_means(models, self.labels, self.info.counts["train"])
        return begin_fit(self, self.models.copy())

    def group_by_estimates(self, labels: Ints) -> str:
        """Fit these groups, from the means of their members' own models."""
        return self.group(labels, self.estimates[COMMON_RIDGE])

    def regroup(self, labels: Ints) -> str:
        """Fit other groups, from the means of what their members had."""
        return self.group(labels, self.models[self.labels])

    def stability(self) -> float:
        """Return the chance that no group hides a difference and few are misplaced; 0 if nothing was compared."""
        if self.confidence is None or not len(self.groupings):
            return 0.0
        who = self.trusted
        few = selection.chance_of_few_misplaced(self.confidence[who])
        return few * (self._none_hidden(who) if self.simulable is None else self.none_hidden)

    def _none_hidden(self, who: Ints) -> float:
        """Return the chance that groups of these devices hide no difference, by their last gradients."""
        if not who.size:
            return 1.0
        counts = self.info.counts["train+validation"]
        rows = (counts / self.loss_units())[who, None]
        scores, curvature = rows * self.residual_gradients("train+validation")[who], self.curvature[who]
        labels, squares = self.labels[who], rows[:, 0] ** 2 * curvature[:, -1]
        found = selection.Curvature(scores, rows * curvature[:, :-1], squares, labels)
        models = self.models[: self.n_trusted_groups]
        noisy = np.bincount(labels, counts[who], len(models)) < MIN_ROWS_PER_PARAMETER * self.info.free
        return selection.chance_of_no_difference(found, models, noisy)

    def residual_gradients(self, part: Part) -> Floats:
        """Return by how much devices' last gradients differ from their group's; 0 of those that were not heard."""
        gradients, heard = self.last_gradients[:, self.info.d : -1], ~np.isnan(self.last_gradients[:, -1])
        weights = np.maximum(np.where(heard, self.info.counts[part], 0), 1e-9)
        common = group_means(np.nan_to_num(gradients), self.labels, weights)
        return np.where(heard[:, None], gradients - common[self.labels], 0.0)

    def loss_units(self) -> Floats:
        """Return what losses are divided by to be log likelihoods: squared errors by twice the variance of noise."""
        losses = np.nan_to_num(self.last_gradients[:, -1])
        return np.maximum(2 * losses, 1e-12) if self.info.model.goal == "regression" else np.ones_like(losses)

    def recovery(self) -> list[dict[int, Task]]:
        scales = super().recovery()
        return scales and [*scales, self.installed()]

    def installed(self) -> dict[int, Task]:
        """Return what gives devices back the models that they had last."""
        return {i: Install(w.astype(self.info.dtype)) for i, w in enumerate(self.last_fits())}

    def last_fits(self) -> Floats:
        """Return the models that devices had last."""
        trained = [np.zeros((self.info.m, self.info.d)), *self.halves, *self.estimates]
        last = trained[self.half + self.ridge + (self.step == CutTree.name)]
        return self.filled(last) if self.step in (FitHalf.name, FitRidge.name) else last


def after_rescale(state: FusionTreeState) -> str:
    """Return the first step that looks for groups."""
    return FitHalf.name if state.simulable is None else group_by_evidence(state, state.simulable)


def after_fit(state: FusionTreeState) -> str:
    """Check the groups with their refitted models."""
    state.checks += 1
    groups = state.n_trusted_groups
    if groups <= 1 or state.simulable is not None:
        if state.simulable is None:  # There is no other group to be in.
            state.confidence = np.where(np.isnan(state.last_gradients[:, -1]), UNKNOWN_CONFIDENCE, 1.0)
        return CheckGradients.name
    state.tree = Tree.of(state.models[:groups])
    return CheckGroups.name


def group_by_evidence(state: FusionTreeState, simulable: Bools, distances: Floats | None = None) -> str:
    """Cut the trees of all ridges, and that of these distances, where that is most probable; improve on the best."""
    simulated, labels, suspects = state.simulated(), np.arange(state.info.m), state.suspects
    who = np.flatnonzero(simulable & ~suspects)
    if not who.size:
        return state.group_by_estimates(labels)
    known = simulated.part("train+validation", who).moments
    evidence, moments = Evidence.learned(known, simulated.uneven[who])
    for k, ridge in enumerate(RIDGES):
        state.estimates[k, who] = simulated.part("train", who).fit(ridge)
    trees = [Tree.of(each[who]) for each in state.estimates]
    if distances is not None:
        trees.append(Tree.linked(distances[np.ix_(who, who)]))
    found = [evidence.grouped(tree, moments) for tree in trees]
    best = max(found, key=lambda grouping: evidence.total(grouping, moments))
    labels[who] = state.info.m + best  # A device that was not heard is alone.
    state.propose(labels)
    state.confidence = np.where(suspects, 1.0, UNKNOWN_CONFIDENCE)  # Nobody is to be put with suspects.
    state.confidence[who] = evidence.confidence(best, moments)
    state.none_hidden = evidence.chance_of_no_difference(best, moments)
    return state.group_by_estimates(state.groupings[0])


class FitHalf(Step[FusionTreeState]):
    """Devices fit one half of their training rows, then the other: what both share is signal, the rest is noise."""

    name = "half fits"

    def ask(self, state: FusionTreeState, devices: Ints) -> list[Task]:
        rows: Part = "train/2" if state.half else "train/1"
        return [Train(Work(solver="exact"), rho=RIDGES[COMMON_RIDGE], rows=rows)] * len(devices)

    def take(self, state: FusionTreeState) -> str:
        state.halves[state.half] = state.filled(state.halves[state.half])
        state.half += 1
        return self.name if state.half == 1 else FitRidge.name


class FitRidge(Step[FusionTreeState]):
    """Devices fit their training rows with the next ridge."""

    name = "local fits"

    def place(self, state: FusionTreeState) -> int:
        """Return which of the ridges it is."""
        return state.ridge

    def ask(self, state: FusionTreeState, devices: Ints) -> list[Task]:
        return [Train(Work(solver="exact"), rho=RIDGES[self.place(state)], rows="train")] * len(devices)

    def possible(self, state: FusionTreeState, device: int, answer: Floats) -> bool:
        # Where f + ridge/2 |w|^2 is least, the gradient of f is -ridge w.
        return state.in_line(device, answer, -RIDGES[self.place(state)] * answer, np.nan)

    def keep(self, state: FusionTreeState) -> None:
        """Keep the answers."""
        place = self.place(state)
        state.models = state.estimates[place] = state.filled(state.estimates[place])

    def take(self, state: FusionTreeState) -> str:
        self.keep(state)
        who = state.sampled()
        if not who.size:
            return state.group_by_estimates(np.arange(state.info.m))
        state.tree = Tree.of(state.linked_models(who), who)
        return CutTree.name


@dataclass(frozen=True, repr=False)
class CutTree(EvaluationStep[FusionTreeState]):
    """Devices evaluate the models of the groups above them; the tree is cut where that is best."""

    name = "cut tree"
    then: Transition = FusionTreeState.select

    def ask(self, state: FusionTreeState, devices: Ints) -> list[Task]:
        above = state.tree.merged_models(state.estimates[state.ridge], state.info.counts["train"], devices)
        return [EvaluateModels(models.astype(state.info.dtype), own=True) for models in above]

    def skip(self, state: FusionTreeState) -> Bools:
        return ~np.isin(np.arange(state.info.m), state.tree.leaves)

    def cut(self, state: FusionTreeState) -> None:
        """Propose the grouping at the best cut."""
        leaves, who = np.zeros(state.info.m, np.int64), state.tree.leaves
        leaves[who] = np.arange(len(who))
        # Who has become a suspect meanwhile is still a leaf, without devices.
        certain = state.certain_splits(leaves, who[~state.suspects[who]])
        labels = state.tree.cut_by_answers(state.answers, state.info.counts["validation"], certain)
        state.propose(selection.spread_labels(labels, who, state.estimates[state.ridge], state.trusted))

    def take(self, state: FusionTreeState) -> str:
        self.cut(state)
        state.ridge += 1
        return FitRidge.name if state.ridge < len(RIDGES) else self.then(state)


class CompareCandidates(EvaluationStep[FusionTreeState]):
    """Devices evaluate their models in all groupings; the coarsest good one is taken."""

    name = "compare groupings"

    def ask(self, state: FusionTreeState, devices: Ints) -> list[Task]:
        estimates, weights = state.estimates[COMMON_RIDGE], state.info.counts["train"]
        models = np.stack([group_means(estimates, labels, weights)[labels] for labels in state.candidates()])
        return [EvaluateModels(w) for w in models.astype(state.info.dtype)[:, devices].swapaxes(0, 1)]

    def take(self, state: FusionTreeState) -> str:
        rows = state.info.counts["validation"]
        return state.group_by_estimates(selection.coarsest_good(state.candidates(), state.answers, rows, state.trusted))


class CheckGroups(EvaluationStep[FusionTreeState]):
    """Devices evaluate their group's model, merged ones and the nearest others; groups merge and devices move."""

    name = "check groups"

    def ask(self, state: FusionTreeState, devices: Ints) -> list[Task]:
        sizes = np.bincount(state.labels, state.info.counts["train"]).astype(np.float64)
        sent = self._check(state).sent(sizes[: len(state.tree.leaves)])
        return [EvaluateModels(sent[c].astype(state.info.dtype)) for c in state.labels[devices]]

    def _check(self, state: FusionTreeState) -> GroupCheck:
        many = state.info.m > MAX_TREE_DEVICES
        most = selection.MAX_NEIGHBOURS_OF_MANY if many else selection.MAX_NEIGHBOURS
        return GroupCheck(state.tree, state.models[: len(state.tree.leaves)], most)

    def take(self, state: FusionTreeState) -> str:
        counts, certain = state.info.counts, state.certain_splits(state.labels, state.trusted)
        check = self._check(state)
        new, excess = check.regroup(state.labels, state.answers, counts["validation"], state.suspects, certain)
        gradients, units = state.residual_gradients("train"), state.loss_units()
        confidence = check.confidence(state.labels, excess, gradients, counts, units)
        confidence = np.where(np.isnan(confidence), UNKNOWN_CONFIDENCE, confidence)
        state.confidence = np.where(state.suspects, 1.0, confidence)  # Nobody is to be put with suspects.
        if state.checks >= MAX_CHECKS or (new == state.labels).all():
            return CheckGradients.name
        return state.regroup(new)


class CheckGradients(Step[FusionTreeState]):
    """Devices send how alike the gradients of both parts of their rows are; groups with structure left are split."""

    name = "check gradients"

    def ask(self, state: FusionTreeState, devices: Ints) -> list[Task]:
        models, gradients = (each.astype(state.info.dtype) for each in (state.models, state.fit.gradients))
        return [GradientCosine(models[c], gradients[c], state.simulable is None) for c in state.labels[devices]]

    def skip(self, state: FusionTreeState) -> Bools:
        # Nothing can be left inside one device.
        return np.asarray(np.bincount(state.labels)[state.labels] == 1)

    def possible(self, state: FusionTreeState, device: int, answer: Floats) -> bool:
        return bool(abs(answer[0]) <= 1 + SOLVER_TOLERANCE and (answer[1:] >= 0).all())

    def take(self, state: FusionTreeState) -> str:
        width = 1 if state.simulable is not None else 1 + state.curvature.shape[1]
        answers = state.filled(np.zeros((state.info.m, width)))
        cosines = answers[:, 0]
        if state.simulable is None:
            state.curvature = answers[:, 1:]
        many = state.info.m > MAX_TREE_DEVICES
        least = selection.STRUCTURE_ZSCORE_OF_MANY if many else selection.STRUCTURE_ZSCORE
        groups = selection.structured_groups(cosines, state.labels, least) if state.simulable is None else []
        if not groups or state.splits >= MAX_SPLITS or self._split_before(state):
            return begin_final_fit(state)
        state.splits, state.checks = state.splits + 1, 0
        # By one half of the rows: a split by all of them is a split by the noise of both, and the two halves, which
        # then say whether it is certain, would agree on it.
        return state.regroup(selection.split_in_two(state.labels, groups, state.halves[0]))

    def _split_before(self, state: FusionTreeState) -> bool:
        """Whether these groups were split before, to no avail."""
        key = canonical(state.labels)
        before = bool((state.already_split == key).all(axis=1).any())
        state.already_split = np.vstack([state.already_split, key])
        return before


@dataclass(frozen=True)
class FusionTree(StepMethod[FusionTreeState]):
    """Find the groups and train one model for each, without a parameter to give.

    Parameters
    ----------
    personal
        Whether devices may also have models of their own, drawn to their group's, where these predict better.
    """

    name: ClassVar[str] = "fusion-tree"
    personal: bool = True

    def steps(self) -> dict[str, Step[Any]]:
        refit = refit_steps(self.robust, after_rescale, after_fit)
        proposing, checking = (FitHalf(), FitRidge(), CutTree(), CompareCandidates()), (CheckGroups(), CheckGradients())
        return by_name(*refit[:3], *proposing, refit[3], *checking, *refit[4:])

    def outcome(self, state: FusionTreeState) -> Outcome:
        return super().outcome(state)._replace(kept=state.scales() | state.models_without())

    def first_state(self, info: FederationInfo, previous: Outcome | None) -> FusionTreeState:
        if not sends_statistics(info):
            require_validation(info)
        return FusionTreeState(info, np.arange(info.m), previous)


def require_validation(info: FederationInfo) -> None:
    """Raise unless some device has validation rows."""
    if not info.counts["validation"].any():
        raise FedfuseError(
            "without a lambda, groups are found by validation rows, but no device has any: build the federation with "
            "validation > 0, or give a lambda"
        )
