"""LOCAL: every device trains by itself, and nothing is ever sent.

device: omega_i <- T local steps, from its last omega_i, in every round
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfuse.methods.method import FederationInfo, Method, Outcome, Residuals
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, AdmitsNewcomers, RunSummary, WorksAtHome
from fedfuse.protocol.tasks import Install, PeekModel, Task, Train
from fedfuse.utils.typing import Floats, Ints


@dataclass
class LocalState:
    """Where devices began, and how many rounds they have trained."""

    info: FederationInfo
    start: Floats
    age: int = 0


@dataclass(frozen=True)
class Local(Method[LocalState], WorksAtHome, AdmitsNewcomers):
    """A model for every device, from its own rows."""

    name: ClassVar[str] = "local"
    finds_groups: ClassVar[bool] = False
    keeps_models: ClassVar[bool] = True

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> LocalState:
        return LocalState(info, info.initial(self.start).astype(info.dtype))

    def opening(self, state: LocalState) -> dict[int, Task]:
        return dict.fromkeys(range(state.info.m), Install(state.start, known=state.info.d))

    def devices(self, state: LocalState, drawn: Ints) -> Ints:
        return np.arange(state.info.m)

    def tasks(self, state: LocalState, devices: Ints, k: int) -> list[Task]:
        return [Train(self.work.at(k), rows=self.rows, send="nothing")] * len(devices)

    def update(self, state: LocalState, devices: Ints, values: list[Floats]) -> Residuals | None:
        state.age += 1
        return None

    def outcome(self, state: LocalState) -> Outcome:
        """Return all that the server knows: where devices began."""
        models, kept = np.tile(state.start, (state.info.m, 1)), {"start": state.start, "age": np.array([state.age])}
        return Outcome(models, np.arange(state.info.m), kept=kept)

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Train alone, for as many rounds as the others did."""
        start = known.kept["start"]
        yield Install(start, known=info.d)
        for k in range(int(known.kept["age"][0])):
            yield Train(self.work.at(k), rows=self.rows, send="nothing")
        return AdmissionResult((yield PeekModel()))
