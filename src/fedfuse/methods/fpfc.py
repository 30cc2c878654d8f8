"""FPFC and FPFC-l1: fusion penalised federated clustering.

X. Yu, Z. Liu, W. Wang, Y. Sun: Clustered Federated Learning based on Nonconvex Pairwise Fusion (Algorithm 2).

    server: sends zeta_i to each active device i
    device: omega_i <- T local steps on f_i(w) + rho/2 ||w - zeta_i||^2, from its last omega_i; sends omega_i
    server: for every pair with an active device: delta, theta, v; for all devices: zeta

The pair state and its update are `fusion.FusionState`. Where Algorithm 1 of the paper says "i, j in A_k" and
Algorithm 2 says "or", we follow the latter. Devices start at zero instead of at one N(0, 1) draw unless told
otherwise: on convex models far fewer rounds are needed.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from fedfuse.clusters import cluster_means, components
from fedfuse.errors import FedfuseError
from fedfuse.fusion import FusionState, Residuals
from fedfuse.methods.auto import AutoFPFC
from fedfuse.methods.base import Arrays, Found, Method, World
from fedfuse.methods.refit import Refit
from fedfuse.penalties import L1, Penalty, SmoothedSCAD
from fedfuse.tasks import Install, Task, Train
from fedfuse.types import Floats, Ints


@dataclass(frozen=True)
class PairwiseFusion(Method[FusionState]):
    """What FPFC and FPFC-l1 share.

    Parameters
    ----------
    lam
        Strength of the penalty; 0 is local training. ``"auto"`` finds the groups without it (`methods.auto`).
    refit
        Train each cluster's model anew once the clusters are found (`methods.refit`), instead of keeping FPFC's own
        estimates, which are biased by the penalty.
    rho
        Weight of the proximal term.
    nu
        Devices with ``||theta_ij|| <= nu`` are joined. Default: 0.5, the upper end of the paper's range, or
        three quarters of a smaller lambda, where the penalty still pulls with its full slope.
    """

    lam: float | Literal["auto"] = "auto"
    refit: bool = True
    rho: float = 1.0
    nu: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.lam, str) and self.lam != "auto":
            raise FedfuseError(f"lam must be a number or 'auto', got {self.lam!r}")
        if self.lam != "auto":
            self.penalty.check(self.rho)
        if self.nu is not None and not 0 < self.nu < np.inf:
            raise FedfuseError(f"nu must be a positive number, got {self.nu:g}")

    @property
    @abstractmethod
    def penalty(self) -> Penalty:
        """The penalty on pairwise distances."""

    @property
    def plan(self) -> tuple[Method[Any], ...]:
        own = replace(self, refit=False)
        if self.lam != "auto":
            return (own, Refit()) if self.refit else (own,)
        found = AutoFPFC(a=self.reach, refit=self.refit)
        return (found,) if self.refit else (found, own)

    @property
    def reach(self) -> float:
        """How far apart groups must be to be left alone, in units of lambda."""
        return 3.7

    @property
    def strength(self) -> float:
        """Lambda as a number."""
        if self.lam == "auto":
            raise FedfuseError("lambda is still to be found: run the method's plan")
        return float(self.lam)

    @property
    def threshold(self) -> float:
        """Devices whose theta is at most this long are joined."""
        return min(0.5, 0.75 * self.strength) if self.nu is None else self.nu

    def begin(self, world: World, before: Found | None = None) -> FusionState:
        if before is not None:  # from models that differ: no pull to their mean
            return FusionState(before.models, self.penalty, self.rho, warm=True, dtype=world.dtype)
        omega = np.tile(world.initial(self.start), (world.m, 1))
        return FusionState(omega, self.penalty, self.rho, dtype=world.dtype)

    def opening(self, state: FusionState) -> dict[int, Task]:
        return {i: Install(omega) for i, omega in enumerate(state.omega)}

    def tasks(self, state: FusionState, devices: Ints, k: int) -> list[Task]:
        work = self.work.at(k)
        # without a penalty zeta_i is omega_i, and not only up to rounding: nobody must feel the others
        anchors = state.anchors(devices) if self.lam else state.omega[devices]
        return [Train(work, anchor=zeta, rho=self.rho, rows=self.rows) for zeta in anchors]

    def update(self, state: FusionState, devices: Ints, values: list[Floats]) -> Residuals | None:
        return state.absorb(devices, np.stack(values)) if values else None

    def models(self, state: FusionState) -> Floats:
        return state.omega

    def labels(self, state: FusionState) -> Ints:
        return components(state.norms(), self.threshold)

    def final(self, state: FusionState, world: World) -> Found:
        labels = self.labels(state)
        return Found(cluster_means(state.omega, labels, world.counts[self.rows])[labels], labels, self.strength)

    def pack(self, state: FusionState) -> Arrays:
        return state.pack()

    def unpack(self, arrays: Arrays, world: World) -> FusionState:
        return FusionState.unpack(arrays, self.penalty)

    def describe(self, state: FusionState) -> dict[str, Any]:
        return {"lam": self.lam}


@dataclass(frozen=True)
class FPFC(PairwiseFusion):
    """FPFC with the smoothed SCAD penalty: ``a`` is its reach in units of lambda, ``xi`` its smoothing width.

    >>> FPFC(lam=0.6).penalty
    SmoothedSCAD(lam=0.6, a=3.7, xi=0.0001)
    """

    name: ClassVar[str] = "fpfc"
    a: float = 3.7
    xi: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam == "auto":  # all the rest can be looked at before lambda is found
            SmoothedSCAD(2 * self.xi if 0 < self.xi < np.inf else 1.0, self.a, self.xi).check(self.rho)

    def given(self, lam: float | None) -> Method[Any]:
        if self.lam != "auto":
            return self
        # a lambda that was found may be of any size
        return replace(self, lam=lam or 0.0, xi=min(self.xi, lam / 10) if lam else self.xi)

    @property
    def reach(self) -> float:
        return self.a

    @property
    def penalty(self) -> Penalty:
        return SmoothedSCAD(self.strength, self.a, self.xi)


@dataclass(frozen=True)
class FPFCL1(PairwiseFusion):
    """FPFC-l1: the same with the convex l1 penalty, which also pulls on devices of other clusters."""

    name: ClassVar[str] = "fpfc-l1"
    lam: float | Literal["auto"] = 0.2

    def __post_init__(self) -> None:
        if self.lam == "auto":
            raise FedfuseError("fpfc-l1 has no lam='auto': its groups depend on lambda; give a number")
        super().__post_init__()

    @property
    def penalty(self) -> Penalty:
        return L1(self.strength)
