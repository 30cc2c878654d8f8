"""FedRep: one representation for all, and a personal head that is fitted to it first.

L. Collins, H. Hassani, A. Mokhtari, S. Shakkottai: Exploiting Shared Representations for Personalized Federated
Learning (ICML 2021).

    server: sends the representation phi to each active device
    device: head_steps steps on its head h_i with phi fixed, then T steps on phi with h_i fixed; sends phi, keeps h_i
    server: phi <- sum_i n_i phi_i / sum_i n_i over the active devices

As FedPer, but for the order of the steps. The original takes one step on phi and a plain mean; T is that of ``work``.
Mini-batches are drawn anew for every step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedfuse.methods.parameters import number
from fedfuse.methods.personal.fedper import FedPer
from fedfuse.protocol.tasks import Train
from fedfuse.utils.typing import Floats


@dataclass(frozen=True)
class FedRep(FedPer):
    """One representation for all, a head for every device.

    Parameters
    ----------
    head_steps
        Steps on the head (with mini-batches: passes) before those on the representation.
    """

    name: ClassVar[str] = "fedrep"
    needs_steps: ClassVar[bool] = True
    head_steps: int = number(10, least=1)

    def order(self, part: Floats, k: int) -> Train:
        return replace(super().order(part, k), rest_steps=self.head_steps)
