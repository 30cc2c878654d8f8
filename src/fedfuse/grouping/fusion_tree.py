"""FPFC without a lambda to give: the fusion tree, cut by validation, then a refit.

1. Every device fits its own rows alone, with a common ridge, and uploads once. (Local work is free; rounds are not.)
2. The server orders all pairwise fusions in a tree (`core.dendrogram.Tree`): which groups meet as lambda rises.
3. Each device judges the models of the groups above it on its validation rows; the tree is cut where that is best.
4. Steps 1 to 3 run for a few ridges, from strong to weak: noise asks for a strong one, close groups for a weak one.
   How well their groupings agree is a measure of how sure the result is.
5. The groups are refitted (`grouping.refit`) and checked: a device that does better with another group's model moves,
   and groups that lose nothing by a common model merge. Then the final fit.

Linear regression with a few dozen columns needs none of these exchanges. Every device sends its rows in summary
(`protocol.tasks.SendSufficientStatistics`), and the server cuts the trees where that is most probable (`evidence`).

Only validation rows choose, or training and validation rows together. Everything that is sent is counted. The lambda
that is reported is the largest that keeps the found groups apart, 0.9 b / a with b the smallest distance between two
groups' models: with it, Theorem 3 of the paper has b > a lambda.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar

import numpy as np
import scipy

from fedfuse.core.dendrogram import PairedLosses, Tree, Z, alike, sharing
from fedfuse.core.partitions import adjusted_rand, canonical, cluster_means
from fedfuse.data.federation import Part
from fedfuse.errors import FedfuseError
from fedfuse.grouping.admission import judged
from fedfuse.grouping.marginal_likelihood import LOOSE, STRICT, Evidence
from fedfuse.grouping.refit import Refit
from fedfuse.grouping.steps import StagedState
from fedfuse.methods.method import AdmissionDialogue, AdmitsNewcomers, FederationInfo, Outcome, RunSummary
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.reply_checks import SLACK, apart, judged_models, possible_judgement
from fedfuse.protocol.tasks import EvaluateModels, GradientCosine, Install, Task, Train
from fedfuse.utils.typing import Bools, Floats, Ints

RIDGES = (0.1, 0.03, 0.01)
COMMON = 1  # the ridge at which the groupings of all ridges are compared
NEAREST = 5  # other groups' models that a device tries
CHECKS = 3  # times that groups are checked and refitted
SPLITS = 4  # times that groups with structure left in them are halved
MOVE = 1.645  # standard errors by which another group's model must be better for a device to move
CERTAIN = 3.0  # standard errors from which on two groups differ beyond doubt
ENOUGH = 3  # validation rows in all for each parameter of one model
DOUBT = 2.33  # one-sided, 1 %: from here on there is structure left


@dataclass(frozen=True)
class FusionTree(Refit, AdmitsNewcomers):
    """Find the groups without being given lambda; ``refit=False`` stops when they are found."""

    name: ClassVar[str] = "fusion-tree"

    def _prepare(self, state: StagedState, before: Outcome | None) -> None:
        m = state.info.m
        if self._first(state.info) != "summaries" and not state.info.counts["validation"].any():
            raise FedfuseError(
                "groups without a lambda are told by validation rows, and no device has any: build the federation with "
                "validation > 0, or give a lambda"
            )
        super()._prepare(state, Outcome(np.empty(0), np.arange(m)))
        state.put("ridge", 0)
        state.put("checks", 0)
        state.put("splits", 0)
        state.put("half", 0)
        state.memory["halves"] = np.zeros((2, m, state.info.d))
        state.put("residue", 0.0)
        state.memory["halved"] = np.empty((0, m), np.int64)
        state.memory["estimates"] = np.zeros((len(RIDGES), m, state.info.d))
        state.memory["groupings"] = np.zeros((len(RIDGES), m), np.int64)
        state.put("confidence", np.ones(m))

    def _take_rescale(self, state: StagedState) -> str:
        return self._by_evidence(state) if self._in_summary(state) else "half"

    # -- where rows are known in summary, the server needs no judgements

    def _by_evidence(self, state: StagedState) -> str:
        """Cut the trees of all ridges where that is most probable, improve on it, and take the best.

        In place of what other ridges come to, `stability` then compares what other odds do.
        """
        simulated, labels = self._simulated(state), np.arange(state.info.m)
        who = np.flatnonzero(self._summed_up(state) & ~state.memory["suspects"])
        if not who.size:
            return self._group(state, labels)
        known = simulated.part("train+validation", who).moments
        evidence, moments = Evidence.learned(known, simulated.uneven[who])
        estimates = state.memory["estimates"]
        for k, ridge in enumerate(RIDGES):
            estimates[k, who] = simulated.part("train", who).fit(ridge)
        trees = [Tree.of(each[who]) for each in estimates]
        found = [evidence.grouped(tree, moments) for tree in trees]
        best = max(range(len(found)), key=lambda k: evidence.total(found[k], moments))
        others = [replace(evidence, margin=margin).grouped(trees[best], moments) for margin in (LOOSE, STRICT)]
        for k, grouping in enumerate((found[best], *others)):
            labels[who] = state.info.m + grouping  # who was not heard is alone
            state.memory["groupings"][k] = apart(labels, state.memory["suspects"])
        state.memory["confidence"][:] = 0.5  # of those who do not answer nothing is known
        state.memory["confidence"][state.memory["suspects"]] = 1.0  # nobody is to be put with them
        state.memory["confidence"][who] = evidence.sureness(found[best], moments)
        return self._group(state, state.memory["groupings"][0])

    # -- two estimates from two halves: what they share is signal, what they do not is noise

    def _ask_half(self, state: StagedState, devices: Ints) -> list[Task]:
        rows: Part = "train/2" if state.number("half") else "train/1"
        return [Train(Work(solver="exact"), rho=RIDGES[COMMON], rows=rows)] * len(devices)

    def _take_half(self, state: StagedState) -> str:
        half = state.number("half")
        for i, answer in state.answers.items():
            state.memory["halves"][half, i] = answer
        state.put("half", half + 1)
        return "half" if half == 0 else "local"

    def _certain(self, state: StagedState, tree: Tree, leaves: Ints) -> Bools:
        """Return the nodes whose two sides differ beyond doubt, by both halves alike.

        The difference of the sides' mean estimates is taken in either half. Where the sides are the same, both are
        independent noise, and their cosine varies as that of two devices' own noise (half 1 less half 2) does.
        """
        who = self._trusted(state)
        weights, leaves = state.info.counts["train"][who].astype(np.float64), leaves[who]
        first, second = (cluster_means(half[who], leaves, weights) for half in state.memory["halves"])
        sizes = np.bincount(leaves, weights).astype(np.float64)
        noise = state.memory["halves"][0] - state.memory["halves"][1]
        usual = _usual_cosine(noise[who])
        certain = np.zeros(2 * tree.n - 1, np.bool_)
        certain[tree.n :] = alike(tree.splits(first, sizes), tree.splits(second, sizes)) > CERTAIN * usual
        return certain

    # -- whom to believe

    def _possible(self, state: StagedState, i: int, answer: Floats) -> bool:
        if state.stage == "local":
            # where f + ridge/2 |w|^2 is least, the gradient of f is -ridge w
            return self._in_line(state, i, answer, -RIDGES[state.number("ridge")] * answer, np.nan)
        if state.stage in ("tree", "candidates", "check"):
            return possible_judgement(answer, judged_models(len(answer)))
        if state.stage == "residue":
            return bool(abs(answer[0]) <= 1 + SLACK)
        return super()._possible(state, i, answer)

    def _trusted(self, state: StagedState) -> Ints:
        return np.flatnonzero(~state.memory["suspects"])

    # -- 1: every device alone

    def _ask_local(self, state: StagedState, devices: Ints) -> list[Task]:
        return [Train(Work(solver="exact"), rho=RIDGES[state.number("ridge")], rows="train")] * len(devices)

    def _take_local(self, state: StagedState) -> str:
        estimates = state.memory["estimates"][state.number("ridge")]
        for i, answer in state.answers.items():
            estimates[i] = answer
        state.memory["models"] = estimates.copy()
        who = self._trusted(state)
        if not who.size:
            return self._group(state, np.arange(state.info.m))
        tree = Tree.of(estimates[who])
        state.memory |= {"children": tree.children, "heights": tree.heights, "leaves": who}
        return "tree"

    # -- 2 and 3: the tree, and where to cut it

    def _ask_tree(self, state: StagedState, devices: Ints) -> list[Task]:
        tree, who = self._tree(state), state.memory["leaves"]
        estimates = state.memory["estimates"][state.number("ridge")][who]
        means = tree.means(estimates, state.info.counts["train"][who].astype(np.float64))
        nodes, above = means.astype(state.info.dtype), tree.ancestors()
        return [EvaluateModels(nodes[above[leaf] - tree.n], own=True) for leaf in np.searchsorted(who, devices)]

    def _take_tree(self, state: StagedState) -> str:
        tree, rows, who = self._tree(state), state.info.counts["validation"], state.memory["leaves"]
        above, place = tree.ancestors(), {int(i): leaf for leaf, i in enumerate(who)}
        judged = [PairedLosses.read(place[i], rows[i], v, 1 + len(above[place[i]])) for i, v in state.answers.items()]
        ridge, leaves = state.number("ridge"), np.zeros(state.info.m, np.int64)
        leaves[who] = np.arange(tree.n)
        labels = leaves.copy()
        labels[who] = tree.cut(judged, self._certain(state, tree, leaves))
        state.memory["groupings"][ridge] = apart(labels, state.memory["suspects"])
        state.put("ridge", ridge + 1)
        if ridge + 1 < len(RIDGES):
            return "local"
        return self._settle(state)

    def _tree(self, state: StagedState) -> Tree:
        return Tree(state.memory["children"], state.memory["heights"])

    # -- 4: which grouping

    def _settle(self, state: StagedState) -> str:
        candidates = self._candidates(state)
        if len(candidates) > 1:
            return "candidates"
        return self._group(state, candidates[0])

    def _candidates(self, state: StagedState) -> Ints:
        suspects = state.memory["suspects"]
        return np.unique([apart(labels, suspects) for labels in state.memory["groupings"]], axis=0)

    def _ask_candidates(self, state: StagedState, devices: Ints) -> list[Task]:
        models = self._candidate_models(state)
        return [EvaluateModels(models[:, i]) for i in devices]

    def _candidate_models(self, state: StagedState) -> Floats:
        estimates, weights = state.memory["estimates"][COMMON], state.info.counts["train"]
        models = [cluster_means(estimates, labels, weights)[labels] for labels in self._candidates(state)]
        return np.stack(models).astype(state.info.dtype)

    def _take_candidates(self, state: StagedState) -> str:
        """Take the grouping with the fewest groups that is not significantly worse than the best."""
        candidates, rows = self._candidates(state), state.info.counts["validation"]
        judged = [PairedLosses.read(i, rows[i], v, len(candidates)) for i, v in state.answers.items()]
        if not judged:
            return self._group(state, candidates[0])
        best = int(np.argmin(sum(j.n * j.means for j in judged)))
        worse = np.array([[j.difference(c, best) for j in judged] for c in range(len(candidates))]).sum(axis=1)
        margins = np.array([Z * sharing(labels[self._trusted(state)]) for labels in candidates])
        good = np.flatnonzero(worse[:, 0] <= margins * np.sqrt(worse[:, 1]))
        return self._group(state, candidates[good[np.argmin(candidates[good].max(axis=1))]])

    def _group(self, state: StagedState, labels: Ints) -> str:
        state.put("labels", apart(labels, state.memory["suspects"]))
        estimates, weights = state.memory["estimates"][COMMON], state.info.counts["train"]
        state.memory["models"] = cluster_means(estimates, state.memory["labels"], weights)
        return self._fit_from(state, state.memory["models"].copy())

    # -- 5: check the groups with their refitted models

    def _after_fit(self, state: StagedState) -> str:
        state.put("checks", state.number("checks") + 1)
        groups = self._groups(state)
        if groups <= 1 or self._in_summary(state):
            return "residue"
        tree = Tree.of(state.memory["models"][:groups])
        state.memory |= {"children": tree.children, "heights": tree.heights}
        return "check"

    def _ask_check(self, state: StagedState, devices: Ints) -> list[Task]:
        """Send the model of the device's group, of the nearest others, and of the merges above its group."""
        tree, near = self._tree(state), self._near(state)
        models = state.memory["models"][: tree.n]
        sizes = np.bincount(state.memory["labels"], state.info.counts["train"])[: tree.n].astype(np.float64)
        merged, above = tree.means(models, sizes), tree.ancestors()
        # in this order: its own, those above it, those near it
        sent = [np.concatenate([models[c : c + 1], merged[above[c] - tree.n], models[near[c]]]) for c in range(tree.n)]
        return [EvaluateModels(sent[c].astype(state.info.dtype)) for c in state.memory["labels"][devices]]

    def _near(self, state: StagedState) -> Ints:
        """Return for every group those whose models are nearest."""
        models = state.memory["models"][: self._tree(state).n]
        distances = scipy.spatial.distance.cdist(models, models)
        np.fill_diagonal(distances, np.inf)
        return np.argsort(distances, axis=1, kind="stable")[:, : min(NEAREST, len(models) - 1)]

    def _take_check(self, state: StagedState) -> str:
        tree, labels, near = self._tree(state), state.memory["labels"], self._near(state)
        above, moved, judged = tree.ancestors(), state.memory["labels"].copy(), []
        state.memory["confidence"][:] = 0.5  # of those who do not answer nothing is known
        for i, answer in state.answers.items():
            c, rows = int(labels[i]), int(state.info.counts["validation"][i])
            own = 1 + len(above[c])
            judgement = PairedLosses.read(c, rows, answer, own + near.shape[1])
            judged.append(judgement)
            others = np.array([judgement.difference(own + k, 0) for k in range(near.shape[1])])
            z = others[:, 0] / np.sqrt(np.maximum(others[:, 1], 1e-300))
            state.memory["confidence"][i] = scipy.special.ndtr(z.min())
            if z.min() < -MOVE:  # another group's model is significantly better
                moved[i] = near[c, int(np.argmin(others[:, 0]))]
        suspects, who = state.memory["suspects"], self._trusted(state)
        state.memory["confidence"][suspects] = 1.0  # nobody is to be put with them
        cut = tree.cut(judged, self._certain(state, tree, labels), z=Z * sharing(labels[who]))
        new = apart(cut[np.minimum(moved, tree.n - 1)], suspects)
        if state.number("checks") >= CHECKS or (new == labels).all():
            return "residue"
        return self._regroup(state, new)

    def _regroup(self, state: StagedState, new: Ints) -> str:
        """Go on with other groups, from the mean of what their members had."""
        old = state.memory["models"][state.memory["labels"]]
        state.put("labels", new)
        state.memory["models"] = cluster_means(old, new, state.info.counts["train"])
        return self._fit_from(state, state.memory["models"].copy())

    # -- 6: is there structure left inside the groups?

    def _ask_residue(self, state: StagedState, devices: Ints) -> list[Task]:
        models, slopes = (state.memory[n].astype(state.info.dtype) for n in ("models", "slopes"))
        return [GradientCosine(models[c], slopes[c]) for c in state.memory["labels"][devices]]

    def _skip_residue(self, state: StagedState) -> Bools:
        sizes = np.bincount(state.memory["labels"])
        return np.asarray(sizes[state.memory["labels"]] == 1)  # nothing can be left inside one device

    def _take_residue(self, state: StagedState) -> str:
        cosines = np.zeros(state.info.m)
        for i, answer in state.answers.items():
            cosines[i] = answer[0]
        labels = state.memory["labels"]
        state.put("residue", _z(cosines))
        doubtful = [c for c in range(int(labels.max()) + 1) if _z(cosines[labels == c]) > DOUBT]
        judged = not self._in_summary(state)
        if judged and doubtful and state.number("splits") < SPLITS and not self._seen(state):
            state.put("splits", state.number("splits") + 1)
            state.put("checks", 0)
            return self._regroup(state, self._halved(state, doubtful))
        return self._leave(state)

    def _seen(self, state: StagedState) -> bool:
        """Whether these groups were halved before, to no avail."""
        key = canonical(state.memory["labels"])
        seen = bool((state.memory["halved"] == key).all(axis=1).any())
        state.memory["halved"] = np.vstack([state.memory["halved"], key])
        return seen

    def _halved(self, state: StagedState, groups: list[int]) -> Ints:
        """Cut groups in two by their members' own estimates; the next check says whether that was right."""
        labels, estimates = state.memory["labels"].copy(), state.memory["estimates"][COMMON]
        for c in groups:
            inside = np.flatnonzero(labels == c)
            if len(inside) > 1:
                halves = scipy.cluster.hierarchy.fcluster(
                    scipy.cluster.hierarchy.linkage(estimates[inside], "ward"), 2, "maxclust"
                )
                labels[inside[halves == 2]] = labels.max() + 1
        return apart(labels, state.memory["suspects"])

    def _leave(self, state: StagedState) -> str:
        state.memory["chosen"] = state.memory["models"].copy()
        return self._go_again(state)

    def stability(self, state: StagedState) -> float:
        """Return how well the groupings of all ridges, or odds, and the final one agree (1: all the same).

        Structure that is left inside the groups counts against it, and so do too few validation rows: with fewer
        than ENOUGH for each parameter of one model, groups that differ may look alike.
        """
        who = self._trusted(state)
        groupings = [labels[who] for labels in (*state.memory["groupings"], state.memory["labels"])]
        agreement = [adjusted_rand(x, y) or 0.0 for x, y in combinations(groupings, 2)]
        left = max(0.0, float(state.memory["residue"][0]) - DOUBT)
        judges = "train+validation" if self._in_summary(state) else "validation"
        enough = min(1.0, state.info.counts[judges][who].sum() / (ENOUGH * state.info.d))
        return float(enough * np.clip(np.mean(agreement), 0, 1) / (1 + left))

    def outcome(self, state: StagedState) -> Outcome:
        return super().outcome(state)._replace(stability=self.stability(state), confidence=state.memory["confidence"])

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Find the newcomer's group by how well the groups' models predict its rows."""
        return (yield from judged(known, info, self.work, "train+validation", device))

    def recovery(self, state: StagedState) -> list[dict[int, Task]]:
        tasks = super().recovery(state)
        if tasks:  # every device also gets its own last estimate back
            tasks.append({i: Install(w.astype(state.info.dtype)) for i, w in enumerate(self._own(state))})
        return tasks

    def _own(self, state: StagedState) -> Floats:
        """Return the vectors that devices hold: what each trained last."""
        trained = [np.zeros((state.info.m, state.info.d)), *state.memory["halves"], *state.memory["estimates"]]
        last = trained[state.number("half") + state.number("ridge") + (state.stage == "tree")]
        own: Floats = last.copy()
        if state.stage in ("local", "half"):
            for i, answer in state.answers.items():
                own[i] = answer
        return own


def _usual_cosine(rows: Floats) -> float:
    """Return the root mean square cosine between two different rows (1 if there is only one)."""
    m = len(rows)
    if m == 1:
        return 1.0
    directions = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    squares = np.square(directions @ directions.T)
    return float(np.sqrt((squares.sum() - np.trace(squares)) / (m * (m - 1))))


def _z(cosines: Floats) -> float:
    """Return by how many standard errors the sum of the cosines exceeds zero."""
    return float(cosines.sum() / np.sqrt(max(float(np.square(cosines).sum()), 1e-300)))
