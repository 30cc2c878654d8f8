"""The fusion tree for networks, where nothing can be solved exactly; and the refit of groups that are given.

    train together  all devices train one network (FedAvg), so that weights can be compared, until what each has just
                    made of it no longer gets better on its validation rows
    train apart     every device trains on from there by itself, and uploads once
    cut tree        average linkage of the fused parts; devices evaluate the models of the groups above them on their
                    validation rows, where every class counts the same, and the tree is cut where that is best
    check groups    a device that does significantly better with another group's model moves
    train groups    every group trains its own fused part and all of them the shared one, for the rounds that are
                    left: a mean over members, a mean over all, both weighted by rows

The work of each turn is that of the method, so a budget of rounds is a budget of local epochs. Validation rows choose
the groups; the refit then trains on them as well. Convex models have `fusion_tree`, which needs fewer rounds.

A device whose update is many times longer than the shortest ones is not believed, nor one whose scores or losses are
impossible (`protocol.reply_checks`): it is alone from then on, and no mean has a part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from fedfuse.core.dendrogram import PairedLosses, Tree
from fedfuse.core.partitions import group_means
from fedfuse.core.robust_mean import Robust, robust_mean
from fedfuse.data.federation import Part
from fedfuse.grouping.selection import MOVE_ZSCORE, UNKNOWN_CONFIDENCE, best_alternative, nearest
from fedfuse.grouping.steps import EvaluationStep, Step, StepMethod, StepState, by_name, found_labels, true_labels
from fedfuse.methods.method import FederationInfo, Outcome
from fedfuse.models.model import Start
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.reply_checks import apart, possible_score
from fedfuse.protocol.tasks import EvaluateModels, Task, Train
from fedfuse.utils.typing import Floats, Ints

# Turns of training together before devices go apart.
MIN_COMMON_TURNS, MAX_COMMON_TURNS = 3, 8
# A score on validation rows that rose by less has stopped rising: accuracy, or as a share of the RMSE.
MIN_SCORE_RISE = 0.02
# Updates are measured by the reference length, that of the shortest tenth (the others may lie): longer ones than
# MAX_LENGTH_RATIO are not believed, and those beyond BOUNDED_LENGTH_RATIO count in means as if they had that length.
REFERENCE_QUANTILE = 0.1
MAX_LENGTH_RATIO = 5.0
BOUNDED_LENGTH_RATIO = 2.0
# The reference length before the first turn.
MIN_REFERENCE_LENGTH = 1e-12


@dataclass
class NetworkState(StepState):
    """Groups of devices that train networks, from the models of the stage before or one start for all."""

    start: InitVar[Start] = "auto"
    turn: int = 0
    reference_length: float = MIN_REFERENCE_LENGTH  # of updates, the longest so far

    def __post_init__(self, previous: Outcome | None, start: Start) -> None:
        super().__post_init__(previous)
        models = np.tile(self.info.initial(start), (self.info.m, 1)) if previous is None else previous.models
        self.group(models.astype(self.info.dtype), self.labels)

    def active(self, drawn: int) -> int:
        # A share of those who are believed, as if there were no others: step sizes fall from turn to turn, and the more
        # devices had gone, the sooner training would come to rest.
        return drawn * len(self.trusted) // self.info.m

    def group(self, models: Floats, labels: Ints) -> None:
        """Go on with these groups, from the mean of what their members have (all their weights, shared or not)."""
        weights, suspects, cut = self.info.counts["train"], self.suspects, self.info.model.fused.start
        labels, believed = apart(labels, suspects), suspects if suspects.all() else ~suspects
        groups = group_means(models, labels, weights)
        everybody = np.average(models[believed], axis=0, weights=weights[believed])
        groups[:, :cut] = everybody[:cut]
        groups[labels[suspects]] = everybody
        self.labels, self.models = labels, groups.astype(self.info.dtype)

    def expel_overlong(self, robust: Robust) -> None:
        """Do not believe updates of an absurd length."""
        if robust != "none" and self.answers:
            who, lengths = self._update_lengths()
            self.expel(who[lengths > MAX_LENGTH_RATIO], "its update is absurdly long beside those of others")

    def _update_lengths(self) -> tuple[Ints, Floats]:
        """Return who has answered, and how long their updates are in units of the reference length.

        Devices with more rows take more steps, and may go further. The reference length never falls: later some have
        learned all that they can and hardly move, and devices that still learn would look like liars beside them.
        """
        who = np.array(sorted(self.answers), dtype=np.int64)
        starts = self.models[self.labels[who]]
        lengths = np.linalg.norm(np.stack([self.answers[i] for i in who]) - starts, axis=1)
        rows = self.info.counts["train"][who]
        lengths /= np.maximum(rows / max(float(np.quantile(rows, REFERENCE_QUANTILE)), 1.0), 1.0)
        self.reference_length = max(float(np.quantile(lengths, REFERENCE_QUANTILE)), self.reference_length)
        return who, lengths / self.reference_length

    def average(self, rows: Part, robust: Robust) -> None:
        """Take in what devices have made of their group's model; those that have not answered change nothing."""
        self.expel_overlong(robust)
        self.turn += 1
        if not self.answers:
            return
        who, new = self._bounded_answers(robust)
        inside, weights = self.labels[who], self.info.counts[rows][who].astype(np.float64)
        models, cut = self.models.astype(np.float64), self.info.model.fused.start
        for c in np.unique(inside):
            models[c, cut:] = robust_mean(new[inside == c, cut:], weights[inside == c], robust)
        if cut:
            models[:, :cut] = robust_mean(new[:, :cut], weights, robust)
        self.models = models.astype(self.info.dtype)

    def _bounded_answers(self, robust: Robust) -> tuple[Ints, Floats]:
        """Return who has answered, and their models; a lie that is just short of absurd would still ruin a mean."""
        who, lengths = self._update_lengths()
        new = np.stack([self.answers[i] for i in who])
        if robust == "none" or lengths.max() <= BOUNDED_LENGTH_RATIO:
            return who, new
        starts = self.models[self.labels[who]]
        return who, starts + (new - starts) / np.where(lengths > BOUNDED_LENGTH_RATIO, lengths, 1.0)[:, None]


