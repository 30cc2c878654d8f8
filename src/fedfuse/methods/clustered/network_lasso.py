"""Network Lasso: ADMM over a graph whose edges draw the models of their ends together.

D. Hallac, J. Leskovec, S. Boyd: Network Lasso: Clustering and Optimization in Large Graphs (KDD 2015).

    the least of sum_i f_i(x_i) + lam / m sum_{edges} ||x_i - x_j||
    device: x_i <- the least of f_i(x) + rho_i/2 ||x - mean over its edges of (z_ij - u_ij)||^2; sends x_i
    server: sends every device the models of all its neighbours
    edge:   z_ij and z_ji are drawn together, at most to their middle; u_ij <- u_ij + x_i - z_ij

On the complete graph this is the problem of FPFC-l1. In the original, neighbours broadcast to each other and compute z
and u themselves; with a server between them it sends all neighbours' models to each device, as the paper on FPFC counts
it (section 2.1): m models down and one up, for every device in every round. Here their mean, which a device could
compute, is sent along in place of its own model. All devices take part in every round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedfuse.core.partitions import group_means, joined
from fedfuse.errors import FedfuseError
from fedfuse.methods.anchored import Anchored, OwnModels
from fedfuse.methods.method import FederationInfo, Outcome, Residuals
from fedfuse.methods.parameters import Auto, Searchable, number
from fedfuse.protocol.tasks import Task, Train
from fedfuse.utils.typing import Floats, Ints


@dataclass
class EdgeCopies:
    """For each end of each edge: who it is, its copy z of the model, and the scaled dual u; the other ends follow."""

    ends: Ints
    z: Floats
    u: Floats

    @classmethod
    def of(cls, x: Floats, edges: tuple[tuple[int, int], ...] = ()) -> EdgeCopies:
        """Return the copies of these models before the first step; without edges, those of the complete graph."""
        pairs = np.array(edges, np.int64).reshape(-1, 2).T if edges else np.array(np.triu_indices(len(x), 1))
        ends = pairs.ravel()
        return cls(ends, x[ends].astype(np.float64), np.zeros((len(ends), x.shape[1])))

    def update(self, x: Floats, threshold: float) -> None:
        """Draw the two copies of every edge together, by ``threshold`` = lam / rho each, at most to their middle."""
        here = x[self.ends] + self.u
        there = np.roll(here, len(here) // 2, axis=0)
        apart = np.maximum(np.linalg.norm(here - there, axis=1, keepdims=True), 1e-300)
        share = np.maximum(1 - threshold / apart, 0.5)
        self.z = share * here + (1 - share) * there
        self.u = here - self.z

    def pull(self, m: int) -> tuple[Floats, Ints]:
        """Return the sum of z - u over the edges of each device, and the number of these edges (m x 1)."""
        total = np.zeros((m, self.z.shape[1]))
        np.add.at(total, self.ends, self.z - self.u)
        return total, np.bincount(self.ends, minlength=m)[:, None]

    def labels(self, m: int) -> Ints:
        """Return the groups of devices that edges join whose copies have met."""
        (here, there), (a, b) = np.split(self.ends, 2), np.split(self.z, 2)
        met = (a == b).all(axis=1)
        return joined(m, here[met], there[met])


@dataclass
class LassoState(OwnModels):
    """Models, and what edges have of them."""

    copies: EdgeCopies


@dataclass(frozen=True)
class NetworkLasso(Anchored, Searchable):
    """Groups of devices whose models a graph has drawn together.

    Parameters
    ----------
    lam
        Strength of the penalty, as FPFC-l1 has it; ``"auto"`` chooses on validation rows.
    rho
        Weight of the proximal term of a device with m edges.
    edges
        Pairs of device numbers; none: all pairs.
    """

    name: ClassVar[str] = "network-lasso"
    finds_groups: ClassVar[bool] = True
    lam: float | Auto = number("auto", least=0, tried=(0.1, 0.3, 1.0, 3.0, 10.0))
    rho: float = number(1.0, above=0)
    edges: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "edges", tuple((int(i), int(j)) for i, j in self.edges))

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> LassoState:
        if self.edges and not (min(map(min, self.edges)) >= 0 and max(map(max, self.edges)) < info.m):
            raise FedfuseError(f"edges must be pairs of device numbers from 0 to {info.m - 1}")
        models = super().init(info).models
        return LassoState(info, models, EdgeCopies.of(models, self.edges))

    def devices(self, state: Any, drawn: Ints) -> Ints:
        return np.arange(state.info.m)

    def anchors(self, state: Any, devices: Ints) -> tuple[Floats, float]:
        sums, degrees = state.copies.pull(state.info.m)
        return np.where(degrees, sums / np.maximum(degrees, 1), state.models)[devices], self.rho / state.info.m

    def tasks(self, state: Any, devices: Ints, k: int) -> list[Task]:
        here, there = (np.roll(state.copies.ends, shift) for shift in (0, len(state.copies.ends) // 2))
        orders = zip(super().tasks(state, devices, k), (there[here == i] for i in devices), strict=True)
        return [replace(o, rho=o.rho * len(n), neighbours=state.models[n]) for o, n in orders if isinstance(o, Train)]

    def update(self, state: Any, devices: Ints, values: list[Floats]) -> Residuals | None:
        found = super().update(state, devices, values)
        state.copies.update(state.models, self.setting / self.rho)
        return found

    def outcome(self, state: Any) -> Outcome:
        labels = state.copies.labels(state.info.m)
        models = group_means(state.models, labels, state.info.counts[self.rows])[labels]
        return Outcome(models, labels, self.setting)
