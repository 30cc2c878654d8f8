"""The fusion path for networks: FPFC without a lambda, where nothing can be solved exactly.

    train together  as in `network_tree`, until scores on validation rows no longer rise
    train apart     every device trains on by itself: the distances of the fused parts say which lambdas to try
    fusion path     Algorithm 2 with the work of the method: the fused part is pulled to its anchor, the shared part is
                    averaged; lambda rises from pass to pass (`fusion_path`)
    cut tree        average linkage of the lengths of theta over the path, cut where validation losses are least
    check groups, train groups
                    as in `network_tree`, from where the path has ended

Once the reach has waited at a gap, groups have parted, and the path is over: beyond it they would only be pulled
together again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fedfuse.core.dendrogram import Tree
from fedfuse.grouping import network_tree
from fedfuse.grouping.fusion_path import Path, at_lambda
from fedfuse.grouping.network_tree import CutNetworkTree, NetworkTreeState, TrainApart
from fedfuse.grouping.steps import Step, StepMethod, by_name
from fedfuse.methods.fpfc import FPFC
from fedfuse.methods.method import FederationInfo, Outcome, Residuals
from fedfuse.models.model import Start
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import Task, Train
from fedfuse.utils.typing import Floats, Ints

# Maximum number of passes over all devices, and of those at a gap: networks take few steps, convex models are solved.
MAX_NETWORK_PASSES, NETWORK_WAIT_PASSES = 8, 5


@dataclass
class NetworkPathState(NetworkTreeState):
    """The path, and what devices have made of their networks on it."""

    path: Path = field(init=False)

    def __post_init__(self, previous: Outcome | None, start: Start) -> None:
        super().__post_init__(previous, start)
        self.path = Path.start(FPFC(), self.info, self.own)

    def go_on(self) -> bool:
        """Set the lambda of the next pass; False where the path is over."""
        parted = self.path.waited == NETWORK_WAIT_PASSES
        return not parted and self.path.raise_lambda(self.trusted, MAX_NETWORK_PASSES, NETWORK_WAIT_PASSES)

    def cut_path_tree(self) -> str:
        """Cut the tree of the path, with what devices have made of their networks on it."""
        who = self.trusted
        self.own = self.path.fusion.models.astype(self.info.dtype)
        self.tree = Tree.linked(self.path.lengths[np.ix_(who, who)], who)
        return CutNetworkTree.name


@dataclass(frozen=True, repr=False)
class FuseNetworks(Step[NetworkPathState]):
    """Devices train on near their anchor: one pass of FPFC."""

    name = "fusion path"
    work: Work
    inner: FPFC

    def ask(self, state: NetworkPathState, devices: Ints) -> list[Task]:
        fusion, work = state.path.fusion, self.work.at(state.turn)
        fusion.pairs.penalty = at_lambda(self.inner, state.path.lam).penalty
        trunk: dict[str, Any] = {"start": fusion.shared, "into": "shared"} if fusion.shared.size else {}
        anchors = fusion.pairs.anchors(devices)
        return [Train(work, anchor=zeta, rho=self.inner.rho, rows="train", **trunk) for zeta in anchors]

    def hear(self, state: NetworkPathState, answers: dict[int, Floats]) -> Residuals:
        return state.path.update(answers)

    def take(self, state: NetworkPathState) -> str:
        state.turn += 1
        state.path.read(state.trusted)
        return self.name if state.go_on() else state.cut_path_tree()


@dataclass(frozen=True)
class NetworkFusionPath(StepMethod[NetworkPathState]):
    """Find the groups of devices that train a network by FPFC along a path of lambdas, and train theirs."""

    name: ClassVar[str] = "network-fusion-path"
    inner: FPFC = field(default_factory=FPFC)

    def steps(self) -> dict[str, Step[Any]]:
        work = (self.work, self.rows, self.robust)
        apart, fusing = TrainApart(*work, then=self._begin), FuseNetworks(self.work, self.inner)
        checking = (CutNetworkTree(), network_tree.CheckNetworks(), network_tree.TrainGroups(*work))
        return by_name(network_tree.TrainTogether(*work), apart, fusing, *checking)

    def _begin(self, state: NetworkPathState) -> str:
        state.path = Path.start(self.inner, state.info, state.own)
        return FuseNetworks.name if state.go_on() else state.cut_path_tree()

    def outcome(self, state: NetworkPathState) -> Outcome:
        return state.path.complete(super().outcome(state))

    def first_state(self, info: FederationInfo, previous: Outcome | None) -> NetworkPathState:
        return NetworkPathState(info, np.zeros(info.m, np.int64), previous, start=self.start)
