"""FPFC and FPFC-l1: fusion penalised federated clustering.

X. Yu, Z. Liu, W. Wang, Y. Sun: Clustered Federated Learning based on Nonconvex Pairwise Fusion (Algorithm 2, and 3
where replies are taken one at a time).

    server: sends zeta_i to each active device i
    device: omega_i <- T local steps on f_i(w) + rho/2 ||w - zeta_i||^2, from its last omega_i; sends omega_i
    server: for every pair with an active device: delta, theta, v; for all devices: zeta

The pair state and its update are `pairs.state.FusionState`. Where Algorithm 1 of the paper says "i, j in A_k" and
Algorithm 2 says "or", we follow the latter. Devices start at zero instead of at one N(0, 1) draw unless told
otherwise: on convex models far fewer rounds are needed.

Of a model with shared weights only the last part is fused. The rest goes along with zeta_i and omega_i, and becomes the
mean over the active devices, weighted by their rows; a device that is active next gets it. The penalty keeps liars away
from the fused part of others, but not from this mean, so devices that move much further than is usual are not in it: a
device that lies about its fused part gets a false anchor, and its shared part explodes there.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np

from fedfuse.core.partitions import Gap, group_means, widest_gap
from fedfuse.core.penalties import L1, Penalty, SmoothedSCAD
from fedfuse.core.robust_mean import MIN_USUAL_MOVE_RATIO, Robust, longest_moves, usual_length
from fedfuse.errors import FedfuseError
from fedfuse.methods.method import FederationInfo, Method, Outcome
from fedfuse.methods.mixins import AdmissionDialogue, AdmissionResult, AdmitsNewcomers, RunSummary, TakesSingleReplies
from fedfuse.methods.parameters import choice, number
from fedfuse.pairs.neighbour_graph import check_graph
from fedfuse.pairs.newcomer_pairs import NewcomerPairs
from fedfuse.pairs.state import FusionState, Residuals
from fedfuse.protocol.tasks import Install, Task, Train
from fedfuse.utils.files import Arrays
from fedfuse.utils.typing import Floats, Ints

Lambda: TypeAlias = Literal["auto", "warmup", "separate"]
# Exchanges with a newcomer; with mini-batches its parameters never come to rest.
MAX_ADMISSION_ROUNDS, MAX_ADMISSION_ROUNDS_SGD = 100, 20
# A newcomer whose parameters move less, relative to their size, has come to rest.
ADMISSION_TOLERANCE = 1e-4
# Length of theta, in units of lambda, up to which a pair counts as fused: there the penalty pulls with its full slope.
FUSED_RATIO = 0.75
# Devices from which on groups part at `FUSED_RATIO`: the lengths of all theta would not fit into memory.
MAX_GAP_DEVICES = 5000
# A mean over fewer devices, as where each reply is taken in by itself, only moves the shared part towards it.
MIN_DEVICES_FOR_A_MEAN = 5
# Which moves are usual is known when so many devices, or half of them, have been heard; until then moves are too long
# if they are this many times as long as the parameters.
MIN_DEVICES_FOR_USUAL, MAX_FIRST_MOVE_RATIO = 20, 2.0
# A device that stands alone and moves this many times further than others usually do is a suspect, ...
SUSPECT_MOVE_RATIO = 20.0
# ... if it was heard at least this often, as a share of the median.
MIN_HEARD_RATIO = 0.5
# What a saved state holds besides its pairs.
OWN_ARRAYS = ("shared", "moves", "heard", "furthest")


@dataclass
class FPFCState:
    """The pairs of what is fused, and the part of the model that all devices share (often none)."""

    info: FederationInfo

    pairs: FusionState
    shared: Floats
    weights: Ints  # rows of every device
    moves: Floats  # how far each moved when it was last heard
    heard: Ints  # how often each was heard
    furthest: Floats  # longest move of each, of the shared and the fused part (m x 2; zero where nothing is shared)
    room: dict[str, Any]  # where and how the pairs are kept

    @property
    def models(self) -> Floats:
        """Return every device's whole model."""
        omega = self.pairs.omega
        return np.hstack([np.tile(self.shared, (len(omega), 1)), omega]) if self.shared.size else omega

    def update(self, devices: Ints, models: Floats) -> Residuals:
        """Take in new models: pairs for what is fused, a robust weighted mean for what is shared."""
        shared, fused = np.split(models, [self.shared.size], axis=1)
        self.moves[devices] = np.linalg.norm(fused - self.pairs.omega[devices], axis=1)
        self.heard[devices] += 1
        if shared.size:
            self._update_shared(devices, shared)
        return self.pairs.update(devices, fused)

    def _update_shared(self, devices: Ints, values: Floats) -> None:
        """Move the shared part to the weighted mean over devices that move neither part further than is usual."""
        lengths = np.column_stack([np.linalg.norm(values - self.shared, axis=1), self.moves[devices]])
        self.furthest[devices] = np.maximum(self.furthest[devices], lengths)
        held = (lengths <= self._longest_moves()[devices]).all(axis=1)
        if held.any():
            mean = np.average(values[held], axis=0, weights=self.weights[devices[held]])
            weight = min(1.0, int(held.sum()) / min(MIN_DEVICES_FOR_A_MEAN, len(self.weights)))
            self.shared = ((1 - weight) * self.shared + weight * mean).astype(self.shared.dtype)

    def _longest_moves(self) -> Floats:
        """Return how far every device may move the shared and the fused part (m x 2) if it is honest.

        A liar is pulled to where its false parameters put its anchor, and what becomes of its shared part there is no
        measure for others, whether it explodes or stands still. As long as few devices have been heard, all of them
        may lie: then the parameters themselves say what is long.
        """
        (shared, fused), rows, few = self.furthest.T, self.weights, min(MIN_DEVICES_FOR_USUAL, len(self.weights) / 2)
        sizes = np.array([np.linalg.norm(self.shared), usual_length(np.linalg.norm(self.pairs.omega, axis=1))])
        known = fused > 0
        fused_limits = longest_moves(rows, fused[known], rows[known], sizes[1])
        held = known & (fused <= fused_limits)
        limits = np.column_stack([longest_moves(rows, shared[held], rows[held], sizes[0]), fused_limits])
        if known.sum() < few:
            limits = np.minimum(limits, np.where(sizes > 0, MAX_FIRST_MOVE_RATIO * sizes, np.inf))
        return limits

    def pack(self) -> Arrays:
        """Return the state as arrays: the pairs have a compact form of their own."""
        return {**self.pairs.pack(), **{name: getattr(self, name) for name in OWN_ARRAYS}}

    def filled(self, arrays: Arrays) -> FPFCState:
        """Return the state that `pack` took apart, with the penalty of this one."""
        own: dict[str, Any] = {name: arrays[name] for name in OWN_ARRAYS}
        for name, fresh in {**{name: getattr(self, name) for name in own}, "omega": self.pairs.omega}.items():
            if arrays[name].shape != fresh.shape or arrays[name].dtype.kind != fresh.dtype.kind:
                raise FedfuseError(f"the checkpoint is damaged: {name} is of {arrays[name].shape} {arrays[name].dtype}")
        rest = {name: array for name, array in arrays.items() if name not in own}
        return replace(self, pairs=FusionState.unpack(rest, self.pairs.penalty, **self.room), **own)