@dataclass
class NetworkTreeState(NetworkState):
    """What devices have trained by themselves, and the groups found with it."""

    score: float = 0.0  # of the last turn together
    own: Floats = field(init=False)
    tree: Tree = field(init=False)
    agreement: float = 1.0  # share of the devices that stay where the tree put them

    def __post_init__(self, previous: Outcome | None, start: Start) -> None:
        super().__post_init__(previous, start)
        self.own = np.zeros((self.info.m, self.info.d), self.info.dtype)
        self.tree, self.confidence = Tree.of(self.own[:0]), np.full(self.info.m, UNKNOWN_CONFIDENCE)

    def stability(self) -> float:
        return self.agreement

    def cut_own_tree(self) -> str:
        """Cut the tree of what devices have trained by themselves."""
        who = self.trusted
        self.tree = Tree.of(self.own[who][:, self.info.model.fused], who)
        return CutNetworkTree.name

    def nearest_groups(self) -> Ints:
        """Return for every group those whose fused parts are nearest."""
        return nearest(self.models[: self.n_trusted_groups, self.info.model.fused])


N = TypeVar("N", bound=NetworkState)


@dataclass(frozen=True, repr=False)
class _Training(Step[N]):
    """Devices train on from their group's network."""

    work: Work
    rows: Part
    robust: Robust

    def ask(self, state: N, devices: Ints) -> list[Task]:
        return list(self.orders(state, devices, "train"))

    def orders(self, state: N, devices: Ints, rows: Part) -> list[Train]:
        """Return the turn of every device: schedules of the work go by turns."""
        work = self.work.at(state.turn)
        return [Train(work, start=w, rows=rows) for w in state.models[state.labels[devices]]]


class TrainGroups(_Training[NetworkState]):
    """Devices train their group's network: one turn of FedAvg within each group."""

    name = "train groups"
    open_ended = True

    def ask(self, state: NetworkState, devices: Ints) -> list[Task]:
        return list(self.orders(state, devices, self.rows))

    def take(self, state: NetworkState) -> str:
        state.average(self.rows, self.robust)
        return self.name


class TrainTogether(_Training[NetworkTreeState]):
    """Devices train one network for all, and send its score on validation rows."""

    name = "train together"

    def ask(self, state: NetworkTreeState, devices: Ints) -> list[Task]:
        return [replace(task, score="validation") for task in self.orders(state, devices, "train")]

    def possible(self, state: NetworkTreeState, device: int, answer: Floats) -> bool:
        return possible_score(float(answer[-1]), state.info.model.goal)

    def take(self, state: NetworkTreeState) -> str:
        judges = [i for i in state.answers if state.info.counts["validation"][i]]
        score = float(np.mean([state.answers[i][-1] for i in judges])) if judges else 0.0
        state.answers = {i: answer[:-1] for i, answer in state.answers.items()}
        state.average(self.rows, self.robust)
        before, state.score = state.score, score
        if state.info.model.goal == "regression":
            score, before = -score / max(before, 1e-300), -1.0
        rising = score > before + MIN_SCORE_RISE
        together = state.turn < MIN_COMMON_TURNS or (state.turn < MAX_COMMON_TURNS and rising)
        return self.name if together else TrainApart.name


