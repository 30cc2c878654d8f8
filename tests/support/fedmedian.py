"""FedMedian: one model, the median of what devices made of it, coordinate by coordinate.

D. Yin, Y. Chen, K. Ramchandran, P. Bartlett: Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates
(ICML 2018), with local steps in place of one gradient.

    server: sends w to each active device
    device: w_i <- T local steps from w; sends w_i
    server: w <- the median of the w_i, coordinate by coordinate, taken a share of the way
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
class FedMedian(Method[OneModel]):
    name: ClassVar[str] = "fedmedian"
    finds_groups: ClassVar[bool] = False
    share: float = 1.0

    def init(self, info, previous=None):
        return OneModel(info, info.initial(self.start).astype(info.dtype))

    def tasks(self, state, devices, k):
        return [Train(self.work.at(k), start=state.w, rows=self.rows)] * len(devices)

    def update(self, state, devices, values):
        old = state.w
        state.w = old + self.share * (np.median(values, axis=0) - old).astype(old.dtype) if values else old
        return moved(old[None], state.w[None])

    def outcome(self, state):
        return Outcome(np.tile(state.w, (state.info.m, 1)), np.zeros(state.info.m, np.int64))
