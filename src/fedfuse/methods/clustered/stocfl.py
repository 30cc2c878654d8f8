"""StoCFL: groups that grow by merging as devices take part, and one model for all that theirs are held near.

D. Zeng, X. Hu, S. Liu, Y. Yu, Q. Wang, Z. Xu: Stochastic Clustered Federated Learning (2023).

    device: when it first takes part, sends the gradient of f_i at the first model, which stands for its distribution
    server: every device is a group at first; merges groups as long as the cosine between the means of their gradients
            is above tau for some two
    server: sends the model w of all and theta_c of its group to each active device
    device: w_i <- T local steps on f_i from w; theta_i <- T local steps on f_i(v) + lam/2 ||v - w||^2 from theta_c;
            sends both
    server: w <- the mean of the w_i, theta_c <- the mean of its members' theta_i, both weighted by rows

A device's first turn is its gradient alone, and its group of one begins with w, as in the authors' code. Groups that
merge begin with the mean of their models, by devices; in the code, the larger one's. Gradients are of one step, with
all rows; the code lets devices take some epochs. A newcomer whose gradient is like no group's founds one in the
original; here it uses w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedfuse.methods.clustered.cfl import cosines
from fedfuse.methods.method import FederationInfo, Outcome, Residuals, moved
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, AdmitsNewcomers, RunSummary
from fedfuse.methods.one_model.fedavg import Averaging, GroupModels, averaged
from fedfuse.methods.parameters import Auto, Searchable, number
from fedfuse.protocol.tasks import Gradient, Install, Task, TrainPair
from fedfuse.utils.typing import Bools, Floats, Ints


@dataclass
class MergingState(GroupModels):
    """A row of models for each group that there may be, the model of all, and the devices' gradients at the first."""

    start: Floats
    common: Floats
    gradients: Floats
    known: Bools


@dataclass(frozen=True)
class StoCFL(Averaging, Searchable, AdmitsNewcomers):
    """Groups by the cosines of gradients, held near one model.

    Parameters
    ----------
    tau
        Cosine above which groups are merged, from -1 to 1; ``"auto"`` chooses on validation rows.
    lam
        How strongly the models of groups are held near that of all.
    """

    name: ClassVar[str] = "stocfl"
    tau: float | Auto = number("auto", least=-1, tried=(0.0, 0.3, 0.5, 0.7, 0.9))
    lam: float = number(0.05, least=0)

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> MergingState:
        each = self._state(info, np.arange(info.m))
        start, nothing = each.models[0], np.zeros((info.m, info.d))
        return MergingState(info, each.models, each.labels, start, start, nothing, np.zeros(info.m, np.bool_))

    def tasks(self, state: Any, devices: Ints, k: int) -> list[Task]:
        work, ask = self.work.at(k), Gradient(state.start, self.rows)
        own = state.models[state.labels]
        return [TrainPair(work, state.common, self.lam, own[i], self.rows) if state.known[i] else ask for i in devices]

    def update(self, state: Any, devices: Ints, values: list[Floats]) -> Residuals | None:
        old, d = np.vstack([state.common, state.models]), state.info.d
        trained = [(int(i), v) for i, v in zip(devices, values, strict=True) if v.size == 2 * d]
        for i, value in zip(devices, values, strict=True):
            if value.size == d:
                state.gradients[i], state.known[i], state.models[i] = value, True, state.common
        if trained:
            who, both = np.array([i for i, _ in trained]), np.stack([v for _, v in trained])
            weights, everybody = self.weigh(state.info, who), np.zeros(len(who), np.int64)
            state.common = averaged(old[:1], everybody, both[:, :d], weights)[0]
            state.models = averaged(state.models, state.labels[who], both[:, d:], weights)
        self._merge(state)
        return moved(old, np.vstack([state.common, state.models])) if state.known.all() else None

    def _merge(self, state: Any) -> None:
        """Join the two groups that are most alike, again and again."""
        known = np.flatnonzero(state.known)
        while len(groups := np.unique(state.labels[known])) > 1:
            means = [state.gradients[known][state.labels[known] == g].mean(axis=0) for g in groups]
            alike = np.triu(cosines(np.array(means)) + 2, 1) - 2
            a, b = np.unravel_index(int(alike.argmax()), alike.shape)
            if alike[a, b] <= self.setting:
                break
            first, second = groups[a], groups[b]
            sizes = [(state.labels == g).sum() for g in (first, second)]
            state.models[first] = np.average(state.models[[first, second]], axis=0, weights=sizes)
            state.labels[state.labels == second] = first

    def outcome(self, state: Any) -> Outcome:
        names = ("start", "common", "gradients", "known")
        return super().outcome(state)._replace(kept={name: getattr(state, name) for name in names})

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Send one's gradient and join the group whose mean gradient is most like it, or use the model of all."""
        mine = yield Gradient(known.kept["start"], self.rows)
        heard = known.kept["known"]
        groups = np.unique(known.labels[heard])
        means = [known.kept["gradients"][heard & (known.labels == g)].mean(axis=0) for g in groups]
        alike = cosines(np.vstack([mine, *means]))[0, 1:]
        group = int(groups[alike.argmax()]) if alike.max() > self.setting else None
        model = known.kept["common"] if group is None else known.models[known.labels == group][0]
        yield Install(model)
        return AdmissionResult(model, group)
