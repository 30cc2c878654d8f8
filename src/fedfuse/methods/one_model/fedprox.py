"""FedProx: FedAvg whose devices are held near the model they were sent.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in Heterogeneous Networks
(MLSys 2020).

    server: sends w to each active device
    device: w_i <- T local steps on f_i(v) + mu/2 ||v - w||^2, from w; sends w_i
    server: w <- sum_i n_i w_i / sum_i n_i over the active devices

The original draws devices in proportion to their rows and takes a plain mean; here the mean is weighted by rows, as in
FedAvg: with mu = 0 it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedfuse.methods.one_model.fedavg import GroupModels, OneModel
from fedfuse.methods.parameters import Auto, Searchable, number
from fedfuse.protocol.tasks import Task, Train
from fedfuse.utils.typing import Ints


@dataclass(frozen=True)
class FedProx(OneModel, Searchable):
    """One model for all devices, and local work that does not lead far away from it.

    Parameters
    ----------
    mu
        Weight of the proximal term; ``"auto"`` chooses one of the original's on validation rows.
    """

    name: ClassVar[str] = "fedprox"
    mu: float | Auto = number("auto", least=0, tried=(0.001, 0.01, 0.1, 1.0))

    def tasks(self, state: GroupModels, devices: Ints, k: int) -> list[Task]:
        held = Train(self.work.at(k), start=state.models[0], near=True, rho=self.setting, rows=self.rows)
        return [held] * len(devices)
