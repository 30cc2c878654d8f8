"""Networks, where nothing can be solved exactly: FPFC without a lambda to give, and the refit of its groups.

    together: all devices train one network (FedAvg), so that their weights can be compared, until what each has just
              made of it no longer gets better on its validation rows
    apart:    every device trains on from there by itself, and uploads once
    tree:     the fused parts are ordered in a tree (`core.dendrogram.Tree`); each device judges the models of the groups above it
              on its validation rows, where every class counts the same, and the tree is cut where that is best
    check:    a device that does significantly better with another group's model moves
    refit:    every group trains its own fused part, and all of them the shared one, for the rounds that are left:
              a mean over members, a mean over everybody, both weighted by rows

The work of each turn is that of the method, so a budget of rounds is a budget of local epochs. Validation rows choose
the groups; the refit then trains on them as well. Convex models have `grouping.fusion_tree`, which needs fewer rounds.

A device whose update is many times longer than those of the calm ones is not believed, nor one whose scores or losses
are impossible (`trust`): it stands alone from then on, and nobody's mean has a part of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import scipy

from fedfuse.core.dendrogram import PairedLosses, Tree
from fedfuse.core.partitions import canonical, cluster_means
from fedfuse.core.robust_mean import Robust, robust_mean
from fedfuse.data.federation import Part
from fedfuse.errors import FedfuseError
from fedfuse.grouping.steps import SKIPPED, Staged, StagedState
from fedfuse.methods.method import FederationInfo, Outcome
from fedfuse.pairs.state import Residuals
from fedfuse.protocol.reply_checks import apart, judged_models, possible_judgement, possible_score
from fedfuse.protocol.tasks import EvaluateModels, Task, Train
from fedfuse.utils.typing import Floats, Ints

FEWEST, MOST = 3, 8  # turns of training together before devices go apart
FLAT = 0.02  # a score on validation rows that rose by less (accuracy; of RMSE, this share) has stopped rising
NEAREST = 5  # other groups' models that a device tries
LONG = 5.0  # times the length of the calm updates, and an update is not believed,
BOUND = 2.0  # and from so many times on, it counts in means as if it were as long as theirs
CALM = 0.1  # share of the devices whose updates are the calm ones: the others may lie
# Standard errors by which another group's model must be better for a device to move. A device that is alone moves to
# a model that it cannot tell to be worse: the others there have more rows than it has.
MOVE = 1.645


@dataclass(frozen=True)
class NetworkRefit(Staged):
    """Train one network per group that the method before has found; what is not fused is one for all."""

    name: ClassVar[str] = "network-refit"
    first: ClassVar[str] = "refit"
    most: int = 20  # rounds
    robust: Robust = "screen"

    def settled(self, state: StagedState) -> bool:
        return True  # a network is trained for as many rounds as there are

    def _prepare(self, state: StagedState, before: Outcome | None) -> None:
        info = state.info
        suspects = np.zeros(info.m, np.bool_)
        suspects[np.asarray(() if before is None else before.suspects, np.int64)] = True
        state.put("suspects", suspects)
        start = info.initial(self.start)
        models = np.tile(start, (info.m, 1)) if before is None else before.models
        self._group(state, models.astype(info.dtype), self._clusters(info, before))
        state.put("lam", np.nan if before is None or before.lam is None else before.lam)
        state.put("turn", 0)

    def _clusters(self, info: FederationInfo, before: Outcome | None) -> Ints:
        if before is None:
            raise FedfuseError("a refit needs clusters that another method has found")
        return canonical(before.labels)

    def _group(self, state: StagedState, models: Floats, labels: Ints) -> None:
        """Go on with these groups, from the mean of what their members have (all their weights, shared or not)."""
        weights, suspects = state.info.counts["train"], state.memory["suspects"]
        labels, believed = apart(labels, suspects), ~suspects if not suspects.all() else suspects
        groups = cluster_means(models, labels, weights)
        everybody = np.average(models[believed], axis=0, weights=weights[believed])
        cut = state.info.model.fused.start
        groups[:, :cut] = everybody[:cut]
        groups[labels[suspects]] = everybody
        state.put("labels", labels)
        state.memory["models"] = groups.astype(state.info.dtype)

    # -- whom to believe

    def _enter(self, state: StagedState, stage: str) -> None:
        super()._enter(state, stage)
        state.asked[state.memory["suspects"]] = SKIPPED

    def devices(self, state: StagedState, drawn: Ints) -> Ints:
        # a share of those who are believed, as if there were no others: step sizes fall from turn to turn, and the more
        # devices had gone, the sooner training would come to rest
        believed = int((~state.memory["suspects"]).sum())
        return super().devices(state, drawn[: max(1, len(drawn) * believed // state.info.m)])

    def update(self, state: StagedState, devices: Ints, values: list[Floats]) -> Residuals | None:
        if self.robust != "none":
            fine = np.array([self._possible(state, v) for v in values], np.bool_)
            self._expel(state, devices[~fine])
            devices, values = devices[fine], [v for v, good in zip(values, fine, strict=True) if good]
        return super().update(state, devices, values)

    def _possible(self, state: StagedState, answer: Floats) -> bool:
        """Whether honest devices can say this of models; what they send of their own is another matter."""
        if state.stage == "together":
            return possible_score(float(answer[-1]), state.info.model.goal)
        return state.stage not in ("tree", "check") or possible_judgement(answer, judged_models(len(answer)))

    def _expel(self, state: StagedState, devices: Ints) -> None:
        state.memory["suspects"][devices] = True
        state.asked[devices] = SKIPPED
        for i in devices:
            state.answers.pop(int(i), None)

    def _screen(self, state: StagedState) -> None:
        """Do not believe updates of an absurd length."""
        if self.robust == "none" or not state.answers:
            return
        who, lengths = self._lengths(state)
        self._expel(state, who[lengths > LONG])

    def _lengths(self, state: StagedState) -> tuple[Ints, Floats]:
        """Return who has answered, and how long their updates are, where 1 is the longest that calm ones have had.

        Who has more rows takes more steps, and may go further. The longest so far: later some have learned all that
        they can and hardly move, and who still learns would look like a liar beside them.
        """
        who = np.array(sorted(state.answers), dtype=np.int64)
        starts = state.memory["models"][state.memory["labels"][who]]
        lengths = np.linalg.norm(np.stack([state.answers[i] for i in who]) - starts, axis=1)
        rows = state.info.counts["train"][who]
        lengths /= np.maximum(rows / max(float(np.quantile(rows, CALM)), 1.0), 1.0)
        before = float(state.memory["calm"][0]) if "calm" in state.memory else 1e-12
        state.put("calm", max(float(np.quantile(lengths, CALM)), before))
        return who, lengths / float(state.memory["calm"][0])

    def _bounded(self, state: StagedState) -> tuple[Ints, Floats]:
        """Return who has answered, and their models; a lie that is just short of absurd would still ruin a mean."""
        who, lengths = self._lengths(state)
        new = np.stack([state.answers[i] for i in who])
        if self.robust == "none" or lengths.max() <= BOUND:
            return who, new
        starts = state.memory["models"][state.memory["labels"][who]]
        return who, starts + (new - starts) / np.where(lengths > BOUND, lengths, 1.0)[:, None]

    def _groups(self, state: StagedState) -> int:
        """Return how many groups have members that are believed; they come first."""
        return int(state.memory["labels"][~state.memory["suspects"]].max(initial=-1)) + 1

    def _train(self, state: StagedState, devices: Ints, rows: Part) -> list[Train]:
        work = self.work.at(state.number("turn"))
        starts = state.memory["models"][state.memory["labels"][devices]]
        return [Train(work, start=w, rows=rows) for w in starts]

    def _averaged(self, state: StagedState) -> None:
        """Take in what devices have made of their group's model; who has not answered changes nothing."""
        self._screen(state)
        state.put("turn", state.number("turn") + 1)
        if not state.answers:
            return
        who, new = self._bounded(state)
        labels = state.memory["labels"]
        weights = state.info.counts[self.rows][who].astype(np.float64)
        models, cut = state.memory["models"].astype(np.float64), state.info.model.fused.start
        for c in np.unique(labels[who]):
            inside = labels[who] == c
            models[c, cut:] = robust_mean(new[inside, cut:], weights[inside], self.robust)
        models[:, :cut] = robust_mean(new[:, :cut], weights, self.robust) if cut else models[:, :cut]
        state.memory["models"] = models.astype(state.info.dtype)

    def _ask_refit(self, state: StagedState, devices: Ints) -> list[Task]:
        return list(self._train(state, devices, self.rows))

    def _take_refit(self, state: StagedState) -> str:
        self._averaged(state)
        return "refit"

    # -- what there is to see

    def models(self, state: StagedState) -> Floats:
        return np.asarray(state.memory["models"][state.memory["labels"]])

    def labels(self, state: StagedState) -> Ints:
        return canonical(state.memory["labels"])

    def outcome(self, state: StagedState) -> Outcome:
        lam = float(state.memory["lam"][0])
        suspects = np.flatnonzero(state.memory["suspects"])
        return Outcome(
            self.models(state),
            self.labels(state),
            lam if np.isfinite(lam) else None,
            suspects=suspects,
            validated=self.validated(state),
        )

    def validated(self, state: StagedState) -> Floats | None:
        """Return the models that never saw the validation rows."""
        return None

    def describe(self, state: StagedState) -> dict[str, Any]:
        return {"lam": float(state.memory["lam"][0])}

    def recovery(self, state: StagedState) -> list[dict[int, Task]]:
        return []


