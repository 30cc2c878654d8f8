"""FedPer: one base for all, and a personal head for each device.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary: Federated Learning with Personalization Layers (2019).

    server: sends the base to each active device
    device: T local steps on all its layers, from this base and its own head; sends the base
    server: base <- sum_i n_i base_i / sum_i n_i over the active devices

The head is the part of the model that other methods fuse, the base is the rest: LG-FedAvg the other way round. A model
of one layer has no base: then nothing is sent, and devices train alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedfuse.methods.method import FederationInfo, Method, Outcome, Residuals, moved
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, AdmitsNewcomers, RunSummary, WorksAtHome
from fedfuse.methods.one_model.fedavg import averaged
from fedfuse.protocol.tasks import Install, Into, PeekModel, Task, Train, part_of
from fedfuse.utils.typing import Floats, Ints


@dataclass
class PartState:
    """The first model of all devices, and the part of it that is shared."""

    info: FederationInfo
    start: Floats
    part: Floats


@dataclass(frozen=True)
class SharesPart(Method[Any], WorksAtHome, AdmitsNewcomers):
    """One part of the model for all devices; the rest is each device's own, and never leaves it."""

    finds_groups: ClassVar[bool] = False
    keeps_models: ClassVar[bool] = True
    into: ClassVar[Into]  # which part is shared

    def place(self, info: FederationInfo) -> slice:
        """Return where it is among the parameters."""
        return part_of(self.into, info.d, info.model.fused)

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> PartState:
        start = info.initial(self.start).astype(info.dtype)
        return PartState(info, start, start[self.place(info)])

    def order(self, part: Floats, k: int) -> Train:
        """Return what an active device does: by default local steps on all of its model."""
        return Train(self.work.at(k), start=part, rows=self.rows, into=self.into, send="part")

    def tasks(self, state: Any, devices: Ints, k: int) -> list[Task]:
        return [self.order(state.part, k)] * len(devices)

    def update(self, state: Any, devices: Ints, values: list[Floats]) -> Residuals | None:
        if not values or not state.part.size:
            return None
        old, all_of_them = state.part[None], np.zeros(len(devices), np.int64)
        new = averaged(old, all_of_them, np.stack(values), self.weigh(state.info, devices))
        state.part = new[0]
        return moved(old, new)

    def outcome(self, state: Any) -> Outcome:
        """Return what the server knows: the shared part, and of the rest how it began."""
        model = state.start.copy()
        model[self.place(state.info)] = state.part
        return Outcome(np.tile(model, (state.info.m, 1)), np.zeros(state.info.m, np.int64), kept={"model": model})


@dataclass(frozen=True)
class FedPer(SharesPart):
    """One base for all, a head for every device."""

    name: ClassVar[str] = "fedper"
    into: ClassVar[Into] = "shared"

    def opening(self, state: PartState) -> dict[int, Task]:
        # all of it is a draw from a seed that devices know
        return dict.fromkeys(range(state.info.m), Install(state.start, known=state.info.d))

    def in_use(self, state: PartState, found: Outcome, seen: list[Floats]) -> Outcome:
        models = np.stack(seen).astype(found.models.dtype)
        models[:, self.place(state.info)] = state.part
        return found._replace(models=models)

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Train a head on the base, from the first one."""
        part = self.place(info)
        base = known.kept["model"][part]
        yield Install(known.kept["model"], known=info.d - base.size)
        yield self.order(base, 0)
        own = (yield PeekModel()).copy()
        own[part] = base
        return AdmissionResult(own)
