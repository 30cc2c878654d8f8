"""The fusion path: FPFC without a lambda. Groups are read off real ADMM rounds along a path of lambdas.

    column scales      columns are rescaled over the federation (`refit`)
    local fits         devices fit their own rows with a small ridge, which stays in f_i from here on: theta_ij =
                       omega_i - omega_j, v_ij = 0
    fusion path        Algorithm 2 with exact local solves, lambda rising from pass to pass, each pass warm from the
                       last; after each the groups are read off the widest gap in the lengths of theta
    cut path           average linkage of the lengths of theta, over the whole path; devices evaluate the models of
                       the groups above them, and the tree is cut where that is best (`selection`)
    compare groupings  this grouping and those read off the path, by validation losses; the coarsest good one is taken
    group fits, …      one model for each group; groups merge and devices move where that loses nothing (`refit`)

Lambda follows the devices: the penalty's reach, a lambda, takes in about half of the links of single linkage that are
left, so that passes are spent where groups meet. Where the next links are much longer, the reach stays just below them
for a few passes, and groups fuse within themselves before they can feel each other. The path ends when all devices are
within reach of each other.

A judgement by FPFC's own estimates, which are biased, prefers far too many groups; models after a refit do not.
"""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fedfuse.core.dendrogram import Tree
from fedfuse.core.partitions import adjusted_rand, canonical, linkage_heights, widest_gap
from fedfuse.errors import FedfuseError
from fedfuse.grouping import fusion_tree
from fedfuse.grouping.fusion_tree import COMMON_RIDGE, CutTree, FitHalf, FitRidge, FusionTreeState
from fedfuse.grouping.refit import RescaleColumns, refit_steps
from fedfuse.grouping.simulated_replies import sends_statistics
from fedfuse.grouping.steps import Step, StepMethod, by_name
from fedfuse.methods.fpfc import FPFC, FUSED_RATIO, FPFCState
from fedfuse.methods.method import FederationInfo, Outcome, Residuals
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.tasks import EvaluateModels, Task, Train
from fedfuse.utils.typing import Floats, Ints

# Maximum number of devices: the lengths of theta of all pairs are kept.
MAX_DEVICES = 5000
# Maximum number of passes over all devices.
MAX_PASSES = 16
# Ratio of two neighbouring links from which on lambda waits between them, for so many passes.
MIN_WAIT_RATIO, WAIT_PASSES = 1.2, 3
# Links that must lie below the gap for that, for each device.
MIN_FUSED_RATIO = 0.1
# The reach while it waits, as a share of the next link.
WAIT_REACH_RATIO = 0.95
# Largest width of the penalty's smoothing, in units of lambda.
MAX_XI_RATIO = 0.01
# Groupings read off the path that are compared: those with the widest gaps.
MAX_READINGS = 3


