"""FedAMP: messages between devices that are alike, and HeurFedAMP for networks.

Y. Huang, L. Chu, Z. Zhou, L. Wang, J. Liu, J. Pei, Y. Zhang: Personalized Cross-Silo Federated Learning on Non-IID Data
(AAAI 2021).

    server: u_i = sum_j xi_ij w_j, and sends it to device i
            FedAMP:      xi_ij = alpha A'(||w_i - w_j||^2), A(t) = 1 - exp(-t / sigma), and xi_ii what is left of 1
            HeurFedAMP:  xi_ij ~ exp(sigma cos(w_i, w_j)) for j != i, and xi_ii = self_weight
    device: w_i <- the least of f_i(w) + lam/2 ||w - u_i||^2, by local steps from its last w_i; sends w_i

In the original all devices take part; here others count with what they sent last. alpha is sigma / m, so that xi_ii is
at least 1 / m, and lam stands for the original's lam / alpha.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import scipy

from fedfuse.methods.anchored import Anchored
from fedfuse.methods.clustered.cfl import cosines
from fedfuse.methods.parameters import Auto, Searchable, choice, number
from fedfuse.utils.typing import Floats, Ints

Form = Literal["attentive", "heuristic"]


@dataclass(frozen=True)
class FedAMP(Anchored, Searchable):
    """A model for every device, drawn to those it is like.

    Parameters
    ----------
    sigma
        Width of what is alike; for the heuristic form, how much the most alike are preferred. ``"auto"`` chooses on
        validation rows.
    lam
        How strongly a device is drawn to its message.
    form
        ``"attentive"``: FedAMP, for convex models. ``"heuristic"``: HeurFedAMP.
    self_weight
        Share of a device's own model in its message, in the heuristic form.
    """

    name: ClassVar[str] = "fedamp"
    sigma: float | Auto = number("auto", least=0, tried=(0.1, 1.0, 10.0, 100.0))
    lam: float = number(1.0, least=0)
    form: Form = choice("attentive", Form)
    self_weight: float = number(0.5, above=0, most=1)

    def anchors(self, state: Any, devices: Ints) -> tuple[Floats, float]:
        return self.attention(state.models)[devices] @ state.models, self.lam

    def attention(self, models: Floats) -> Floats:
        """Return xi: how much each device (column) counts in the message to each (row)."""
        m = len(models)
        if self.form == "attentive":
            xi = np.exp(-scipy.spatial.distance.cdist(models, models, "sqeuclidean") / self.setting) / m
            own: Floats | float = 1 - (xi.sum(axis=1) - np.diag(xi))
        else:
            xi = np.exp(self.setting * (cosines(models) - 1))
            np.fill_diagonal(xi, 0)
            own = self.self_weight if m > 1 else 1.0
            xi *= (1 - own) / np.maximum(xi.sum(axis=1, keepdims=True), 1e-300)
        np.fill_diagonal(xi, own)
        return xi
