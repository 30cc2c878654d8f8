"""Methods whose server sends every device an anchor, made of the models of all: FedAMP, MOCHA, Network Lasso.

server: sends an anchor a_i to each active device
device: w_i <- T local steps on f_i(w) + rho_i/2 ||w - a_i||^2, from its last w_i; sends w_i
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedfuse.methods.method import FederationInfo, Method, Outcome, Residuals, moved
from fedfuse.protocol.tasks import Install, Task, Train
from fedfuse.utils.typing import Floats, Ints


@dataclass
class OwnModels:
    """Every device's model, as it was sent last."""

    info: FederationInfo
    models: Floats


@dataclass(frozen=True)
class Anchored(Method[Any]):
    """A model for every device, drawn to an anchor."""

    finds_groups: ClassVar[bool] = False

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> OwnModels:
        return OwnModels(info, np.tile(info.initial(self.start), (info.m, 1)).astype(info.dtype))

    def opening(self, state: Any) -> dict[int, Task]:
        return {i: Install(w) for i, w in enumerate(state.models)}

    @abstractmethod
    def anchors(self, state: Any, devices: Ints) -> tuple[Floats, float]:
        """Return the anchors of these devices, and how strongly they draw."""

    def tasks(self, state: Any, devices: Ints, k: int) -> list[Task]:
        anchors, rho = self.anchors(state, devices)
        work = self.work.at(k)
        return [Train(work, anchor=a, rho=rho, rows=self.rows) for a in anchors.astype(state.models.dtype)]

    def update(self, state: Any, devices: Ints, values: list[Floats]) -> Residuals | None:
        if not values:
            return None
        old = state.models.copy()
        state.models[devices] = np.stack(values)
        return moved(old, state.models)

    def outcome(self, state: Any) -> Outcome:
        return Outcome(state.models, np.zeros(state.info.m, np.int64))
