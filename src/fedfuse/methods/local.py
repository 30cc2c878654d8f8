"""LOCAL: every device trains by itself, and nothing is ever sent.

device: omega_i <- T local steps, from its last omega_i, in every round
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfuse.methods.method import (
    AdmissionDialogue,
    AdmissionResult,
    Arrays,
    ArrayState,
    ArrayStateMethod,
    FederationInfo,
    Outcome,
    RunSummary,
)
from fedfuse.pairs.state import Residuals
from fedfuse.protocol.tasks import Install, PeekModel, Task, Train
from fedfuse.utils.typing import Floats, Ints


@dataclass(frozen=True)
class Local(ArrayStateMethod):
    """A model for every device, from its own rows."""

    name: ClassVar[str] = "local"
    clusters: ClassVar[bool] = False
    private: ClassVar[bool] = True

    def begin(self, info: FederationInfo, before: Outcome | None = None) -> ArrayState:
        return ArrayState(info, {"start": info.initial(self.start).astype(info.dtype), "age": np.zeros(1, np.int64)})

    def opening(self, state: ArrayState) -> dict[int, Task]:
        return dict.fromkeys(range(state.info.m), Install(state["start"], known=state.info.d))

    def devices(self, state: ArrayState, drawn: Ints) -> Ints:
        return np.arange(state.info.m)

    def tasks(self, state: ArrayState, devices: Ints, k: int) -> list[Task]:
        return [Train(self.work.at(k), rows=self.rows, send="nothing")] * len(devices)

    def update(self, state: ArrayState, devices: Ints, values: list[Floats]) -> Residuals | None:
        state["age"] += 1
        return None

    def at_home(self, state: ArrayState) -> list[Task]:
        return [PeekModel()] * state.info.m

    def deployed(self, state: ArrayState, found: Outcome, seen: list[Floats]) -> Outcome:
        return found._replace(models=np.stack(seen))

    def models(self, state: ArrayState) -> Floats:
        """Return all that the server knows: where devices began."""
        return np.tile(state["start"], (state.info.m, 1))

    def labels(self, state: ArrayState) -> Ints:
        return np.arange(state.info.m)

    def final(self, state: ArrayState, info: FederationInfo) -> Outcome:
        return Outcome(self.models(state), self.labels(state))

    def keep(self, state: ArrayState) -> Arrays:
        return dict(state.arrays)

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Train alone, for as many rounds as the others did."""
        start = known.kept["start"]
        yield Install(start, known=info.d)
        for k in range(int(known.kept["age"][0])):
            yield Train(self.work.at(k), rows=self.rows, send="nothing")
        return AdmissionResult((yield PeekModel()))
