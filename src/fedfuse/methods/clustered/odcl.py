"""ODCL: one exchange. Devices fit their own models, and the server groups and averages them.

A. Armacki, D. Bajović, D. Jakovetić, S. Kar: One-Shot Federated Learning for Model Clustering and Learning in
Heterogeneous Environments (2022).

    device: sends a_i, the least of f_i
    server: ODCL-CC groups the a_i by convex clustering, the least of
                1/2 sum_i ||x_i - a_i||^2 + lambda sum_{i<j} ||x_i - x_j||, devices with equal x_i are a group;
            ODCL-KM by k-means; every device is sent the mean of its group, weighted by rows

The original takes lambda from an interval that depends on the groups; here it is lam max_i ||a_i - mean a|| / m, so
that lam = 0 leaves all apart and 1 joins all or nearly so, and validation rows choose. With ``solver="gd"`` a device
takes ``local_steps`` steps.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import scipy

from fedfuse.core.partitions import canonical, group_means
from fedfuse.core.penalties import L1
from fedfuse.methods.method import FederationInfo, Method, Outcome, Residuals
from fedfuse.methods.mixins import GathersReplies
from fedfuse.methods.parameters import Auto, Searchable, number
from fedfuse.pairs.collapsing_path import CollapsingPath
from fedfuse.pairs.neighbour_graph import neighbour_edges
from fedfuse.protocol.tasks import Install, Task, Train
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Bools, Floats, Ints

KMEANS_STARTS = 10
# Of convex clustering: by how much optimality may be violated, relative to the spread of the points, and iterations.
TOLERANCE, MAX_ITERATIONS = 1e-6, 20_000
# What a device takes to come near its own optimum in one exchange; a pass has many steps.
LOCAL_STEPS, LOCAL_PASSES = 1000, 100


@dataclass
class OneShotState:
    """The models that devices have sent, who has, and the groups once all have."""

    info: FederationInfo
    models: Floats
    heard: Bools
    labels: Ints


@dataclass(frozen=True)
class OneShot(Method[OneShotState], Searchable, GathersReplies):
    """Groups of devices' own models, found in one exchange.

    Parameters
    ----------
    local_steps
        Gradient steps of a device, where it has no exact solver: 1,000 by default; with mini-batches 100 passes.
    """

    local_steps: int | None = number(None, least=1, whole=True)

    @abstractmethod
    def group(self, models: Floats, seed: int) -> Ints:
        """Return the groups of devices with these models."""

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> OneShotState:
        models = np.tile(info.initial(self.start), (info.m, 1)).astype(info.dtype)
        return OneShotState(info, models, np.zeros(info.m, np.bool_), np.arange(info.m))

    def restart(self, info: FederationInfo, used: OneShotState) -> OneShotState:
        return self._concluded(replace(self.init(info), models=used.models, heard=used.heard))

    def opening(self, state: OneShotState) -> dict[int, Task]:
        return {i: Install(w, known=w.size) for i, w in enumerate(state.models)}

    def devices(self, state: OneShotState, drawn: Ints) -> Ints:
        return np.flatnonzero(~state.heard)

    def tasks(self, state: OneShotState, devices: Ints, k: int) -> list[Task]:
        work = self.work.at(0)
        steps = self.local_steps or (LOCAL_STEPS if work.batch is None else LOCAL_PASSES)
        whole = work if work.solver == "exact" else replace(work, steps=steps)
        return [Train(whole, rows=self.rows)] * len(devices)

    def update(self, state: OneShotState, devices: Ints, values: list[Floats]) -> Residuals | None:
        if values:
            state.models[devices], state.heard[devices] = np.stack(values), True
            self._concluded(state)
        return None

    def _concluded(self, state: OneShotState) -> OneShotState:
        if state.heard.all():
            state.labels = canonical(self.group(state.models.astype(np.float64), state.info.seed))
        return state

    def finished(self, state: OneShotState) -> bool:
        return bool(state.heard.all())

    def broadcast(self, state: OneShotState) -> dict[int, Task]:
        return {i: Install(w) for i, w in enumerate(self.outcome(state).models)} if self.finished(state) else {}

    def outcome(self, state: OneShotState) -> Outcome:
        means = group_means(state.models, state.labels, state.info.counts[self.rows])
        return Outcome(means[state.labels].astype(state.models.dtype), state.labels)


@dataclass(frozen=True)
class ODCLCC(OneShot):
    """One exchange, groups by convex clustering.

    Parameters
    ----------
    lam
        Strength of the penalty, from 0 to 1; ``"auto"`` chooses on validation rows.
    """

    name: ClassVar[str] = "odcl-cc"
    lam: float | Auto = number("auto", least=0, tried=(0.1, 0.3, 0.5, 0.7, 0.9, 1.0))

    def group(self, models: Floats, seed: int) -> Ints:
        widest = float(np.linalg.norm(models - models.mean(axis=0), axis=1).max())
        return convex_clusters(models, self.setting * widest / len(models))


def convex_clusters(points: Floats, lam: float) -> Ints:
    """Return the groups of equal x where 1/2 sum_i ||x_i - a_i||^2 + lam sum_{i<j} ||x_i - x_j|| is least.

    >>> convex_clusters(np.array([[0.0], [0.2], [5.0]]), 0.2).tolist()
    [0, 0, 1]
    """
    m = len(points)
    if not lam or m < 2:
        return np.unique(points, axis=0, return_inverse=True)[1].ravel()
    edges = neighbour_edges(points, m)
    x, weights = points - points.mean(axis=0), np.ones(edges.lo.size)
    path = CollapsingPath(x, np.ones(m), edges, weights, L1(1.0), np.arange(m)).run(lam)
    return path.solve(len(path.found.lambdas) - 1, TOLERANCE, MAX_ITERATIONS)[0].labels()


@dataclass(frozen=True)
class ODCLKM(OneShot):
    """One exchange, groups by k-means.

    Parameters
    ----------
    n_models
        Number of groups; ``"auto"`` chooses on validation rows.
    """

    name: ClassVar[str] = "odcl-km"
    n_models: int | Auto = number("auto", least=1, whole=True, tried=(1, 2, 3, 4, 6, 8, 12))

    def group(self, models: Floats, seed: int) -> Ints:
        count = min(int(self.setting), len(np.unique(models, axis=0)))
        tries = []
        for start in range(KMEANS_STARTS):
            means, labels = scipy.cluster.vq.kmeans2(models, count, minit="++", rng=generator(seed, "k-means", start))
            tries.append((float(np.square(models - means[labels]).sum()), labels))
        return np.asarray(min(tries, key=lambda each: each[0])[1], np.int64)
