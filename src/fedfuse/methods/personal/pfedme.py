"""pFedMe: one model by descent on Moreau envelopes of the devices' losses, and personal models near it.

C. T. Dinh, N. H. Tran, T. D. Nguyen: Personalized Federated Learning with Moreau Envelopes (NeurIPS 2020).

    server: sends w to each active device
    device: local_rounds times: theta_i <- T local steps on f_i(theta) + lam/2 ||theta - w_i||^2, from its last theta_i;
            w_i <- w_i - rate (w_i - theta_i), where rate = eta lam;  sends w_i
    server: w <- (1 - beta) w + beta sum_i n_i w_i / sum_i n_i over the active devices

A device uses theta_i(w), T local steps from w towards the minimiser of f_i + lam/2 ||theta - w||^2. The original gives
eta and lam, whose product must be small; here the product is a parameter. Its mean is over equal weights, here by rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedfuse.methods.method import Residuals, moved
from fedfuse.methods.one_model.fedavg import GroupModels
from fedfuse.methods.parameters import Auto, Searchable, number
from fedfuse.methods.personal.fine_tuning import AdaptsAtHome
from fedfuse.protocol.tasks import EnvelopeTrain, Task, Train
from fedfuse.utils.typing import Floats, Ints


@dataclass(frozen=True)
class PFedMe(AdaptsAtHome, Searchable):
    """A model for every device within reach of one for all.

    Parameters
    ----------
    lam
        How strongly personal models are held; ``"auto"`` chooses on validation rows.
    rate
        Share of the way to theta_i that w_i goes each time.
    local_rounds
        Such steps for each exchange.
    beta
        Share of the devices' mean in the new w.
    """

    name: ClassVar[str] = "pfedme"
    lam: float | Auto = number("auto", least=0, tried=(0.1, 0.5, 1.0, 2.0, 5.0))
    rate: float = number(0.1, above=0, most=1)
    local_rounds: int = number(10, least=1)
    beta: float = number(1.0, above=0, most=1)

    def tasks(self, state: GroupModels, devices: Ints, k: int) -> list[Task]:
        how = (self.setting, self.rate, self.local_rounds, self.rows)
        return [EnvelopeTrain(self.work.at(k), state.models[0], *how)] * len(devices)

    def update(self, state: GroupModels, devices: Ints, values: list[Floats]) -> Residuals | None:
        old = state.models
        if not values or super().update(state, devices, values) is None:
            return None
        state.models = (old + self.beta * (state.models - old)).astype(old.dtype)
        return moved(old, state.models)

    def adaptation(self, w: Floats) -> Train:
        return Train(self.work.at(0), start=w, near=True, rho=self.setting, rows=self.rows)
