"""FedAsync: federated averaging with replies that come one at a time.

C. Xie, S. Koyejo, I. Gupta: Asynchronous Federated Optimization (2019), with polynomial staleness.

    server: sends w to a device as soon as it is free
    device: w_i <- T local steps from w; sends w_i
    server: w <- (1 - a) w + a w_i,  a = alpha n_i / mean(n) (1 + staleness)^-power, at most 1

Staleness is the number of the server's updates since w was sent. The paper counts all devices alike; here rows count,
as in FedAvg. Where several replies are taken in together, the step is the mean of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedfuse.methods.method import FederationInfo, Outcome, Residuals, moved
from fedfuse.methods.one_model.fedavg import FedAvg, GroupModels
from fedfuse.methods.parameters import number
from fedfuse.protocol.tasks import Task
from fedfuse.utils.typing import Floats, Ints


@dataclass
class AsyncModel(GroupModels):
    """The model, the server's updates so far, and how many there were when each device was asked."""

    updates: int
    sent: Ints


@dataclass(frozen=True)
class FedAsync(FedAvg):
    """One model for all devices, moved a little by each reply.

    Parameters
    ----------
    alpha
        Share of a fresh reply of a device of average size in the new model.
    power
        How fast a reply loses weight with its staleness; 0 for not at all.
    """

    name: ClassVar[str] = "fedasync"
    alpha: float = number(0.6, above=0, most=1)
    power: float = number(0.5, least=0)

    def single_reply_rule(self) -> FedAsync:
        return self

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> AsyncModel:
        start = super().init(info, previous)
        return AsyncModel(info, start.models, start.labels, 0, np.zeros(info.m, np.int64))

    def tasks(self, state: Any, devices: Ints, k: int) -> list[Task]:
        state.sent[devices] = state.updates
        return super().tasks(state, devices, k)

    def update(self, state: Any, devices: Ints, values: list[Floats]) -> Residuals | None:
        if not values:
            return None
        counts, old = state.info.counts[self.rows], state.models
        staleness = state.updates - state.sent[devices]
        shares = np.minimum(1, self.alpha * counts[devices] / counts.mean() * (1.0 + staleness) ** -self.power)
        new = old[0] + (shares[:, None] * (np.stack(values) - old[0])).mean(axis=0)
        state.models = new[None].astype(old.dtype)
        state.updates += 1
        return moved(old, state.models)
