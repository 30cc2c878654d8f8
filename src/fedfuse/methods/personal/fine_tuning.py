"""FedAvg with fine-tuning: one model for all, and local steps from it on every device before it is used.

H. B. McMahan and others: FedAvg (AISTATS 2017); as a personal baseline: T. Yu, E. Bagdasaryan, V. Shmatikov: Salvaging
Federated Learning by Local Adaptation (2020).

    training: FedAvg
    device:   uses T local steps on f_i from w

What is tuned is never sent. Other methods that make something of one model at home (`Per-FedAvg`, `pFedMe`) share the
class `AdaptsAtHome`.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedfuse.methods.method import FederationInfo, Outcome
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, RunSummary, WorksAtHome
from fedfuse.methods.one_model.fedavg import GroupModels, OneModel
from fedfuse.methods.parameters import number
from fedfuse.protocol.tasks import PeekModel, Task, Train
from fedfuse.utils.typing import Floats, Ints


@dataclass(frozen=True)
class AdaptsAtHome(OneModel, WorksAtHome):
    """One model for all, from which every device makes its own when it uses it."""

    @abstractmethod
    def adaptation(self, w: Floats) -> Train:
        """Return what a device makes of the model w."""

    def at_home(self, state: GroupModels) -> list[Task]:
        return [replace(self.adaptation(state.models[0]), send="update")] * state.info.m

    def in_use(self, state: GroupModels, found: Outcome, seen: list[Floats]) -> Outcome:
        return found._replace(models=found.models + np.stack(seen))

    def judging(self, state: GroupModels, devices: Ints) -> list[Task]:
        """Ask for the score of what a device makes of the model."""
        adapted = replace(self.adaptation(state.models[0]), send="nothing", score="validation")
        return [adapted] * len(devices)

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Adapt the model, as all devices do."""
        yield replace(self.adaptation(known.kept["model"]), send="nothing")
        return AdmissionResult((yield PeekModel()))


@dataclass(frozen=True)
class FedAvgFT(AdaptsAtHome):
    """One model for all devices, tuned at home.

    Parameters
    ----------
    tune_steps
        Local steps (with mini-batches: passes) of the tuning; default: those of one round of ``work``.
    """

    name: ClassVar[str] = "fedavg-ft"
    needs_steps: ClassVar[bool] = True
    tune_steps: int | None = number(None, least=1, whole=True)

    def adaptation(self, w: Floats) -> Train:
        work = self.work.at(0)
        return Train(work if self.tune_steps is None else replace(work, steps=self.tune_steps), start=w, rows=self.rows)
