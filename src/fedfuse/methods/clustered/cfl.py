"""CFL: all in one group at first, cut in two wherever the members' updates stop agreeing.

F. Sattler, K.-R. Müller, W. Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization
under Privacy Constraints (IEEE TNNLS 2020).

    device: Delta_i <- T local steps from its group's model, minus that model; sends Delta_i
    server: in every group C, if ||mean Delta|| < eps1 and max ||Delta_i|| > eps2: cut C in two by the cosines of the
            members' updates, such that updates of different parts are alike as little as possible;
            then sends every member of C the mean of its active members' updates
    device: adds it to its model

The original lets all devices take part in every round. With fewer, norms and means are those of the active members, and
a group is cut only when every member has sent an update once; the last one of each counts ("skip"). Nothing is cut in
the first rounds, nor are groups of one or two. Members are kept by device number: positions inside a parent, as in
well-known code, go wrong from the second cut on. How long updates are depends on data and steps, so a search takes eps1
and eps2 as shares of the longest mean update so far, by the original's advice; `relative=no` has plain numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import scipy

from fedfuse.core.partitions import canonical
from fedfuse.methods.method import FederationInfo, Method, Outcome, Residuals, moved
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, AdmitsNewcomers, RunSummary, WeighsDevices
from fedfuse.methods.one_model.fedavg import averaged
from fedfuse.methods.parameters import Auto, Searchable, choice, number
from fedfuse.protocol.tasks import Add, Install, Task, Train
from fedfuse.utils.typing import Bools, Floats, Ints

Linkage = Literal["complete", "single"]
# Rounds before the first cut.
MIN_ROUNDS_BEFORE_CUT = 20
# Devices of a group that stays whole.
MAX_UNCUT_DEVICES = 2
# Candidates for eps1, and for eps2 as a multiple of it: shares of the longest mean update, of which the original takes
# a tenth and from 1 to 10 times that; and plain numbers from the ranges of the paper on FPFC.
EPS1_SHARES, EPS2_SHARE_RATIOS = (0.1, 0.3, 1.0), (1, 4)
EPS1_NUMBERS, EPS2_NUMBER_RATIOS = (0.05, 0.1, 0.2, 0.5, 1.0), (1, 2, 5)


def cosines(updates: Floats) -> Floats:
    """Return the cosine of every two rows."""
    rows = np.asarray(updates, dtype=np.float64)
    unit = rows / (np.linalg.norm(rows, axis=1, keepdims=True) + 1e-12)
    return np.asarray(np.clip(unit @ unit.T, -1, 1))


def bipartition(updates: Floats, how: Linkage = "complete") -> Bools:
    """Cut rows in two by the cosines between them; True for those that are with the first.

    ``"single"`` makes the largest cosine across the cut as small as possible, which is the original's criterion;
    ``"complete"`` is what its authors' code does, and cuts off lone devices less often.
    """
    distance = 1 - cosines(updates)
    np.fill_diagonal(distance, 0)
    tree = scipy.cluster.hierarchy.linkage(scipy.spatial.distance.squareform(distance, checks=False), method=how)
    part = scipy.cluster.hierarchy.cut_tree(tree, n_clusters=[2])[:, 0]
    return np.asarray(part == part[0])


@dataclass
class CFLState:
    """Models and groups, everybody's last update, and for newcomers every cut: its model, who was in it and where."""

    info: FederationInfo
    models: Floats
    labels: Ints
    step: Floats
    last: Floats
    heard: Bools
    cut_models: Floats
    cut_of: Ints  # a row for every member of every cut: the cut, the device, its side and its update
    cut_members: Ints
    cut_side: Ints
    cut_updates: Floats
    age: int = 0
    longest: float = 0.0  # of the mean updates of groups so far


