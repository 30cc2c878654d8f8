"""PACFL: groups by the angles between the devices' data, found before training; then FedAvg within each.

S. Vahidian, M. Morafah, W. Wang, V. Kungurtsev, C. Chen, M. Shah, B. Lin: Efficient Distribution Similarity
Identification in Clustered Federated Learning via Principal Angles between Client Data Subspaces (AAAI 2023).

    device: sends U_i, the first p left singular vectors of its features, for every class (once)
    server: A_ij = angle between U_i and U_j; agglomerates until the next merge is wider than the threshold
    then, in every round, per group:
    server: sends the group's model to each active member; device: T local steps; server: the weighted mean

As in the original, a device is evaluated with its own last local model, or with ``evaluate="cluster"`` with that of its
group. The default angle is the original code's, the smallest between two columns; ``"principal"`` is the smallest
principal angle of the two spaces, which is of use while they are small against the number of features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import scipy

from fedfuse.core.partitions import canonical
from fedfuse.methods.method import FederationInfo, Outcome, Residuals
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, AdmitsNewcomers, RunSummary
from fedfuse.methods.one_model.fedavg import Averaging, GroupModels
from fedfuse.methods.parameters import Auto, Searchable, choice, number
from fedfuse.protocol.tasks import Install, Subspace, Task
from fedfuse.utils.typing import Floats, Ints

Angle = Literal["column", "principal"]
Linkage = Literal["average", "complete", "single"]
Evaluate = Literal["local", "cluster"]
# Numbers of groups, besides one for each device, for which a threshold is tried.
N_GROUPS_CANDIDATES = (1, 2, 3, 4, 5, 6, 8, 11, 15, 22, 35, 60)


def angle(U: Floats, V: Floats, how: Angle = "column") -> float:
    """Return the angle between two bases (features x columns), in degrees."""
    if how == "principal":
        U, V = scipy.linalg.orth(U), scipy.linalg.orth(V)
        largest = np.linalg.svd(U.T @ V, compute_uv=False).max(initial=-1.0)
    else:
        largest = (U.T @ V).max(initial=-1.0)
    return float(np.degrees(np.arccos(np.clip(largest, -1, 1))))


def proximities(bases: list[Floats], how: Angle = "column") -> Floats:
    """Return the angle between every two devices (0 on the diagonal)."""
    A = np.array([[angle(U, V, how) if i < j else 0.0 for i, U in enumerate(bases)] for j, V in enumerate(bases)])
    return np.asarray(A + A.T)


def agglomerated(A: Floats, threshold: float, how: Linkage = "average") -> Ints:
    """Merge the two nearest groups until they are further apart than the threshold; return labels."""
    if len(A) == 1:
        return np.zeros(1, np.int64)
    return canonical(scipy.cluster.hierarchy.fcluster(_merges(A, how), threshold, criterion="distance"))


def _merges(A: Floats, how: Linkage) -> Floats:
    """Return all merges, nearest first, as SciPy has them: which two, and how far apart (third column)."""
    distances = scipy.spatial.distance.squareform(A, checks=False)
    # the original's average is that of two groups, not of their members
    return np.asarray(scipy.cluster.hierarchy.linkage(distances, "weighted" if how == "average" else how))


def thresholds(A: Floats, how: Linkage = "average") -> list[float]:
    """Return one threshold for each of a few numbers of groups, from one to as many as there are devices."""
    m = len(A)
    heights = np.concatenate([[0.0], _merges(A, how)[:, 2], [180.0]]) if m > 1 else np.array([0.0, 180.0])
    merged = sorted({m - n for n in (*N_GROUPS_CANDIDATES, m) if n <= m})
    return sorted({float(f"{(heights[k] + heights[k + 1]) / 2:.6g}") for k in merged})


@dataclass
class PACFLState(GroupModels):
    """Models and groups, everybody's last local model, the devices' bases side by side, and their angles."""

    trained: Floats
    angles: Floats
    bases: Floats
    columns: Ints


@dataclass(frozen=True)
class PACFL(Averaging, Searchable, AdmitsNewcomers):
    """FedAvg within groups of devices whose data span similar subspaces.

    Parameters
    ----------
    threshold
        Angle in degrees beyond which groups are not merged; ``"auto"`` chooses among a few that leave from one
        group to one for each device, on validation rows.
    p
        Singular vectors of each class, or of all rows for regression.
    angle, linkage
        How near two devices are, and two groups.
    evaluate
        ``"local"``: a device uses its last local model; ``"cluster"``: its group's.
    """

    name: ClassVar[str] = "pacfl"
    threshold: float | Auto = number("auto", least=0)
    p: int = number(5, least=1)
    angle: Angle = choice("column", Angle)
    linkage: Linkage = choice("average", Linkage)
    evaluate: Evaluate = choice("local", Evaluate)

    def candidates(self, state: Any) -> list[dict[str, Any]]:
        return [{"threshold": threshold} for threshold in thresholds(state.angles, self.linkage)]

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> PACFLState:
        one, kept = self._state(info, np.zeros(info.m, np.int64)), previous.kept if previous is not None else {}
        unknown = {"angles": np.zeros((0, 0)), "bases": np.zeros((0, 0)), "columns": np.zeros(0, np.int64)}
        bases = {name: kept.get(name, nothing) for name, nothing in unknown.items()}  # what devices have sent before
        state = PACFLState(info, one.models, one.labels, np.repeat(one.models, info.m, axis=0), **bases)
        if state.angles.size:
            self._group(state)
        return state

    def restart(self, info: FederationInfo, used: PACFLState) -> PACFLState:
        return self.init(info, self.outcome(used))

    def opening(self, state: Any) -> dict[int, Task]:
        if state.angles.size:
            return {}
        model = state.info.model
        task = Subspace(self.p, model.n_features, model.n_classes, self.rows)
        return dict.fromkeys(range(state.info.m), task)

    def opened(self, state: Any, devices: Ints, values: list[Floats]) -> None:
        if state.angles.size:
            return
        features, m = state.info.model.n_features, state.info.m
        bases = {int(i): v.reshape(-1, features).T for i, v in zip(devices, values, strict=True)}
        nothing = np.zeros((features, 0))  # who has not answered is at right angles to everybody, and stays alone
        each = [bases.get(i, nothing) for i in range(m)]
        state.angles = proximities(each, self.angle)
        state.columns = np.array([basis.shape[1] for basis in each])
        state.bases = np.hstack(each)
        self._group(state)

    def _group(self, state: Any) -> None:
        if self.threshold == "auto":
            return
        state.labels = agglomerated(state.angles, float(self.threshold), self.linkage)
        state.models = np.repeat(state.models[:1], int(state.labels.max()) + 1, axis=0)

    def update(self, state: Any, devices: Ints, values: list[Floats]) -> Residuals | None:
        if values:
            state.trained[devices] = np.stack(values)
        return super().update(state, devices, values)

    def outcome(self, state: Any) -> Outcome:
        found = super().outcome(state)
        kept = {name: getattr(state, name) for name in ("models", "angles", "bases", "columns", "labels")}
        return found._replace(models=state.trained if self.evaluate == "local" else found.models, kept=kept)

    def recovery(self, state: Any) -> list[dict[int, Task]]:
        return []

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Send one's basis; the server groups anew with the same threshold, and the newcomer takes that model."""
        kept, model = known.kept, info.model
        answer = yield Subspace(self.p, model.n_features, model.n_classes, self.rows)
        new = answer.reshape(-1, model.n_features).T
        bases = np.split(kept["bases"], np.cumsum(kept["columns"])[:-1], axis=1)
        row = np.array([angle(new, basis, self.angle) for basis in bases])
        A = np.block([[kept["angles"], row[:, None]], [row[None], np.zeros((1, 1))]])
        labels = agglomerated(A, float(self.threshold), self.linkage)
        companions = np.flatnonzero(labels[:-1] == labels[-1])
        if not companions.size:  # nobody is like this one: the mean of all, which FedAvg would give
            everybody = np.average(known.models, axis=0, weights=known.counts)
            yield Install(everybody)
            return AdmissionResult(everybody)
        # groups may have merged: the nearest companion's it is
        old = int(kept["labels"][companions[int(row[companions].argmin())]])
        yield Install(kept["models"][old])
        return AdmissionResult(kept["models"][old], old)
