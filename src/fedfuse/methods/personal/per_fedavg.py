"""Per-FedAvg: one model from which a single step leads every device to a good one of its own.

A. Fallah, A. Mokhtari, A. Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach (NeurIPS 2020).

    server: sends w to each active device
    device: T times: u = w_i - alpha grad f_i(w_i), g = grad f_i(u), then
            first order:   w_i <- w_i - beta g
            Hessian-free:  w_i <- w_i - beta (g - alpha h), h a difference of gradients along g; sends w_i
    server: w <- sum_i n_i w_i / sum_i n_i over the active devices

A device uses w - alpha grad f_i(w), one step (with mini-batches: one pass) on its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from fedfuse.methods.mixins import WeighsDevices
from fedfuse.methods.one_model.fedavg import GroupModels
from fedfuse.methods.parameters import choice, number
from fedfuse.methods.personal.fine_tuning import AdaptsAtHome
from fedfuse.protocol.local_work import value
from fedfuse.protocol.tasks import MetaTrain, Task, Train
from fedfuse.utils.typing import Floats, Ints

Variant = Literal["first-order", "hessian-free"]


@dataclass(frozen=True)
class PerFedAvg(WeighsDevices, AdaptsAtHome):
    """A model that is made to be adapted.

    Parameters
    ----------
    adapt_lr
        Step size alpha of the adaptation; default: the step size of ``work``, which is beta.
    variant
        ``"first-order"`` or ``"hessian-free"``.
    """

    name: ClassVar[str] = "per-fedavg"
    needs_steps: ClassVar[bool] = True
    adapt_lr: float | None = number(None, above=0)
    variant: Variant = choice("first-order", Variant)

    @property
    def alpha(self) -> float:
        """The step size of the adaptation."""
        return float(value(self.work.lr, 0)) if self.adapt_lr is None else self.adapt_lr

    def tasks(self, state: GroupModels, devices: Ints, k: int) -> list[Task]:
        work, hessian = self.work.at(k), self.variant == "hessian-free"
        starts = state.models[state.labels[devices]]
        return [MetaTrain(work, w, self.alpha, hessian, self.rows) for w in starts]

    def adaptation(self, w: Floats) -> Train:
        # the plain step that training has looked ahead to: momentum would go further than that
        one = replace(self.work, steps=1, lr=self.alpha, momentum=0.0)
        return Train(one, start=w, rows=self.rows)