@dataclass(frozen=True, repr=False)
class TrainApart(_Training[NetworkTreeState]):
    """Devices train on by themselves, and upload once."""

    name = "train apart"
    then: Callable[[Any], str] = NetworkTreeState.cut_own_tree

    def take(self, state: NetworkTreeState) -> str:
        state.expel_overlong(self.robust)
        state.own = state.filled(state.models[state.labels])
        state.turn += 1
        who = state.trusted
        if len(who) < 2:
            state.group(state.own, np.arange(state.info.m))
            return TrainGroups.name
        return self.then(state)


class CutNetworkTree(EvaluationStep[NetworkTreeState]):
    """Devices evaluate their own network and those of the groups above; the tree is cut where that is best."""

    name = "cut tree"

    def ask(self, state: NetworkTreeState, devices: Ints) -> list[Task]:
        above = state.tree.merged_models(state.own, state.info.counts["train"], devices)
        models = [np.vstack([state.own[i], merged]) for i, merged in zip(devices, above, strict=True)]
        return [EvaluateModels(each.astype(state.info.dtype), balanced=True) for each in models]

    def take(self, state: NetworkTreeState) -> str:
        state.group(state.own, state.tree.cut_by_answers(state.answers, state.info.counts["validation"]))
        return CheckNetworks.name if state.n_trusted_groups > 1 else TrainGroups.name


class CheckNetworks(CutNetworkTree):
    """Devices evaluate their network and the nearest; one moves, a lone one unless others are surely worse."""

    name = "check groups"

    def ask(self, state: NetworkTreeState, devices: Ints) -> list[Task]:
        models, near = state.models, state.nearest_groups()
        labels = state.labels[devices]
        return [EvaluateModels(np.vstack([models[c : c + 1], models[near[c]]]), balanced=True) for c in labels]

    def take(self, state: NetworkTreeState) -> str:
        labels, near, moved = state.labels, state.nearest_groups(), state.labels.copy()
        alone, joined, tried = np.bincount(labels)[labels] == 1, set[int](), near.shape[1]
        state.confidence = np.full(len(labels), UNKNOWN_CONFIDENCE)
        for i, answer in sorted(state.answers.items()):
            losses = PairedLosses(i, int(state.info.counts["validation"][i]), answer)
            other, z, state.confidence[i] = best_alternative(losses, 1, tried)
            # Of two devices that are alone, one moves to the other.
            if z < (MOVE_ZSCORE if alone[i] and labels[i] not in joined else -MOVE_ZSCORE):
                moved[i] = near[labels[i], other]
                joined.add(int(moved[i]))
        state.agreement = float(np.mean(moved == labels))
        state.group(state.own, moved)
        return TrainGroups.name


@dataclass(frozen=True)
class NetworkRefit(StepMethod[NetworkState]):
    """Train one network per group, of those found or the true ones; what is not fused is one for all."""

    name: ClassVar[str] = "network-refit"
    true_groups: bool = False

    def steps(self) -> dict[str, Step[Any]]:
        return by_name(TrainGroups(self.work, self.rows, self.robust))

    def first_state(self, info: FederationInfo, previous: Outcome | None) -> NetworkState:
        labels = true_labels(info) if self.true_groups else found_labels(previous)
        return NetworkState(info, labels, previous, start=self.start)


@dataclass(frozen=True)
class NetworkFusionTree(StepMethod[NetworkTreeState]):
    """Find the groups of devices that train a network, and train theirs."""

    name: ClassVar[str] = "network-fusion-tree"

    def steps(self) -> dict[str, Step[Any]]:
        work = (self.work, self.rows, self.robust)
        finding = (TrainTogether(*work), TrainApart(*work), CutNetworkTree(), CheckNetworks())
        return by_name(*finding, TrainGroups(*work))

    def first_state(self, info: FederationInfo, previous: Outcome | None) -> NetworkTreeState:
        return NetworkTreeState(info, np.zeros(info.m, np.int64), previous, start=self.start)
