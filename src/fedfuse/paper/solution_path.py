"""Solution paths: how estimates meet as lambda grows, for any penalty (the paper's Figure 1).

The iteration is FPFC's (`FusionState`) with exact estimates and all devices in each round. Each lambda starts where the
last one ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fedfuse.core.partitions import adjusted_rand
from fedfuse.core.penalties import PENALTIES
from fedfuse.pairs.state import FusionState
from fedfuse.utils.typing import Floats, Ints

FIGURE_1 = {"l2": 0.6, "l1": 0.12, "scad": 0.6, "smoothed-scad": 0.6}  # Penalties, and the end of their grid.
RHO = 1.0  # Weight of the proximal terms of the iteration.
MAX_ROUNDS = 2000  # For each lambda.


class Quadratics(NamedTuple):
    """Devices with the loss ``curvature_i / 2 ||w - centres_i||^2``; ``truth`` are their true groups, where known."""

    centres: Floats
    curvature: Floats
    truth: Ints | None = None


@dataclass(frozen=True)
class SolutionPath:
    """The devices' estimates along increasing lambda."""

    penalty: str
    grid: Floats
    estimates: Floats  # lambdas x devices x parameters
    labels: Ints  # lambdas x devices
    truth: Ints | None = None

    @property
    def n_clusters(self) -> Ints:
        """The number of groups for each lambda."""
        return np.asarray(self.labels.max(axis=1) + 1)

    @property
    def ari(self) -> Floats:
        """Agreement with the truth for each lambda."""
        return np.array([adjusted_rand(self.truth, labels) for labels in self.labels], dtype=float)

    def spans(self) -> list[tuple[int, float, float]]:
        """Return (number of groups, first lambda, last lambda) for each stretch with a constant number of groups."""
        edges = np.flatnonzero(np.diff(self.n_clusters)) + 1
        pieces = np.split(np.arange(len(self.grid)), edges)
        return [(int(self.n_clusters[p[0]]), float(self.grid[p[0]]), float(self.grid[p[-1]])) for p in pieces]


def solution_path(data: Quadratics, penalty: str, grid: Sequence[float] | Floats, tol: float = 1e-5) -> SolutionPath:
    """Follow the devices' estimates along increasing lambda; ``tol`` is the residual at which each lambda is left.

    >>> data = Quadratics(np.array([[-1.1], [-0.9], [1.0], [1.2]]), np.ones(4))
    >>> path = solution_path(data, "scad", [0, 0.2, 0.4])
    >>> path.n_clusters.tolist(), path.labels[-1].tolist()
    ([4, 4, 2], [0, 0, 1, 1])
    """
    kind, everyone, h = PENALTIES[penalty], np.arange(len(data.centres)), data.curvature[:, None]
    state = FusionState(data.centres, kind(0.0), RHO, warm=True, dtype=np.float64)
    estimates, labels = [], []
    for lam in grid:
        state.penalty = kind(float(lam))
        for _ in range(MAX_ROUNDS if lam else 0):
            minimisers = (h * data.centres + RHO * state.anchors(everyone)) / (h + RHO)
            if state.update(everyone, minimisers).largest <= tol:
                break
        estimates.append(state.omega.copy())
        # Below the width of a smoothed kink, theta is as good as zero.
        labels.append(state.labels(1.01 * float(getattr(state.penalty, "xi", 0.0)) if lam else 0.0))
    return SolutionPath(penalty, np.array(grid), np.array(estimates), np.array(labels), data.truth)


def toy(m: int = 50, n: int = 100, noise: float = 4.0, seed: int = 1) -> Quadratics:
    """Return the paper's toy example (Figure 1, after Ma and Huang, 2017): two groups with true values -1 and 1.

    Device i has n rows ``y = w_i x + noise`` and the loss ``mean (y - w x)^2 / m``, as Ma and Huang have no 1/m before
    the penalty. The noise is chosen so that SCAD fuses each group at about lambda = 0.4, as in the paper. (With the
    seeds 0 to 3, three find the true groups.)
    """
    rng = np.random.default_rng(seed)
    truth = np.repeat([0, 1], [m - m // 2, m // 2])
    x = rng.normal(size=(m, n))
    y = np.array([-1.0, 1.0])[truth][:, None] * x + noise * rng.normal(size=(m, n))
    squares = np.square(x).sum(axis=1)
    centres = (x * y).sum(axis=1) / squares
    return Quadratics(centres[:, None], 2 * squares / n / m, truth)


def figure_1(points: int = 41) -> list[SolutionPath]:
    """Return the four paths of the paper's Figure 1: squared l2, l1, SCAD and smoothed SCAD on the toy example."""
    data = toy()
    return [solution_path(data, name, np.linspace(0, end, points), tol=1e-4) for name, end in FIGURE_1.items()]
