"""LG-FedAvg: local representations, a global head.

P. P. Liang, T. Liu, L. Ziyin, N. B. Allen, R. P. Auerbach, D. Brent, R. Salakhutdinov, L.-P. Morency: Think Locally,
Act Globally: Federated Learning with Local and Global Representations (2020).

    server: sends the global head to each active device
    device: T local steps on all its layers, from its own representation and this head; sends the head
    server: head <- sum_i n_i head_i / sum_i n_i over the active devices

The head is the part of the model that other methods fuse; the layers below it never leave a device. A model of one
layer has no representation to keep: there everything is global, and, as in the code of the paper on FPFC, a device that
was active in the last round is evaluated with what it had just trained, before the mean is taken. With
``evaluate="local"`` every device is, whenever it was last active: the paper's numbers are those of that rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedfuse.methods.method import FederationInfo, Method, Outcome, moved
from fedfuse.methods.mixins import (
    AdmissionDialogue,
    AdmissionResult,
    AdmitsNewcomers,
    RunSummary,
    WeighsDevices,
    WorksAtHome,
)
from fedfuse.methods.one_model.fedavg import averaged
from fedfuse.pairs.state import Residuals
from fedfuse.protocol.tasks import Install, PeekModel, Task, Train
from fedfuse.utils.typing import Floats, Ints

Evaluate = Literal["global", "local"]


@dataclass
class LGState:
    """The first representation, the global head, and the heads that devices were last evaluated with."""

    info: FederationInfo
    start: Floats
    head: Floats
    trained: Floats


@dataclass(frozen=True)
class LGFedAvg(WeighsDevices, Method[LGState], WorksAtHome, AdmitsNewcomers):
    """A representation for every device, one head for all.

    Parameters
    ----------
    evaluate
        ``"global"``: a device uses its own representation with the global head. ``"local"``: all of its last local
        model.
    """

    name: ClassVar[str] = "lg-fedavg"
    finds_groups: ClassVar[bool] = False
    keeps_models: ClassVar[bool] = True
    evaluate: Evaluate = "global"

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> LGState:
        start = info.initial(self.start).astype(info.dtype)
        everyone = np.tile(start, (info.m, 1))
        head = start[info.model.fused]
        return LGState(info, start, head, everyone[:, info.model.fused])

    def opening(self, state: LGState) -> dict[int, Task]:
        # the head is sent; the representation is one that devices can draw by themselves
        return dict.fromkeys(range(state.info.m), Install(state.start, known=state.info.model.fused.start))

    def tasks(self, state: LGState, devices: Ints, k: int) -> list[Task]:
        work = self.work.at(k)
        return [Train(work, start=state.head, rows=self.rows, into="fused", send="part") for _ in devices]

    def update(self, state: LGState, devices: Ints, values: list[Floats]) -> Residuals | None:
        if not values:
            return None
        heads, old = np.stack(values), state.head
        if self.evaluate == "global":  # devices that were not active have the head from which the active ones started
            state.trained = np.tile(old, (state.info.m, 1))
        state.trained[devices] = heads
        weights = self.weigh(state.info, devices)
        state.head = averaged(old[None], np.zeros(len(devices), np.int64), heads, weights)[0]
        return moved(old[None], state.head[None])

    def in_use(self, state: LGState, found: Outcome, seen: list[Floats]) -> Outcome:
        fused, models = state.info.model.fused, np.stack(seen).astype(found.models.dtype)
        # with a representation of its own a device uses the global head, as in the original
        models[:, fused] = state.head if fused.start and self.evaluate == "global" else state.trained
        return found._replace(models=models)

    def outcome(self, state: LGState) -> Outcome:
        """Return what the server knows: everybody's head on the first representation."""
        models = np.tile(state.start, (state.info.m, 1))
        models[:, state.info.model.fused] = state.trained
        model = state.start.copy()
        model[state.info.model.fused] = state.head
        return Outcome(models, np.zeros(state.info.m, np.int64), kept={"model": model})

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Fine-tune the global head, on the first representation."""
        yield Train(self.work.at(0), start=known.kept["model"], rows=self.rows, send="nothing")
        return AdmissionResult((yield PeekModel()))
