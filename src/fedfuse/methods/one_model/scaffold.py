"""SCAFFOLD: local steps corrected for the direction in which a device's own rows would lead.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning (ICML 2020), option II.

    server: sends x and the control c - c_i to each active device
    device: y_i <- T times y_i - lr (grad f_i(y_i) + c - c_i), from x; sends y_i
    server: c_i' = c_i - c + (x - y_i) / (T lr);  x <- x + server_lr (mean of the y_i - x);  c <- mean of all c_i

In the original c_i is the device's, which sends its change besides y_i. The server can compute it from y_i, so that
three vectors are exchanged in place of four, and a device keeps nothing. Means are weighted by rows
(``weights="equal"``: as in the original). With momentum, T is the number of gradients that x - y_i holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedfuse.errors import FedfuseError
from fedfuse.methods.method import FederationInfo, Outcome, Residuals, moved
from fedfuse.methods.mixins import WeighsDevices
from fedfuse.methods.one_model.fedavg import GroupModels, OneModel
from fedfuse.methods.parameters import number
from fedfuse.protocol.local_work import Uneven, Work, value
from fedfuse.protocol.tasks import Task, Train
from fedfuse.utils.typing import Floats, Ints


@dataclass
class ScaffoldState(GroupModels):
    """The model, everybody's control variate, and lr times the number of steps of each in this round."""

    controls: Floats
    scales: Floats


@dataclass(frozen=True)
class Scaffold(WeighsDevices, OneModel):
    """One model for all devices, by local steps that do not drift apart.

    Parameters
    ----------
    server_lr
        Step size of the server; 1 takes the mean of the devices' models.
    """

    name: ClassVar[str] = "scaffold"
    needs_steps: ClassVar[bool] = True
    server_lr: float = number(1.0, least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.work.steps, Uneven):
            raise FedfuseError(f"scaffold needs the same number of steps on all devices, got {self.work.steps}")

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> ScaffoldState:
        one = super().init(info, previous)
        return ScaffoldState(info, one.models, one.labels, np.zeros((info.m, info.d)), np.ones(info.m))

    def _control(self, state: Any) -> Floats:
        return np.asarray(np.average(state.controls, axis=0, weights=self.weigh(state.info, np.arange(state.info.m))))

    def tasks(self, state: Any, devices: Ints, k: int) -> list[Task]:
        work, x = self.work.at(k), state.models[0]
        state.scales[devices] = [summed_rate(work, n) for n in state.info.counts[self.rows][devices]]
        slopes = (self._control(state) - state.controls[devices]).astype(x.dtype)
        return [Train(work, start=x, slope=slope, rows=self.rows) for slope in slopes]

    def update(self, state: Any, devices: Ints, values: list[Floats]) -> Residuals | None:
        if not values:
            return None
        old, y = state.models, np.stack(values)
        state.controls[devices] += (old[0] - y) / state.scales[devices, None] - self._control(state)
        mean = np.average(y, axis=0, weights=self.weigh(state.info, devices))
        state.models = (old + self.server_lr * (mean - old)).astype(old.dtype)
        return moved(old, state.models)


def summed_rate(work: Work, rows: int) -> float:
    """Return the total weight of the gradients in a device's change: lr times its steps, more with momentum.

    >>> summed_rate(Work(steps=3, lr=0.5), 50), summed_rate(Work(steps=3, lr=0.5, batch=20), 50)
    (1.5, 4.5)
    """
    steps = int(value(work.steps, 0))
    if work.batch is not None and work.unit == "epochs":
        steps *= max(1, -(-int(rows) // work.batch))
    # A gradient counts again in every later step, less by the momentum each time.
    held = (1 - work.momentum ** np.arange(1, steps + 1)) / (1 - work.momentum)
    return float(value(work.lr, 0)) * float(held.sum())
