"""LG-FedAvg: local representations, a global head.

P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov, L.-P. Morency: Think Locally,
Act Globally: Federated Learning with Local and Global Representations (2020).

    server: sends the global head to each active device
    device: T local steps on all its layers, from its own representation and this head; sends the head
    server: head <- sum_i n_i head_i / sum_i n_i over the active devices

The head is the part of the model that other methods fuse; the layers below it never leave a device. A model of one
layer has no representation to keep: there everything is global, and, as in the paper on FPFC, a device that was active
in the last round is evaluated with what it had just trained, before the mean is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfuse.methods.fedavg import averaged
from fedfuse.methods.method import Admission, Arrays, Found, Joined, Known, Memory, Remembering, World, moved
from fedfuse.pairs.state import Residuals
from fedfuse.protocol.tasks import Install, Show, Task, Train
from fedfuse.utils.typing import Floats, Ints


@dataclass(frozen=True)
class LGFedAvg(Remembering):
    """A representation for every device, one head for all."""

    name: ClassVar[str] = "lg-fedavg"
    clusters: ClassVar[bool] = False
    private: ClassVar[bool] = True

    def begin(self, world: World, before: Found | None = None) -> Memory:
        start = world.initial(self.start).astype(world.dtype)
        everyone = np.tile(start, (world.m, 1))
        head = start[world.model.fused]
        return Memory(world, {"start": start, "head": head, "trained": everyone[:, world.model.fused]})

    def opening(self, state: Memory) -> dict[int, Task]:
        # the head is sent; the representation is one that devices can draw by themselves
        return dict.fromkeys(range(state.world.m), Install(state["start"], known=state.world.model.fused.start))

    def tasks(self, state: Memory, devices: Ints, k: int) -> list[Task]:
        work = self.work.at(k)
        return [Train(work, start=state["head"], rows=self.rows, into="fused", send="part") for _ in devices]

    def update(self, state: Memory, devices: Ints, values: list[Floats]) -> Residuals | None:
        if not values:
            return None
        weights, heads = state.world.counts[self.rows][devices].astype(np.float64), np.stack(values)
        old = state["head"]
        # those who were not active are at the head of which the active ones set out
        trained = np.tile(old, (state.world.m, 1))
        trained[devices] = heads
        state["trained"] = trained
        state["head"] = averaged(old[None], np.zeros(len(devices), np.int64), heads, weights)[0]
        return moved(old[None], state["head"][None])

    def at_home(self, state: Memory) -> list[Task]:
        return [Show()] * state.world.m

    def deployed(self, state: Memory, found: Found, seen: list[Floats]) -> Found:
        fused, models = state.world.model.fused, np.stack(seen).astype(found.models.dtype)
        # with a representation of its own a device uses the global head, as in the original
        models[:, fused] = state["head"] if fused.start else state["trained"]
        return found._replace(models=models)

    def models(self, state: Memory) -> Floats:
        """Return what the server knows: everybody's head on the first representation."""
        models = np.tile(state["start"], (state.world.m, 1))
        models[:, state.world.model.fused] = state["trained"]
        return models

    def labels(self, state: Memory) -> Ints:
        return np.zeros(state.world.m, np.int64)

    def final(self, state: Memory, world: World) -> Found:
        return Found(self.models(state), self.labels(state))

    def keep(self, state: Memory) -> Arrays:
        model = state["start"].copy()
        model[state.world.model.fused] = state["head"]
        return {"model": model}

    def admit(self, known: Known, world: World, device: int) -> Admission:
        """Fine-tune the global head, on the first representation."""
        yield Train(self.work.at(0), start=known.kept["model"], rows=self.rows, send="nothing")
        return Joined((yield Show()))