@dataclass(frozen=True)
class CFL(WeighsDevices, Method[CFLState], Searchable, AdmitsNewcomers):
    """Recursive bipartition.

    Parameters
    ----------
    eps1, eps2
        A group is cut when its mean update is shorter than ``eps1`` and the longest of its updates is longer than
        ``eps2``. ``"auto"`` chooses both on validation rows.
    relative
        Whether these are shares of the longest mean update so far; default: where both are to be chosen.
    linkage
        How a group is cut, see `bipartition`.
    """

    name: ClassVar[str] = "cfl"
    min_trial_rounds: ClassVar[int] = 2 * MIN_ROUNDS_BEFORE_CUT
    eps1: float | Auto = number("auto", least=0)
    eps2: float | Auto = number("auto", least=0)
    relative: bool | None = None
    linkage: Linkage = choice("complete", Linkage)

    def candidates(self, state: CFLState) -> list[dict[str, Any]]:
        both = self.eps1 == self.eps2 == "auto"
        shares = both if self.relative is None else self.relative
        tried, ratios = (EPS1_SHARES, EPS2_SHARE_RATIOS) if shares else (EPS1_NUMBERS, EPS2_NUMBER_RATIOS)
        firsts = tried if self.eps1 == "auto" else (float(self.eps1),)
        if self.eps2 != "auto":
            return [{"eps1": e, "eps2": float(self.eps2), "relative": shares} for e in firsts]
        return [{"eps1": e, "eps2": e * r, "relative": shares} for e in firsts for r in (ratios if e else (1,))]

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> CFLState:
        start, m = info.initial(self.start).astype(info.dtype)[None], info.m
        none, nothing = np.zeros(0, np.int64), start[:0]
        return CFLState(
            info, start.copy(), np.zeros(m, np.int64), np.zeros_like(start), np.zeros((m, info.d), info.dtype),
            np.zeros(m, np.bool_), nothing, none, none, none, nothing,
        )  # fmt: skip

    def opening(self, state: CFLState) -> dict[int, Task]:
        return {i: Install(w) for i, w in enumerate(state.models[state.labels])}

    def tasks(self, state: CFLState, devices: Ints, k: int) -> list[Task]:
        return [Train(self.work.at(k), rows=self.rows, send="update")] * len(devices)

    def update(self, state: CFLState, devices: Ints, values: list[Floats]) -> Residuals | None:
        state.age += 1
        updates = np.array(values, dtype=state.info.dtype).reshape(len(devices), state.info.d)
        state.last[devices], state.heard[devices] = updates, True
        for group in range(len(state.models)):
            if self._apart(state, group, devices):
                self._cut(state, group)
        weights = self.weigh(state.info, devices)
        means = averaged(np.zeros(state.models.shape), state.labels[devices], updates, weights)
        state.step = means.astype(state.info.dtype)
        old = state.models
        state.models = old + state.step
        may_rest = state.age > MIN_ROUNDS_BEFORE_CUT  # before, a group at rest is yet to be cut
        return moved(old, state.models) if may_rest else None

    def _apart(self, state: CFLState, group: int, devices: Ints) -> bool:
        """Whether the group has come to rest as a whole and its members have not."""
        members = state.labels == group
        active = devices[members[devices]]
        if not active.size:
            return False
        updates = state.last[active].astype(np.float64)
        mean = float(np.linalg.norm(np.average(updates, axis=0, weights=self.weigh(state.info, active))))
        state.longest = max(state.longest, mean)
        if state.age <= MIN_ROUNDS_BEFORE_CUT or members.sum() <= MAX_UNCUT_DEVICES or not state.heard[members].all():
            return False
        unit = state.longest if self.relative else 1.0
        restless = np.linalg.norm(updates, axis=1).max() > float(self.eps2) * unit
        return bool(restless and mean < float(self.eps1) * unit)

    def _cut(self, state: CFLState, group: int) -> None:
        members = np.flatnonzero(state.labels == group)
        second = ~bipartition(state.last[members], self.linkage)
        state.cut_of = np.append(state.cut_of, np.full(len(members), len(state.cut_models)))
        state.cut_members = np.append(state.cut_members, members)
        state.cut_side = np.append(state.cut_side, second.astype(np.int64))
        state.cut_models = np.vstack([state.cut_models, state.models[group]])
        state.cut_updates = np.vstack([state.cut_updates, state.last[members]])
        state.labels[members[second]] = len(state.models)
        state.models = np.vstack([state.models, state.models[group]])

    def broadcast(self, state: CFLState) -> dict[int, Task]:
        return {i: Add(state.step[group]) for i, group in enumerate(state.labels)}

    def outcome(self, state: CFLState) -> Outcome:
        kept = {name: value for name, value in vars(state).items() if name.startswith("cut_")}
        return Outcome(state.models[state.labels], canonical(state.labels), kept=kept)

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Go down the tree of cuts, each time to the side of the member whose update is most like one's own."""
        inside = np.arange(len(known.labels))  # devices of the group that the newcomer has come to
        for c, model in enumerate(known.kept["cut_models"]):
            here = known.kept["cut_of"] == c
            members, side, updates = (known.kept[f"cut_{name}"][here] for name in ("members", "side", "updates"))
            if members[0] not in inside:  # another group was cut
                continue
            update = yield Train(self.work.at(0), start=model, rows=self.rows, send="update")
            nearest = int(cosines(np.vstack([update, updates]))[0, 1:].argmax())
            inside = members[side == side[nearest]]
        yield Install(known.models[inside[0]])
        return AdmissionResult(known.models[inside[0]], int(known.labels[inside[0]]))