def restless_devices(state: FPFCState, labels: Ints) -> Ints:
    """Return the devices that stand alone and still move much further than those in groups: they seem to lie.

    The penalty has no hold on them, nor they on others, so nothing else comes of it. Who was heard much less often
    than others, as slow devices are where there is a deadline, has had no time to come to rest: of these nothing is
    said, nor are others measured by them.
    """
    alone = np.bincount(labels)[labels] == 1
    if not state.heard.any():
        return np.empty(0, np.int64)
    known = state.heard >= max(1.0, MIN_HEARD_RATIO * np.median(state.heard[state.heard > 0]))
    # where all are alone, most may lie: then the calm ones say what is usual
    crowd, share = (known, 0.25) if alone[known].all() else (known & ~alone, 0.5)
    if not crowd.any():  # nobody to measure by
        return np.empty(0, np.int64)
    sizes = np.linalg.norm(state.pairs.omega[crowd], axis=1)
    usual = max(np.quantile(state.moves[crowd], share), MIN_USUAL_MOVE_RATIO * np.quantile(sizes, share))
    return np.flatnonzero(known & alone & (state.moves > SUSPECT_MOVE_RATIO * usual))


@dataclass(frozen=True)
class BaseFPFC(Method[FPFCState], TakesSingleReplies, AdmitsNewcomers):
    """What FPFC and FPFC-l1 share.

    Parameters
    ----------
    lam
        Strength of the penalty; 0 is local training. ``"auto"`` goes along a path of lambdas, and refits the groups
        found on it (`grouping.fusion_path`). ``"warmup"`` and ``"separate"`` choose lambda on validation rows as the
        paper does (`grouping.lambda_path`).
    grid
        Lambdas to choose from, in increasing order; none: from the distances between devices' own models.
    refit
        Train each group's model anew once the groups are found (`grouping.refit`), instead of keeping FPFC's own
        estimates, which are biased by the penalty.
    personal
        With ``lam="auto"``: whether devices may also have models of their own, drawn to their group's, where these
        predict better (`grouping.personal`).
    rho
        Weight of the proximal term.
    nu
        Devices with ``||theta_ij|| <= nu`` are joined. Default: the middle of the widest gap in the single-linkage
        heights of ||theta||, which must be very wide below three quarters of lambda, where the penalty pulls with its
        full slope.
    robust
        Whom to believe where groups are refitted, and how to pool them: see `grouping.refit`.
    graph
        Fuse every device with its nearest neighbours alone, ``"knn:10"`` for ten, where there are too many for all
        pairs: memory then grows with the number of devices, not with its square.
    actors
        Spread the server's vectors of pairs over so many actors of a Ray cluster.
    """

    lam: float | Lambda = "auto"
    grid: tuple[float, ...] = ()
    refit: bool = False
    personal: bool = True
    rho: float = 1.0
    nu: float | None = number(None, above=0)
    robust: Robust = choice("screen", Robust)
    graph: str | None = None
    actors: int | None = number(None, least=1, whole=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "grid", tuple(float(lam) for lam in self.grid))
        if self.has_lambda:
            self.penalty.check(self.rho)
        elif self.lam not in get_args(Lambda):
            raise FedfuseError(f"lam must be a number, 'auto', 'warmup' or 'separate', got {self.lam!r}")
        check_graph(self.graph)

    @property
    @abstractmethod
    def penalty(self) -> Penalty:
        """The penalty on pairwise distances."""

    @property
    def has_lambda(self) -> bool:
        """Whether lambda is a number."""
        return isinstance(self.lam, Real)

    @property
    def takes_single_replies(self) -> bool:  # type: ignore[override]
        """Whether it can be trained asynchronously: with a given lambda."""
        return self.has_lambda

    @property
    def refits(self) -> bool:
        """Whether groups are refitted in the end."""
        return self.refit or self.lam == "auto"

    @property
    def reach(self) -> float:
        """How far apart groups must be to be left alone, in units of lambda."""
        return 3.7

    @property
    def strength(self) -> float:
        """Lambda as a number."""
        if not self.has_lambda:
            raise FedfuseError(f"lambda is still to be found (lam={self.lam!r})")
        return float(self.lam)

    def gap(self, pairs: FusionState) -> Gap:
        """Return where groups part: at nu, or where the lengths of theta have their widest gap."""
        if self.nu is not None:
            return Gap(self.nu, self.nu)
        fused = FUSED_RATIO * self.strength
        if not fused or (pairs.m > MAX_GAP_DEVICES and self.graph is None):
            return Gap(fused, fused)
        return widest_gap(pairs.heights(), fused, self.penalty.reach)

    def init(self, info: FederationInfo, previous: Outcome | None = None) -> FPFCState:
        models = np.tile(info.initial(self.start), (info.m, 1)) if previous is None else previous.models
        weights, cut = info.counts[self.rows], info.model.fused.start
        shared = np.average(models[:, :cut], axis=0, weights=weights) if cut else models[0, :0]
        room: dict[str, Any] = {"graph": self.graph, "actors": self.actors}
        warm = previous is not None  # Models that differ are not pulled to their mean.
        pairs = FusionState(models[:, cut:], self.penalty, self.rho, warm=warm, dtype=info.dtype, **room)
        moves, heard, furthest = np.zeros(info.m), np.zeros(info.m, np.int64), np.zeros((info.m, 2))
        return FPFCState(info, pairs, shared.astype(info.dtype), weights, moves, heard, furthest, room)

    def opening(self, state: FPFCState) -> dict[int, Task]:
        return {i: Install(w) for i, w in enumerate(state.models)}

    def tasks(self, state: FPFCState, devices: Ints, k: int) -> list[Task]:
        work, pairs = self.work.at(k), state.pairs
        # without a penalty zeta_i is omega_i, and not only up to rounding: nobody must feel the others
        anchors = pairs.anchors(devices) if self.lam else pairs.omega[devices]
        trunk: dict[str, Any] = {"start": state.shared, "into": "shared"} if state.shared.size else {}
        return [Train(work, anchor=zeta, rho=self.rho, rows=self.rows, **trunk) for zeta in anchors]

    def update(self, state: FPFCState, devices: Ints, values: list[Floats]) -> Residuals | None:
        return state.update(devices, np.stack(values)) if values else None

    def current(self, state: FPFCState) -> Outcome:
        return Outcome(state.models, state.pairs.labels(self.gap(state.pairs).nu))

    def outcome(self, state: FPFCState) -> Outcome:
        gap = self.gap(state.pairs)
        labels = state.pairs.labels(gap.nu)
        models = group_means(state.models, labels, state.weights)[labels]
        suspects, kept = restless_devices(state, labels), {"gap": np.array(gap)}
        return Outcome(models, labels, self.strength, kept=kept, suspects=suspects)

    def admit(self, known: RunSummary, info: FederationInfo, device: int) -> AdmissionDialogue:
        """Let a newcomer meet all old devices, whose parameters stay as they are (the paper's section 6.4.2).

        First it trains alone; then server and newcomer take turns as in training, until its parameters rest. It is of
        the group whose devices it has been fused with, and takes their model.
        """
        work, rows, cut = self.work, self.rows, info.model.fused.start
        shared = known.models[0, :cut]
        w = yield Train(work.at(0), start=np.concatenate([shared, info.initial(self.start)[cut:]]), rows=rows)
        guest = NewcomerPairs(known.models[:, cut:], w[cut:], self.penalty, self.rho)
        for k in range(MAX_ADMISSION_ROUNDS_SGD if work.batch else MAX_ADMISSION_ROUNDS):
            w = yield Train(work.at(k + 1), anchor=guest.anchor(), rho=self.rho, rows=rows)
            if guest.update(w[cut:]) <= ADMISSION_TOLERANCE:
                break
        near = guest.norms()
        nearest = int(near.argmin())
        fused = FUSED_RATIO * self.strength
        if near[nearest] > Gap(*known.kept.get("gap", (fused, fused))).nu:
            return AdmissionResult(w)
        return AdmissionResult(known.models[nearest], int(known.labels[nearest]))

    def describe(self, state: FPFCState) -> dict[str, Any]:
        return {"lam": self.lam}


