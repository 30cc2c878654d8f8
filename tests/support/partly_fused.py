"""A model of two parts: the first weights are shared by all devices, the rest is what methods fuse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedfuse.models import LinearRegression
from fedfuse.models.model import plain


@dataclass(frozen=True)
class PartlyFused(LinearRegression):
    """Linear regression that takes its first ``cut`` weights for shared ones; plain gradient steps only."""

    cut: int = 2

    @property
    def fused(self):
        return slice(self.cut, self.d)

    def train(self, data, devices, start, anchor, rho, work, rngs=None):
        steps, lr = plain(work)
        W = np.array(start, np.float64)
        for _ in range(steps):
            G = np.array(self.gradients(data, devices, W), np.float64)
            if anchor is not None:  # it has the length of the fused part, and pulls on nothing else
                G[:, self.fused] += rho * (W[:, self.fused] - anchor)
            W = W - lr * G
        return W.astype(data.dtype)
