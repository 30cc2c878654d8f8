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
from typing import ClassVar, Literal

from fedfuse.methods.mixins import SearchesOneSetting
from fedfuse.methods.one_model.fedavg import FedAvg, GroupModels
from fedfuse.protocol.tasks import Task, Train
from fedfuse.utils.typing import Ints


@dataclass(frozen=True)
class FedProx(SearchesOneSetting, FedAvg):
    """One model for all devices, and local work that does not lead far away from it.

    Parameters
    ----------
    mu
        Weight of the proximal term; ``"auto"`` chooses one of the original's on validation rows.
    """

    name: ClassVar[str] = "fedprox"
    takes_single_replies: ClassVar[bool] = False
    open_setting: ClassVar[str] = "mu"
    values_to_try: ClassVar[tuple[float, ...]] = (0.001, 0.01, 0.1, 1.0)
    mu: float | Literal["auto"] = "auto"

    def tasks(self, state: GroupModels, devices: Ints, k: int) -> list[Task]:
        held = Train(self.work.at(k), start=state.models[0], near=True, rho=self.setting, rows=self.rows)
        return [held] * len(devices)
