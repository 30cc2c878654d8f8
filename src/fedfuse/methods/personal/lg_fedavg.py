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
from typing import Any, ClassVar, Literal

import numpy as np

from fedfuse.methods.method import FederationInfo, Outcome, Residuals
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, RunSummary, WeighsDevices
from fedfuse.methods.parameters import choice
from fedfuse.methods.personal.fedper import PartState, SharesPart
from fedfuse.protocol.tasks import Install, Into, PeekModel, Task, Train
from fedfuse.utils.typing import Floats, Ints

Evaluate = Literal["global", "local"]


@dataclass
class LGState(PartState):
    """The first model, the global head, and the heads that devices were last evaluated with."""

    trained: Floats


@dataclass(frozen=True)
class LGFedAvg(WeighsDevices, SharesPart):
    """A representation for every device, one head for all.

    Parameters
    ----------
    evaluate
        ``"global"``: a device uses its own representation with the global head. ``"local"``: all of its last local
        model.
    """

    name: ClassVar[str] = "lg-fedavg"
    into: ClassVar[Into] = "fused"
    evaluate: Evaluate = choice("global", Evaluate)

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> LGState:
        one = super().init(info, previous)
        return LGState(info, one.start, one.part, np.tile(one.part, (info.m, 1)))

    def opening(self, state: LGState) -> dict[int, Task]:
        # the head is sent; the representation is one that devices can draw by themselves
        return dict.fromkeys(range(state.info.m), Install(state.start, known=state.info.model.fused.start))

    def update(self, state: Any, devices: Ints, values: list[Floats]) -> Residuals | None:
        if values and self.evaluate == "global":  # the others have the head from which the active ones started
            state.trained = np.tile(state.part, (state.info.m, 1))
        if values:
            state.trained[devices] = np.stack(values)
        return super().update(state, devices, values)

    def in_use(self, state: LGState, found: Outcome, seen: list[Floats]) -> Outcome:
        fused, models = state.info.model.fused, np.stack(seen).astype(found.models.dtype)
        # with a representation of its own a device uses the global head, as in the original
        models[:, fused] = state.part if fused.start and self.evaluate == "global" else state.trained
        return found._replace(models=models)

    def outcome(self, state: Any) -> Outcome:
        """Return what the server knows: everybody's head on the first representation."""
        found = super().outcome(state)
        found.models[:, state.info.model.fused] = state.trained
        return found

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Fine-tune the global head, on the first representation."""
        yield Train(self.work.at(0), start=known.kept["model"], rows=self.rows, send="nothing")
        return AdmissionResult((yield PeekModel()))
