"""FedPer: one base for all, and a personal head for each device.

M. G. Arivazhagan, V. Aggarwal, A. K. Singh, S. Choudhary: Federated Learning with Personalization Layers (2019).

    server: sends the base to each active device
    device: T local steps on all its layers, from this base and its own head; sends the base
    server: base <- sum_i n_i base_i / sum_i n_i over the active devices

The head is the part of the model that other methods fuse, the base is the rest: LG-FedAvg the other way round. A model
of one layer has no base: then nothing is sent, and devices train alone. With ``shared="all"`` it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedfuse.methods.method import FederationInfo, Method, Outcome, moved
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, AdmitsNewcomers, RunSummary, WorksAtHome
from fedfuse.methods.parameters import choice
from fedfuse.pairs.state import Residuals
from fedfuse.protocol.tasks import Install, Into, PeekModel, Task, Train, part_of
from fedfuse.utils.typing import Floats, Ints

Shared = Literal["base", "all"]


@dataclass
class BaseState:
    """The first model of all devices, and the base."""

    info: FederationInfo
    start: Floats
    base: Floats


@dataclass(frozen=True)
class FedPer(Method[BaseState], WorksAtHome, AdmitsNewcomers):
    """One base for all, a head for every device.

    Parameters
    ----------
    shared
        What is shared: the ``"base"``, or ``"all"``.
    """

    name: ClassVar[str] = "fedper"
    finds_groups: ClassVar[bool] = False
    keeps_models: ClassVar[bool] = True
    shared: Shared = choice("base", Shared)

    @property
    def _into(self) -> Into:
        return "all" if self.shared == "all" else "shared"

    def _part(self, info: FederationInfo) -> slice:
        return part_of(self._into, info.d, info.model.fused)

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> BaseState:
        start = info.initial(self.start).astype(info.dtype)
        return BaseState(info, start, start[self._part(info)])

    def opening(self, state: BaseState) -> dict[int, Task]:
        # all of it is a draw from a seed that devices know
        return dict.fromkeys(range(state.info.m), Install(state.start, known=state.info.d))

    def _order(self, base: Floats, k: int) -> Train:
        return Train(self.work.at(k), start=base, rows=self.rows, into=self._into, send="part")

    def tasks(self, state: BaseState, devices: Ints, k: int) -> list[Task]:
        return [self._order(state.base, k)] * len(devices)

    def update(self, state: BaseState, devices: Ints, values: list[Floats]) -> Residuals | None:
        if not values or not state.base.size:
            return None
        old, weights = state.base, state.info.counts[self.rows][devices]
        state.base = np.average(np.stack(values), axis=0, weights=weights).astype(old.dtype)
        return moved(old[None], state.base[None])

    def in_use(self, state: BaseState, found: Outcome, seen: list[Floats]) -> Outcome:
        models = np.stack(seen).astype(found.models.dtype)
        models[:, self._part(state.info)] = state.base
        return found._replace(models=models)

    def outcome(self, state: BaseState) -> Outcome:
        """Return what the server knows: the base under the first head."""
        model = state.start.copy()
        model[self._part(state.info)] = state.base
        return Outcome(np.tile(model, (state.info.m, 1)), np.zeros(state.info.m, np.int64), kept={"model": model})

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Train a head on the base, from the first one."""
        part = self._part(info)
        base = known.kept["model"][part]
        yield Install(known.kept["model"], known=info.d - base.size)
        yield self._order(base, 0)
        own = (yield PeekModel()).copy()
        own[part] = base
        return AdmissionResult(own)
