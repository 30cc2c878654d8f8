"""FedAvg, and the mean within each group that other methods share.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data (AISTATS 2017).

    server: sends w to each active device
    device: w_i <- T local steps from w; sends w_i
    server: w <- sum_i n_i w_i / sum_i n_i over the active devices
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfuse.core.partitions import canonical
from fedfuse.methods.method import FederationInfo, Method, Outcome, Residuals, moved
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, AdmitsNewcomers, RunSummary, TakesSingleReplies
from fedfuse.protocol.tasks import Install, Task, Train
from fedfuse.utils.typing import Floats, Ints


def averaged(models: Floats, labels: Ints, values: Floats, weights: Floats) -> Floats:
    """Return one weighted mean of ``values`` per group; a group without active members keeps its model."""
    total = np.zeros(models.shape)
    np.add.at(total, labels, weights[:, None] * values)
    weight = np.bincount(labels, weights, len(models))
    here = weight > 0
    new: Floats = models.copy()
    new[here] = total[here] / weight[here, None]
    return new


@dataclass
class GroupModels:
    """One model per group, and the group of every device."""

    info: FederationInfo
    models: Floats
    labels: Ints


@dataclass(frozen=True)
class Averaging(Method[GroupModels]):
    """Every group's model is the mean of what its active members made of it."""

    def _state(self, info: FederationInfo, labels: Ints) -> GroupModels:
        models = np.tile(info.initial(self.start), (int(labels.max()) + 1, 1)).astype(info.dtype)
        return GroupModels(info, models, labels)

    def tasks(self, state: GroupModels, devices: Ints, k: int) -> list[Task]:
        work, starts = self.work.at(k), state.models[state.labels[devices]]
        return [Train(work, start=w, rows=self.rows) for w in starts]

    def update(self, state: GroupModels, devices: Ints, values: list[Floats]) -> Residuals | None:
        if not values:
            return None
        old = state.models
        state.models = averaged(old, state.labels[devices], np.stack(values), self.weigh(state.info, devices))
        return moved(old, state.models)

    def outcome(self, state: GroupModels) -> Outcome:
        return Outcome(state.models[state.labels], canonical(state.labels))


@dataclass(frozen=True)
class OneModel(Averaging, AdmitsNewcomers):
    """One model for all devices."""

    finds_groups: ClassVar[bool] = False

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> GroupModels:
        return self._state(info, np.zeros(info.m, np.int64))

    def opening(self, state: GroupModels) -> dict[int, Task]:
        return {i: Install(w) for i, w in enumerate(state.models[state.labels])}

    def outcome(self, state: GroupModels) -> Outcome:
        return super().outcome(state)._replace(kept={"model": state.models[0]})

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Use the model as it is."""
        yield Install(known.models[0])
        return AdmissionResult(known.models[0])


@dataclass(frozen=True)
class FedAvg(OneModel, TakesSingleReplies):
    """One model for all devices; with replies that come one at a time it is `FedAsync`."""

    name: ClassVar[str] = "fedavg"

    def single_reply_rule(self) -> FedAvg:
        from fedfuse.methods.one_model.fedasync import FedAsync  # a FedAvg itself

        return FedAsync(self.start, self.work, self.rows)