@dataclass(frozen=True)
class FPFC(BaseFPFC):
    """FPFC with the smoothed SCAD penalty.

    Parameters
    ----------
    a
        Reach of the penalty in units of lambda: pairs further apart are left alone.
    xi
        Width of the penalty's smoothing around 0, less than lambda.

    Examples
    --------
    >>> FPFC(lam=0.6).penalty
    SmoothedSCAD(lam=0.6, a=3.7, xi=0.0001)
    """

    name: ClassVar[str] = "fpfc"
    a: float = 3.7
    xi: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.has_lambda:  # all the rest can be looked at before lambda is found
            SmoothedSCAD(2 * self.xi if 0 < self.xi < np.inf else 1.0, self.a, self.xi).check(self.rho)

    @property
    def reach(self) -> float:
        return self.a

    @property
    def penalty(self) -> Penalty:
        return SmoothedSCAD(self.strength, self.a, self.xi)


@dataclass(frozen=True)
class FPFCL1(BaseFPFC):
    """FPFC-l1: the same with the convex l1 penalty, which also pulls on devices of other groups."""

    name: ClassVar[str] = "fpfc-l1"
    lam: float | Lambda = 0.2

    def __post_init__(self) -> None:
        if self.lam == "auto":
            raise FedfuseError("fpfc-l1 has no lam='auto': its groups depend on lambda; give a number")
        super().__post_init__()

    @property
    def penalty(self) -> Penalty:
        return L1(self.strength)
