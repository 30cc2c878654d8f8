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

from fedfuse.core.edge_admm import EdgeCopies
from fedfuse.core.partitions import group_means
from fedfuse.errors import FedfuseError
from fedfuse.methods.anchored import Anchored, OwnModels
from fedfuse.methods.method import FederationInfo, Outcome
from fedfuse.methods.parameters import Auto, Searchable, number
from fedfuse.pairs.state import Residuals
from fedfuse.protocol.tasks import Task, Train
from fedfuse.utils.typing import Floats, Ints


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
