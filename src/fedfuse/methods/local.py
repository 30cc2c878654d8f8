"""LOCAL: every device trains by itself, and nothing is ever sent.

device: omega_i <- T local steps, from its last omega_i, in every round
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfuse.methods.method import Admission, Arrays, Found, Joined, Known, Memory, Remembering, World
from fedfuse.pairs.state import Residuals
from fedfuse.protocol.tasks import Install, Show, Task, Train
from fedfuse.utils.typing import Floats, Ints


@dataclass(frozen=True)
class Local(Remembering):
    """A model for every device, from its own rows."""

    name: ClassVar[str] = "local"
    clusters: ClassVar[bool] = False
    private: ClassVar[bool] = True

    def begin(self, world: World, before: Found | None = None) -> Memory:
        return Memory(world, {"start": world.initial(self.start).astype(world.dtype), "age": np.zeros(1, np.int64)})

    def opening(self, state: Memory) -> dict[int, Task]:
        return dict.fromkeys(range(state.world.m), Install(state["start"], known=state.world.d))

    def devices(self, state: Memory, drawn: Ints) -> Ints:
        return np.arange(state.world.m)

    def tasks(self, state: Memory, devices: Ints, k: int) -> list[Task]:
        return [Train(self.work.at(k), rows=self.rows, send="nothing")] * len(devices)

    def update(self, state: Memory, devices: Ints, values: list[Floats]) -> Residuals | None:
        state["age"] += 1
        return None

    def at_home(self, state: Memory) -> list[Task]:
        return [Show()] * state.world.m

    def deployed(self, state: Memory, found: Found, seen: list[Floats]) -> Found:
        return found._replace(models=np.stack(seen))

    def models(self, state: Memory) -> Floats:
        """Return all that the server knows: where devices began."""
        return np.tile(state["start"], (state.world.m, 1))

    def labels(self, state: Memory) -> Ints:
        return np.arange(state.world.m)

    def final(self, state: Memory, world: World) -> Found:
        return Found(self.models(state), self.labels(state))

    def keep(self, state: Memory) -> Arrays:
        return dict(state.arrays)

    def admit(self, known: Known, world: World, device: int) -> Admission:
        """Train alone, for as many rounds as the others did."""
        start = known.kept["start"]
        yield Install(start, known=world.d)
        for k in range(int(known.kept["age"][0])):
            yield Train(self.work.at(k), rows=self.rows, send="nothing")
        return Joined((yield Show()))
