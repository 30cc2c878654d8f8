"""L2GD: models that a penalty draws to their mean, by local steps and, at random, steps to the mean.

F. Hanzely, P. Richtárik: Federated Learning of a Mixture of Global and Local Models (2020): the least of
mean_i f_i(x_i) + lam/2 mean_i ||x_i - mean x||^2, by gradient descent that draws which of the two terms comes next.

    coin: with probability 1 - p  x_i <- x_i - lr grad f_i(x_i)                       on all devices
          with probability p      x_i <- x_i - step (x_i - mean x),  step = lr lam (1 - p) / p

Only where steps on the first term are followed by one on the second must anything be sent. So a round is

    server: sends the mean to each active device
    device: x_i <- x_i - (1 - (1 - step)^H) (x_i - mean), H: heads in a row; then T local steps, T: tails in a row
            sends x_i
    server: mean <- sum_i n_i x_i / sum_i n_i over the active devices

with T and H drawn for the round. In the original all devices take part, with equal weights, and step is at most 1; here
it is cut there. With lam = 0 devices train alone; with step = 1 it is FedAvg with T steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedfuse.methods.method import FederationInfo, Outcome, Residuals, moved
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, RunSummary
from fedfuse.methods.one_model.fedavg import GroupModels, OneModel
from fedfuse.methods.parameters import Auto, Searchable, number
from fedfuse.protocol.local_work import value
from fedfuse.protocol.tasks import Install, Task, Train
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Floats, Ints


@dataclass
class L2GDState(GroupModels):
    """The mean, what devices sent last, and how far the next step to the mean goes."""

    own: Floats
    share: float = 0.0


@dataclass(frozen=True)
class L2GD(OneModel, Searchable):
    """A model for every device, drawn to the mean of all.

    Parameters
    ----------
    lam
        Strength of the penalty; ``"auto"`` chooses on validation rows.
    p
        Probability of a step to the mean: there are 1 / p local steps for each exchange on average.
    """

    name: ClassVar[str] = "l2gd"
    needs_steps: ClassVar[bool] = True
    lam: float | Auto = number("auto", least=0, tried=(0.01, 0.1, 0.3, 1.0, 3.0))
    p: float = number(0.1, above=0, below=1)

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> L2GDState:
        one = super().init(info, previous)
        return L2GDState(info, one.models, one.labels, np.repeat(one.models, info.m, axis=0))

    def opening(self, state: Any) -> dict[int, Task]:
        return {i: Install(w) for i, w in enumerate(state.own)}

    def tasks(self, state: Any, devices: Ints, k: int) -> list[Task]:
        work, share = self.work.at(k), state.share
        tails, heads = generator(state.info.seed, "l2gd", k).geometric([self.p, 1 - self.p])
        step = min(1.0, float(value(work.lr, 0)) * self.setting * (1 - self.p) / self.p)
        state.share = 1 - (1 - step) ** int(heads)  # of the step that follows these tails
        local = replace(work, steps=int(tails), unit="batches" if work.batch else work.unit)
        return [Train(local, start=state.models[0], share=share, rows=self.rows)] * len(devices)

    def update(self, state: Any, devices: Ints, values: list[Floats]) -> Residuals | None:
        if not values:
            return None
        old = state.own.copy()
        super().update(state, devices, values)
        state.own[devices] = np.stack(values)
        return moved(old, state.own)

    def outcome(self, state: Any) -> Outcome:
        models = (state.own + state.share * (state.models - state.own)).astype(state.own.dtype)
        return super().outcome(state)._replace(models=models)

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Take local steps from the mean, and one step back to it."""
        mean = known.kept["model"]
        own = yield Train(self.work.at(0), start=mean, rows=self.rows)
        step = min(1.0, float(value(self.work.lr, 0)) * self.setting * (1 - self.p) / self.p)
        return AdmissionResult(own + step * (mean - own))
