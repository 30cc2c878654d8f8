"""EdgeState: the pair state on a graph of nearest neighbours, for more devices than all their pairs have memory for.

Formulas are those of `pairs.state`, for the edges of a graph alone; pairs without an edge do not feel each other:

    delta_ij <- omega_i - omega_j + (1 - s_ij) delta_ij,  s_ij <- shrink(||delta_ij||)
    zeta_i    = omega_i + sum_j c_ij [(2 s_ij - 1) delta_ij - (omega_i - omega_j)] / (1 + sum_j c_ij)

The weights c are 1, so an anchor is a mean over a device and its neighbours: lambda means what it does with all pairs,
and with m - 1 neighbours the iterates are the same. They minimise sum_i (1 + k_i) f_i(omega_i) + sum_edges g, where k_i
is the degree. Memory is O(m k d): one vector and one number per edge.

Where all devices start with one model, a device has no edges, and is its own anchor, until it has moved: nothing is
known of its neighbours. The graph is built anew when more devices have moved, and when many edges have stretched to
twice their length, since then other devices are near. Edges that remain keep their state; new ones start without a
pull.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.core.penalties import Penalty
from fedfuse.errors import FedfuseError
from fedfuse.pairs.neighbour_graph import Edges, check_graph, neighbour_edges
from fedfuse.pairs.numpy_state import row_squares
from fedfuse.pairs.state import FusionState, check_devices
from fedfuse.utils.jit import Kernels
from fedfuse.utils.threads import spread
from fedfuse.utils.typing import Bools, Floats, Ints

# Share of the edges that must have stretched for other neighbours to be looked for: to so many times their first
# length, and beyond this share of the standard deviation of all models.
MAX_STRETCHED_SHARE, MAX_STRETCH_RATIO, MIN_STRETCHED_LENGTH = 0.1, 2.0, 0.25
# Share of the devices that must have moved first since then.
MAX_LACKING_SHARE = 0.1
# Edges or devices of one job of a thread.
JOB_SIZE = 1 << 14
# Work for each number of an edge, in the units of `spread`: memory is slower than arithmetic.
WORK_PER_NUMBER = 4.0

_kernels = Kernels("fedfuse.pairs.edge_kernels")


class EdgeState(FusionState):
    """Parameters ``omega`` (m x d) and the state of the edges between neighbours; see `FusionState`.

    Parameters
    ----------
    graph
        ``"knn:10"``: edges from every device to the ten whose models are nearest.
    """

    def __init__(
        self, omega: npt.ArrayLike, penalty: Penalty, rho: float = 1.0, *, warm: bool = False,
        dtype: npt.DTypeLike = np.float32, graph: str = "knn:10", **_: Any,
    ) -> None:  # fmt: skip
        self.omega: Floats = np.array(omega, dtype=dtype, order="C")
        self._rho, self.penalty = rho, penalty
        self.k = check_graph(graph) or self.m
        self.start = self.omega[:1].copy() if (self.omega == self.omega[:1]).all() else self.omega[:0]
        edges = self._neighbours()
        self._set_edges(edges, np.ones(edges.lo.size, dtype), None if warm or not self._complete else 0.0)

    @property
    def _complete(self) -> bool:
        """Whether all pairs have an edge."""
        return self.k >= self.m - 1

    def _known(self) -> Bools:
        """Return which devices have neighbours: those that have moved from a common start."""
        started = (self.omega == self.start).all(axis=1) if len(self.start) else np.zeros(self.m, np.bool_)
        return np.asarray(~started | self._complete)

    def _neighbours(self) -> Edges:
        known = np.flatnonzero(self._known())
        lo, hi = neighbour_edges(self.omega[known], self.k)
        return Edges(known[lo], known[hi])

    def _set_edges(self, edges: Edges, s: Floats, delta: Floats | float | None = None) -> None:
        """Take this graph, by default with edges that do not pull: delta = omega_i - omega_j."""
        self.edges, self.s = edges, s
        lo, hi = edges
        gaps = self.omega[lo] - self.omega[hi]
        self.built: Floats = np.sqrt(row_squares(gaps))
        if delta is not None:
            gaps[:] = delta
        self.delta = gaps
        self.weights: Floats = np.ones(lo.size, self.omega.dtype)
        self._index()

    def _index(self) -> None:
        """Find the edges of each device: those to higher ones follow each other, those to lower ones are listed."""
        lo, hi = self.edges
        self._forward, starts = (np.searchsorted(np.sort(ends), np.arange(self.m + 1)) for ends in (lo, hi))
        # Passes are bound by memory, so that half as wide numbers are read faster.
        self._ends = lo.astype(np.int32), hi.astype(np.int32)
        self._back = starts, np.argsort(hi, kind="stable").astype(np.int32)
        degrees = [np.bincount(ends, self.weights, self.m).astype(np.float64) for ends in self.edges]
        self.masses: Floats = 1 + degrees[0] + degrees[1]  # what the sums over edges are divided by

    @property
    def far(self) -> Bools:
        """Which edges are beyond the penalty's reach."""
        return np.asarray(self.s == 1)

    @property
    def nbytes(self) -> int:
        return sum(
            each.nbytes
            for each in (self.delta, self.s, self.weights, *self.edges, *self._ends, *self._back, self._forward)
        )

    # -- one round

    def _update_squares(self, active: Ints, new: Floats) -> tuple[float, float, float, float]:
        check_devices(active, self.m, once=True)
        moved = row_squares(new - self.omega[active]).sum()
        before = self._known()
        self.omega[active] = new
        if not self._complete and self._outdated(before):
            self.renew()
        flags = np.zeros(self.m, np.bool_)
        flags[active] = True
        primal, dual, self._touched_edges = self.update_edges(flags)
        return float(moved), float(row_squares(self.omega).sum()), primal, dual

    def _touched(self, active: Ints) -> int:
        return self._touched_edges

    def update_edges(self, moved: Bools) -> tuple[float, float, int]:
        """Update the edges of devices that have moved; return squared primal and dual residuals and their number."""
        bounds = np.append(np.arange(0, self.s.size, JOB_SIZE), self.s.size)
        squares = np.zeros((bounds.size - 1, 3))
        edges = (*self._ends, self.delta, self.s)

        def run(jobs: Ints) -> None:
            _kernels.update_edges(edges, self.omega, moved, self._pieces, bounds, squares, jobs)

        spread(run, WORK_PER_NUMBER * self.d * np.diff(bounds).astype(np.float64))
        primal, dual, touched = squares.sum(axis=0).tolist()
        return primal, dual, int(touched)

    def _anchors(self, index: Ints) -> Floats:
        out = np.empty((index.size, self.d))
        bounds = np.append(np.arange(0, index.size, JOB_SIZE), index.size)
        edges = (*self._ends, self.delta, self.s)

        def run(jobs: Ints) -> None:
            _kernels.pulls(edges, self.omega, self.weights, self._forward, self._back, index, bounds, out, jobs)

        spread(run, WORK_PER_NUMBER * self.d * 2 * self.s.size / self.m * np.diff(bounds))
        out /= self.masses[index, None]
        out += self.omega[index]
        return np.asarray(out.astype(self.omega.dtype))

    def _outdated(self, before: Bools) -> bool:
        """Return whether devices lack edges, or many edges are much longer than when they were made."""
        known = self._known()
        lacking = known & (self.masses == 1)
        # Few that have moved first wait for more, as long as there are more than ``before`` the round.
        if lacking.any() and (lacking.mean() > MAX_LACKING_SHARE or (known == before).all()):
            return True
        lo, hi = self.edges
        lengths = np.sqrt(row_squares(self.omega[lo] - self.omega[hi]))
        # Devices that are fused are near for certain, however their distances vary.
        spread_out = np.sqrt(self.omega.var(axis=0, dtype=np.float64).sum())
        limits = np.maximum(MAX_STRETCH_RATIO * self.built, MIN_STRETCHED_LENGTH * spread_out)
        return bool((lengths > limits).sum() > MAX_STRETCHED_SHARE * lo.size)

    def renew(self) -> None:
        """Build the graph anew from the models as they are; edges that remain keep their state."""
        (lo, hi), s, delta, m = self.edges, self.s, self.delta, self.m
        edges = self._neighbours()
        self._set_edges(edges, np.ones(edges.lo.size, s.dtype))
        _, new, old = np.intersect1d(edges.lo * m + edges.hi, lo * m + hi, assume_unique=True, return_indices=True)
        self.s[new], self.delta[new] = s[old], delta[old]

    # -- what there is to see

    def lengths(self) -> Floats:
        """Return ||theta|| of every edge."""
        return np.asarray(self.s * np.sqrt(row_squares(self.delta)))

    def heights(self) -> Floats:
        lengths = self.lengths()
        return np.sort(lengths[self.edges.spanning(lengths, self.m)])

    def norms(self) -> Floats:
        """Return ||theta_ij|| for all pairs (m x m); without an edge theta is the difference of the devices."""
        norms = self.distances()
        norms[self.edges.lo, self.edges.hi] = norms[self.edges.hi, self.edges.lo] = self.lengths()
        return norms

    def labels(self, nu: float) -> Ints:
        fused = self.lengths() <= nu
        return Edges(self.edges.lo[fused], self.edges.hi[fused]).components(self.m)

    def _oriented(self, i: int, j: int, weight: Any) -> Floats:
        lo, hi = min(i, j), max(i, j)
        e = np.flatnonzero((self.edges.lo == lo) & (self.edges.hi == hi))
        s, delta = (self.s[e[0]], self.delta[e[0]]) if e.size else (1, self.omega[lo] - self.omega[hi])
        return np.asarray(weight(s) * delta * (1 if i < j else -1))

    def admit(self, omega: npt.ArrayLike) -> Ints:
        new = np.atleast_2d(np.asarray(omega, dtype=self.omega.dtype))
        if new.shape[1] != self.d:
            raise FedfuseError(f"a newcomer needs {self.d} parameters, got {new.shape[1]}")
        before = self.m
        self.k += len(new) * self._complete  # all pairs remain all pairs
        self.omega = np.concatenate([self.omega, new])
        self.renew()
        return np.arange(before, self.m)

    # -- saved and loaded

    def pack(self) -> dict[str, npt.NDArray[Any]]:
        ends = {"lo": self.edges.lo, "hi": self.edges.hi, "built": self.built, "start": self.start}
        numbers = {"omega": self.omega, "rho": np.float64(self.rho)[None], "k": np.int64(self.k)[None]}
        return {"delta": self.delta, "s": self.s, **ends, **numbers}

    @classmethod
    def unpack(cls, arrays: dict[str, npt.NDArray[Any]], penalty: Penalty, **_: Any) -> FusionState:
        state = object.__new__(cls)
        lo, hi, delta, s, omega = (arrays[name] for name in ("lo", "hi", "delta", "s", "omega"))
        if delta.shape != (s.size, omega.shape[1]) or lo.shape != s.shape or hi.shape != s.shape:
            raise FedfuseError("the arrays of this fusion state do not fit each other")
        state.start = arrays["start"].copy()
        state.omega, state._rho, state.k = omega.copy(), float(arrays["rho"][0]), int(arrays["k"][0])
        state.penalty = penalty
        state._set_edges(Edges(lo, hi), s.copy(), delta)
        state.built = arrays["built"].copy()
        return state
