"""HypCluster: a given number of hypotheses, and every device works on the one that suits it best.

Y. Mansour, M. Mohri, J. Ro, A. T. Suresh: Three Approaches for Personalization with Applications to Federated Learning
(2020).

    server: the devices of the first round train from one start; of their models, one at random and then always the one
            furthest from those chosen are centres; each hypothesis is the mean of the models nearest to a centre
    device: c_i = argmin_j f_i(h_j) on its training rows; T local steps from h_{c_i}; sends both
    server: h_j <- the mean of what its active members made of it, weighted by rows

The start is that of the authors' library (FedJAX), which goes by losses, not by distances, and takes no means. From the
second round on it is IFCA with model averaging, and its number of models and restarts are chosen in the same way. With
one hypothesis it is FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy

from fedfuse.methods.clustered.ifca import IFCA, IFCAState
from fedfuse.methods.method import FederationInfo, Outcome, Residuals, moved
from fedfuse.methods.one_model.fedavg import averaged
from fedfuse.protocol.tasks import Task, Train
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Floats, Ints


@dataclass
class HypothesesState(IFCAState):
    """As that of IFCA, and whether the hypotheses have been made."""

    begun: bool = False


@dataclass(frozen=True)
class HypCluster(IFCA):
    """A few hypotheses, each for the devices that it suits best; parameters as those of `IFCA`."""

    name: ClassVar[str] = "hypcluster"

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> HypothesesState:
        one = super().init(info, previous)
        return HypothesesState(info, one.shared, one.heads, one.choice)

    def tasks(self, state: Any, devices: Ints, k: int) -> list[Task]:
        if state.begun:
            return super().tasks(state, devices, k)
        return [Train(self.work.at(k), start=self._all(state)[0], rows=self.rows)] * len(devices)

    def update(self, state: Any, devices: Ints, values: list[Floats]) -> Residuals | None:
        if state.begun or not values:
            return super().update(state, devices, values)
        old, cut, state.begun = self._all(state), state.info.model.fused.start, True
        models, rows = np.stack(values), self.weigh(state.info, devices)
        first = int(generator(state.info.seed, "hypotheses", self.first_draw or 0).integers(len(devices)))
        state.heads = averaged(state.heads, parts(models[:, cut:], len(state.heads), first), models[:, cut:], rows)
        state.shared = averaged(state.shared[None], np.zeros(len(devices), np.int64), models[:, :cut], rows)[0]
        return moved(old, self._all(state))


def parts(points: Floats, number: int, first: int) -> Ints:
    """Return which of so many centres each point is nearest to: one point, then always the furthest from those before.

    >>> parts(np.array([[0.0], [1.0], [9.0], [5.5], [8.0]]), 2, first=0)
    array([0, 0, 1, 1, 1])
    """
    centres = [first]
    away = scipy.spatial.distance.cdist(points, points[centres])
    while len(centres) < min(number, len(points)):
        centres.append(int(away.min(axis=1).argmax()))
        away = scipy.spatial.distance.cdist(points, points[centres])
    return np.asarray(away.argmin(axis=1), np.int64)