@dataclass(frozen=True)
class NetworkOracle(NetworkRefit):
    """The same within the true groups, for all rounds of the run."""

    name: ClassVar[str] = "network-oracle"

    def _clusters(self, info: FederationInfo, before: Outcome | None) -> Ints:
        if info.truth is None:
            raise FedfuseError("the oracle needs to be told the true groups, and these data have none")
        return canonical(info.truth)


@dataclass(frozen=True)
class NetworkAuto(NetworkRefit):
    """Find the groups of devices that train a network, and train theirs."""

    name: ClassVar[str] = "network-auto"
    first: ClassVar[str] = "together"

    def settled(self, state: StagedState) -> bool:
        return state.stage == "refit"  # only then are there groups

    def _prepare(self, state: StagedState, before: Outcome | None) -> None:
        super()._prepare(state, before)
        m, d = state.info.m, state.info.d
        state.memory["own"] = np.zeros((m, d), state.info.dtype)
        state.put("confidence", np.full(m, 0.5))
        state.put("agreement", 1.0)
        state.put("score", 0.0)

    def _clusters(self, info: FederationInfo, before: Outcome | None) -> Ints:
        return np.zeros(info.m, np.int64)

    def _ask_together(self, state: StagedState, devices: Ints) -> list[Task]:
        return [replace(task, score="validation") for task in self._train(state, devices, "train")]

    def _take_together(self, state: StagedState) -> str:
        judges = [i for i in state.answers if state.info.counts["validation"][i]]
        score = float(np.mean([state.answers[i][-1] for i in judges])) if judges else 0.0
        state.answers = {i: answer[:-1] for i, answer in state.answers.items()}
        self._averaged(state)
        turn, before = state.number("turn"), float(state.memory["score"][0])
        state.put("score", score)
        if state.info.model.goal == "regression":
            score, before = -score / max(before, 1e-300), -1.0
        still_rising = turn < FEWEST or (turn < MOST and score > before + FLAT)
        return "together" if still_rising else "apart"

    def _ask_apart(self, state: StagedState, devices: Ints) -> list[Task]:
        return list(self._train(state, devices, "train"))

    def _take_apart(self, state: StagedState) -> str:
        self._screen(state)
        own = self.models(state).copy()
        for i, answer in state.answers.items():
            own[i] = answer
        state.memory["own"] = own
        state.put("turn", state.number("turn") + 1)
        who = np.flatnonzero(~state.memory["suspects"])
        if len(who) < 2:
            self._group(state, own, np.arange(state.info.m))
            return "refit"
        tree = Tree.of(own[who][:, state.info.model.fused])
        state.memory |= {"children": tree.children, "heights": tree.heights, "leaves": who}
        return "tree"

    def _tree(self, state: StagedState) -> Tree:
        return Tree(state.memory["children"], state.memory["heights"])

    def _ask_tree(self, state: StagedState, devices: Ints) -> list[Task]:
        tree, own, who = self._tree(state), state.memory["own"], state.memory["leaves"]
        means = tree.means(own[who], state.info.counts["train"][who].astype(np.float64)).astype(state.info.dtype)
        above, leaves = tree.ancestors(), np.searchsorted(who, devices)
        models = [np.vstack([own[i], means[above[k] - tree.n]]) for i, k in zip(devices, leaves, strict=True)]
        return [EvaluateModels(judged, balanced=True) for judged in models]

    def _take_tree(self, state: StagedState) -> str:
        tree, rows, above = self._tree(state), state.info.counts["validation"], self._tree(state).ancestors()
        who = state.memory["leaves"]
        place = {int(i): leaf for leaf, i in enumerate(who)}
        judged = [PairedLosses.read(place[i], rows[i], v, 1 + len(above[place[i]])) for i, v in state.answers.items()]
        labels = np.zeros(state.info.m, np.int64)
        labels[who] = tree.cut(judged)
        self._group(state, state.memory["own"], labels)
        return "check" if self._groups(state) > 1 else "refit"

    def _ask_check(self, state: StagedState, devices: Ints) -> list[Task]:
        models, near = state.memory["models"], self._near(state)
        labels = state.memory["labels"][devices]
        return [EvaluateModels(np.vstack([models[c : c + 1], models[near[c]]]), balanced=True) for c in labels]

    def _near(self, state: StagedState) -> Ints:
        """Return for every group those whose fused parts are nearest."""
        heads = state.memory["models"][: self._groups(state), state.info.model.fused]
        distances = scipy.spatial.distance.cdist(heads, heads)
        np.fill_diagonal(distances, np.inf)
        return np.argsort(distances, axis=1, kind="stable")[:, : min(NEAREST, len(heads) - 1)]

    def _take_check(self, state: StagedState) -> str:
        labels, near, moved = state.memory["labels"], self._near(state), state.memory["labels"].copy()
        alone, joined = np.bincount(labels)[labels] == 1, set[int]()
        for i, answer in sorted(state.answers.items()):
            judgement = PairedLosses.read(i, int(state.info.counts["validation"][i]), answer, 1 + near.shape[1])
            others = np.array([judgement.difference(1 + k, 0) for k in range(near.shape[1])])
            z = others[:, 0] / np.sqrt(np.maximum(others[:, 1], 1e-300))
            state.memory["confidence"][i] = scipy.special.ndtr(z.min())
            # of two that are alone, one moves to the other
            if z.min() < (MOVE if alone[i] and labels[i] not in joined else -MOVE):
                moved[i] = near[labels[i], int(np.argmin(others[:, 0]))]
                joined.add(int(moved[i]))
        state.put("agreement", float(np.mean(moved == labels)))
        self._group(state, state.memory["own"], moved)
        return "refit"

    def outcome(self, state: StagedState) -> Outcome:
        return (
            super()
            .outcome(state)
            ._replace(stability=float(state.memory["agreement"][0]), confidence=state.memory["confidence"])
        )
