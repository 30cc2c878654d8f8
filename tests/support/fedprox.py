"""FedProx: FedAvg whose devices are held near the model they were sent.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith: Federated Optimization in Heterogeneous Networks
(MLSys 2020).

    server: sends w to each active device
    device: w_i <- T local steps on f_i(v) + mu/2 ||v - w||^2 from w; sends w_i
    server: w <- the mean of the w_i, weighted by rows
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedfuse.methods.method import FederationInfo, Method, Outcome, moved
from fedfuse.protocol.tasks import Train


@dataclass
class OneModel:
    info: FederationInfo
    w: np.ndarray


@dataclass(frozen=True)
class FedProx(Method[OneModel]):
    name: ClassVar[str] = "fedprox"
    finds_groups: ClassVar[bool] = False
    mu: float = 0.1

    def init(self, info, previous=None):
        return OneModel(info, info.initial(self.start).astype(info.dtype))

    def tasks(self, state, devices, k):
        return [Train(self.work.at(k), start=state.w, anchor=state.w, rho=self.mu, rows=self.rows)] * len(devices)

    def update(self, state, devices, values):
        old, weights = state.w, state.info.counts[self.rows][devices]
        state.w = np.average(values, axis=0, weights=weights).astype(old.dtype) if values else old
        return moved(old[None], state.w[None])

    def outcome(self, state):
        return Outcome(np.tile(state.w, (state.info.m, 1)), np.zeros(state.info.m, np.int64))
