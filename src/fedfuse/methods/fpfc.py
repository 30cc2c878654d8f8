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
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedfuse.clusters import cluster_means, components
from fedfuse.errors import FedfuseError
from fedfuse.fusion import FusionState, Residuals
from fedfuse.methods.base import Arrays, Method, World
from fedfuse.penalties import L1, Penalty, SmoothedSCAD
from fedfuse.tasks import Install, Task, Train
from fedfuse.types import Floats, Ints


@dataclass(frozen=True)
class PairwiseFusion(Method[FusionState]):
    """What FPFC and FPFC-l1 share.

    Parameters
    ----------
    lam
        Strength of the penalty; 0 is local training.
    rho
        Weight of the proximal term.
    nu
        Devices with ``||theta_ij|| <= nu`` are joined. Default: 0.5, the upper end of the paper's range, or
        three quarters of a smaller lambda, where the penalty still pulls with its full slope.
    """

    lam: float = 0.6
    rho: float = 1.0
    nu: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.penalty.check(self.rho)
        if self.nu is not None and not 0 < self.nu < np.inf:
            raise FedfuseError(f"nu must be a positive number, got {self.nu:g}")

    @property
    @abstractmethod
    def penalty(self) -> Penalty:
        """The penalty on pairwise distances."""

    @property
    def threshold(self) -> float:
        """Devices whose theta is at most this long are joined."""
        return min(0.5, 0.75 * self.lam) if self.nu is None else self.nu

    def begin(self, world: World) -> FusionState:
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

    def final(self, state: FusionState, world: World) -> tuple[Floats, Ints]:
        labels = self.labels(state)
        return cluster_means(state.omega, labels, world.counts)[labels], labels

    def pack(self, state: FusionState) -> Arrays:
        return state.pack()

    def unpack(self, arrays: Arrays) -> FusionState:
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

    @property
    def penalty(self) -> Penalty:
        return SmoothedSCAD(self.lam, self.a, self.xi)


@dataclass(frozen=True)
class FPFCL1(PairwiseFusion):
    """FPFC-l1: the same with the convex l1 penalty, which also pulls on devices of other clusters."""

    name: ClassVar[str] = "fpfc-l1"

    @property
    def penalty(self) -> Penalty:
        return L1(self.lam)