@dataclass
class Path:
    """Where a fusion path is, and the groups read off it."""

    fusion: FPFCState
    reach: float  # of the penalty, in units of lambda
    lam: float = 0.0
    waited: int = 0
    lambdas: Floats = field(default_factory=lambda: np.empty(0))  # of each pass,
    readings: Ints = field(init=False)  # the grouping after it,
    gaps: Floats = field(default_factory=lambda: np.empty((0, 2)))  # and the gap that it was read off (nan: none)
    lengths: Floats = field(init=False)  # of theta in units of the reach (m x m), summed over passes

    @classmethod
    def start(cls, inner: FPFC, info: FederationInfo, models: Floats) -> Path:
        """Set out from these models of the devices, with theta their differences and v = 0."""
        return cls(replace(inner, lam=1.0).init(info, Outcome(models, np.arange(info.m))), inner.reach)

    def __post_init__(self) -> None:
        m = self.fusion.pairs.m
        self.lengths, self.readings = np.zeros((m, m)), np.empty((0, m), np.int64)
        self._add(np.arange(m))

    def _add(self, labels: Ints, gap: tuple[float, float] = (np.nan, np.nan)) -> None:
        self.lambdas, self.gaps = np.append(self.lambdas, self.lam), np.vstack([self.gaps, gap])
        self.readings = np.vstack([self.readings, labels])

    def update(self, answers: dict[int, Floats]) -> Residuals:
        """Take in the new models of some devices."""
        return self.fusion.update(np.array(list(answers), np.int64), np.stack(list(answers.values())))

    def read(self, who: Ints) -> None:
        """Read groups off the lengths of theta; ``who`` are the devices that are believed."""
        pairs = self.fusion.pairs
        norms = pairs.norms()
        self.lengths += norms / (self.reach * self.lam)
        gap = widest_gap(linkage_heights(norms[np.ix_(who, who)]), FUSED_RATIO * self.lam, self.reach * self.lam)
        self._add(pairs.labels(gap.nu), gap)

    def raise_lambda(self, who: Ints, max_passes: int = MAX_PASSES, wait_passes: int = WAIT_PASSES) -> bool:
        """Set the lambda of the next pass; False, and all together, where all are in reach or passes are over."""
        heights = linkage_heights(self.fusion.pairs.distances()[np.ix_(who, who)])
        covered, left = np.split(heights, [np.searchsorted(heights, self.reach * self.lam, "right")])
        if len(self.lambdas) > max_passes or not left.size:
            self.lam = max(self.lam, float(heights.max(initial=0.0) / self.reach))
            self._add(np.zeros(len(self.lengths), np.int64))
            return False
        links, goal = np.concatenate([covered[-1:], left]), left[(left.size - 1) // 2]
        below = len(heights) - len(links) + 1 + np.arange(len(links) - 1)  # Links below each gap.
        wide = (links[1:] >= MIN_WAIT_RATIO * links[:-1]) & (links[:-1] < goal) & (below >= MIN_FUSED_RATIO * len(who))
        if wide.any() and self.waited < wait_passes:
            self.waited, reach = self.waited + 1, WAIT_REACH_RATIO * links[int(np.argmax(wide)) + 1]
        else:
            self.waited, reach = 0, (1 + 1e-6) * goal
        self.lam = max(self.lam, float(reach / self.reach))
        return True

    def complete(self, found: Outcome) -> Outcome:
        """Add the lambda of the last reading most like what was found, and where both are the same its gap."""
        alike = [adjusted_rand(found.labels, reading) or 0.0 for reading in self.readings]
        k = len(alike) - 1 - int(np.argmax(alike[::-1]))
        same = (canonical(self.readings[k]) == canonical(found.labels)).all() and np.isfinite(self.gaps[k]).all()
        kept = {**found.kept, **({"gap": self.gaps[k]} if same else {})}
        return found._replace(lam=float(self.lambdas[k]), kept=kept)

    def best_readings(self) -> Ints:
        """Return the different groupings with the widest gaps; all devices alone or together are on every tree."""
        order = np.argsort(self.gaps[:, 0] / self.gaps[:, 1], kind="stable")
        groups = self.readings.max(axis=1)[order]
        order = order[(groups > 0) & (groups < self.readings.shape[1] - 1)]
        _, first = np.unique(self.readings[order], axis=0, return_index=True)
        return np.asarray(self.readings[order[np.sort(first)[:MAX_READINGS]]])


@dataclass
class FusionPathState(FusionTreeState):
    """The path, and what the selector needs."""

    inner: InitVar[FPFC] = FPFC()  # noqa: RUF009 - it is frozen
    path: Path = field(init=False)

    def __post_init__(self, previous: Outcome | None, inner: FPFC) -> None:
        super().__post_init__(previous)
        self.path = Path.start(inner, self.info, self.estimates[COMMON_RIDGE])

    def recovery(self) -> list[dict[int, Task]]:
        return [*self.rescaled(), self.installed()]

    def last_fits(self) -> Floats:
        return self.path.fusion.models if self.step == FusePairs.name else super().last_fits()


class RescaleForPath(RescaleColumns):
    """Devices rescale their columns, one scale for all: they solve their problems themselves."""

    on_devices = True


@dataclass(frozen=True, repr=False)
class FitOwn(FitRidge):
    """Devices fit their training rows with a small ridge: where the path begins."""

    on_devices = True
    inner: FPFC

    def place(self, state: FusionTreeState) -> int:
        return COMMON_RIDGE

    def take(self, state: FusionPathState) -> str:  # type: ignore[override]
        self.keep(state)
        state.path = Path.start(self.inner, state.info, state.estimates[COMMON_RIDGE])
        return FusePairs.name if state.path.raise_lambda(state.trusted) else end_path(state)


@dataclass(frozen=True, repr=False)
class FusePairs(Step[FusionPathState]):
    """Devices solve their problem near their anchor: one pass of FPFC."""

    name = "fusion path"
    on_devices = True
    inner: FPFC

    def ask(self, state: FusionPathState, devices: Ints) -> list[Task]:
        # f_i has a ridge: ridge/2 |w|^2 + rho/2 |w - zeta|^2 is (rho + ridge)/2 |w - rho zeta / (rho + ridge)|^2.
        pairs, rho, ridge = state.path.fusion.pairs, self.inner.rho, fusion_tree.RIDGES[COMMON_RIDGE]
        pairs.penalty = at_lambda(self.inner, state.path.lam).penalty
        anchors = (pairs.anchors(devices) * (rho / (rho + ridge))).astype(state.info.dtype)
        return [Train(Work(solver="exact"), anchor=anchor, rho=rho + ridge, rows="train") for anchor in anchors]

    def hear(self, state: FusionPathState, answers: dict[int, Floats]) -> Residuals:
        return state.path.update(answers)

    def take(self, state: FusionPathState) -> str:
        path, who = state.path, state.trusted
        path.read(who)
        return self.name if path.raise_lambda(who) else end_path(state)


def end_path(state: FusionPathState) -> str:
    """Propose the groupings read off the path and cut its tree, or take the most probable cut."""
    who, path = state.trusted, state.path
    if state.simulable is not None:
        return fusion_tree.group_by_evidence(state, state.simulable, path.lengths)
    for labels in path.best_readings():
        state.propose(labels)
    state.tree = Tree.linked(path.lengths[np.ix_(who, who)], who)
    return CutPath.name


class CutPath(CutTree):
    """Devices evaluate their own model and those of the groups above; the path's tree is cut where that is best."""

    name = "cut path"

    def ask(self, state: FusionTreeState, devices: Ints) -> list[Task]:
        own, weights = state.estimates[COMMON_RIDGE], state.info.counts["train"]
        above = state.tree.merged_models(own, weights, devices)
        models = [np.vstack([own[i], merged]) for i, merged in zip(devices, above, strict=True)]
        return [EvaluateModels(each.astype(state.info.dtype)) for each in models]

    def take(self, state: FusionTreeState) -> str:
        self.cut(state)
        return state.select()


def begin_fits(state: FusionPathState) -> str:
    """Return the first step that fits models: halves tell signal from noise where sufficient statistics do not."""
    return FitHalf.name if state.simulable is None else FitRidge.name


def at_lambda(inner: FPFC, lam: float) -> FPFC:
    """Return FPFC with this lambda; its smoothing may not be wider."""
    return replace(inner, lam=lam, xi=min(inner.xi, MAX_XI_RATIO * lam))


@dataclass(frozen=True)
class FusionPath(StepMethod[FusionPathState]):
    """Find the groups by FPFC (``inner``) along a path of lambdas, and train one model for each."""

    name: ClassVar[str] = "fusion-path"
    inner: FPFC = field(default_factory=FPFC)

    def steps(self) -> dict[str, Step[Any]]:
        refit = refit_steps(self.robust, begin_fits, fusion_tree.after_fit)
        proposing = (FitHalf(), FitOwn(self.inner), FusePairs(self.inner), CutPath(), fusion_tree.CompareCandidates())
        checking = (fusion_tree.CheckGroups(), fusion_tree.CheckGradients())
        return by_name(*refit[:2], RescaleForPath(begin_fits), *proposing, refit[3], *checking, *refit[4:])

    def current(self, state: FusionPathState) -> Outcome:
        if state.step != FusePairs.name:
            return super().current(state)
        unscaled = [state.info.model.unscaled(w, state.shift, state.scale) for w in state.path.fusion.models]
        return Outcome(
            np.stack(unscaled), state.path.readings[-1], state.path.lam, suspects=np.flatnonzero(state.suspects)
        )

    def describe(self, state: FusionPathState) -> dict[str, Any]:
        return {"lam": state.path.lam} if state.step == FusePairs.name else {}

    def outcome(self, state: FusionPathState) -> Outcome:
        return state.path.complete(super().outcome(state)._replace(kept=state.scales() | state.models_without()))

    def first_state(self, info: FederationInfo, previous: Outcome | None) -> FusionPathState:
        if info.m > MAX_DEVICES:
            raise FedfuseError(
                f"the fusion path compares all pairs of {info.m:,} devices at once, and works up to {MAX_DEVICES:,}: "
                "give a lambda, or use the method fusion-tree"
            )
        if not sends_statistics(info):
            fusion_tree.require_validation(info)
        return FusionPathState(info, np.arange(info.m), previous, inner=self.inner)
