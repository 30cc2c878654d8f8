"""Ditto: FedAvg for all, and beside it a personal model for each device that is held near it.

T. Li, S. Hu, A. Beirami, V. Smith: Ditto: Fair and Robust Federated Learning Through Personalization (ICML 2021).

    server: sends w to each active device
    device: w_i <- T local steps on f_i from w; sends w_i
            v_i <- T local steps on f_i(v) + lam/2 ||v - w||^2, from its last v_i; keeps v_i
    server: w <- sum_i n_i w_i / sum_i n_i over the active devices

A device uses v_i, which never leaves it. With lam = 0 it is LOCAL, with a very large lam FedAvg. The original chooses
lam on validation rows too, for each device by itself; here it is one for all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedfuse.methods.method import FederationInfo
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, RunSummary, WorksAtHome
from fedfuse.methods.one_model.fedavg import GroupModels, OneModel
from fedfuse.methods.parameters import Auto, Searchable, number
from fedfuse.protocol.tasks import PeekModel, Score, Task, Train, TrainPair
from fedfuse.utils.typing import Ints


@dataclass(frozen=True)
class Ditto(OneModel, Searchable, WorksAtHome):
    """A model for every device, held near one for all.

    Parameters
    ----------
    lam
        How strongly; ``"auto"`` chooses on validation rows.
    """

    name: ClassVar[str] = "ditto"
    keeps_models: ClassVar[bool] = True
    lam: float | Auto = number("auto", least=0, tried=(0.01, 0.1, 0.5, 1.0, 2.0))

    def tasks(self, state: GroupModels, devices: Ints, k: int) -> list[Task]:
        return [TrainPair(self.work.at(k), state.models[0], self.setting, rows=self.rows)] * len(devices)

    def judging(self, state: GroupModels, devices: Ints) -> list[Task]:
        return [Score()] * len(devices)

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Train a personal model near the one for all."""
        near = Train(self.work.at(0), start=known.kept["model"], near=True, rho=self.setting, rows=self.rows)
        yield replace(near, send="nothing")
        return AdmissionResult((yield PeekModel()))
