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

Vectors of edges are in one part, or in several on the actors of a Ray cluster (`pairs.edge_parts`); models and ends of
edges are here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.core.penalties import Penalty
from fedfuse.errors import FedfuseError
from fedfuse.pairs.edge_parts import LocalParts, RayParts
from fedfuse.pairs.layout import row_squares
from fedfuse.pairs.neighbour_graph import Edges, check_graph, neighbour_edges
from fedfuse.pairs.state import FusionState, check_devices
from fedfuse.utils.typing import Bools, Floats, Ints

# Share of the edges that must have stretched for other neighbours to be looked for: to so many times their first
# length, and beyond this share of the standard deviation of all models.
MAX_STRETCHED_SHARE, MAX_STRETCH_RATIO, MIN_STRETCHED_LENGTH = 0.1, 2.0, 0.25
# Share of the devices that must have moved first since then.
MAX_LACKING_SHARE = 0.1


class EdgeState(FusionState):
    """Parameters ``omega`` (m x d) and the state of the edges between neighbours; see `FusionState`."""

    def __init__(
        self, omega: npt.ArrayLike, penalty: Penalty, rho: float = 1.0, *, warm: bool = False,
        dtype: npt.DTypeLike = np.float32, graph: str | None = None, actors: int | None = None,
    ) -> None:  # fmt: skip
        self.omega: Floats = np.array(omega, dtype=dtype, order="C")
        self._rho, self.penalty = rho, penalty
        self.k = check_graph(graph) or self.m
        self.start = self.omega[:1].copy() if (self.omega == self.omega[:1]).all() else self.omega[:0]
        self._cut(actors)
        self._set_edges(self._neighbours(), 1.0 if warm or not self._complete else 0.0)

    def _cut(self, actors: int | None) -> None:
        """Give each actor a range of devices: of about as many edges, if these join any two devices alike."""
        n = min(actors or 1, self.m)
        self._parts = RayParts(n) if actors else LocalParts(n)
        self._cuts = np.round(self.m * (1 - np.sqrt(1 - np.arange(n + 1) / n))).astype(np.int64)

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

    def _set_edges(self, edges: Edges, scale: float = 1.0) -> None:
        """Take this graph and the models as they are; new edges start at ``scale`` times their gaps (1: no pull)."""
        self.edges, self._squares = edges, row_squares(self.omega)
        degrees = [np.bincount(ends, minlength=self.m).astype(np.float64) for ends in edges]
        self.masses: Floats = 1 + degrees[0] + degrees[1]  # what the sums over edges are divided by
        self._cuts[-1] = self.m
        self._firsts = np.searchsorted(edges.lo, self._cuts)
        given = []
        for first, last in zip(self._firsts[:-1], self._firsts[1:], strict=True):
            part = Edges(edges.lo[first:last], edges.hi[first:last])
            alone = len(part.lo) == len(edges.lo)
            devices = np.arange(self.m) if alone else np.unique(np.concatenate(part))
            given.append((part, devices, self.omega if alone else self.omega[devices], scale))
        self._at_ends = [devices for _, devices, _, _ in given]
        self._parts.each("set_edges", given)

    def _every(self, name: str, *arguments: Any) -> list[Any]:
        """Call this method of every part."""
        return self._parts.each(name, [arguments] * (len(self._cuts) - 1))

    def _places(self, devices: Ints) -> list[tuple[Ints, Ints]]:
        """Return for each part which of these are at the ends of its edges, and their places there."""
        found = []
        for known in self._at_ends:
            places = np.searchsorted(known, devices)
            which = np.flatnonzero(np.append(known, -1)[places] == devices)
            found.append((which, places[which]))
        return found

    @property
    def s(self) -> Floats:  # type: ignore[override]
        """Shrink factors of all edges."""
        return self._state()[0]

    def _state(self) -> tuple[Floats, Floats, Floats]:
        """Return shrink factors, vectors and first lengths of all edges."""
        s, delta, built = (np.concatenate(parts) for parts in zip(*self._every("state"), strict=True))
        return s, delta, built

    @property
    def nbytes(self) -> int:
        return int(sum(self._every("nbytes")))

    # -- one round

    def _update_squares(self, active: Ints, new: Floats) -> tuple[float, float, float, float]:
        check_devices(active, self.m, once=True)
        moved = row_squares(new - self.omega[active]).sum()
        before = self._known()
        self.omega[active], self._squares[active] = new, row_squares(new)
        moves = [(places, new[which]) for which, places in self._places(active)]
        self._parts.each("move", moves)
        if not self._complete and (self._lacking(before) or self._stretched()):
            self._set_edges(self._neighbours())
        turns = [(places, self._pieces) for _, places in self._places(active)]
        primal, dual, self._touched_edges = np.sum(self._parts.each("update", turns), axis=0).tolist()
        return float(moved), float(self._squares.sum()), primal, dual

    def _touched(self, active: Ints) -> int:
        return int(self._touched_edges)

    def _anchors(self, index: Ints) -> Floats:
        found, shares = self._places(index), (1 / self.masses[index]).astype(self.omega.dtype)
        asked = [(places, shares[which]) for which, places in found]
        out = self.omega[index]
        for (which, _), part in zip(found, self._parts.each("pulls", asked), strict=True):
            if which.size == index.size:
                out += part
            else:
                out[which] += part
        return out

    def _lacking(self, before: Bools) -> bool:
        """Return whether devices that have moved lack edges; those ``before`` the round had moved then."""
        known = self._known()
        lacking = known & (self.masses == 1)
        # Few that have moved first wait for more, as long as there are more.
        return bool(lacking.any() and (lacking.mean() > MAX_LACKING_SHARE or (known == before).all()))

    def _stretched(self) -> bool:
        """Return whether so many edges have stretched that other neighbours may be nearer."""
        most = MAX_STRETCHED_SHARE * self.edges.lo.size
        if sum(self._every("stretched", MAX_STRETCH_RATIO, 0.0)) <= most:
            return False
        # Devices that are fused are near for certain, however their distances vary.
        least = MIN_STRETCHED_LENGTH * float(np.sqrt(self.omega.var(axis=0, dtype=np.float64).sum()))
        return bool(sum(self._every("stretched", MAX_STRETCH_RATIO, least)) > most)

    # -- what there is to see

    def lengths(self) -> Floats:
        """Return ||theta|| of every edge."""
        return np.concatenate(self._every("lengths"))

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
        s, delta = (part[e[0]] for part in self._state()[:2]) if e.size else (1, self.omega[lo] - self.omega[hi])
        return np.asarray(weight(s) * delta * (1 if i < j else -1))

    # -- saved and loaded

    def pack(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state as arrays, brought here from all parts."""
        s, delta, built = self._state()
        numbers = {"omega": self.omega, "rho": np.float64(self.rho)[None], "k": np.int64(self.k)[None]}
        return {"s": s, "delta": delta, "built": built, **self.edges._asdict(), "start": self.start, **numbers}

    @classmethod
    def unpack(
        cls, arrays: dict[str, npt.NDArray[Any]], penalty: Penalty, *, actors: int | None = None, **_: Any
    ) -> FusionState:
        state = object.__new__(cls)
        lo, hi, delta, s, omega = (arrays[name] for name in ("lo", "hi", "delta", "s", "omega"))
        if delta.shape != (s.size, omega.shape[1]) or lo.shape != s.shape or hi.shape != s.shape:
            raise FedfuseError("the arrays of this fusion state do not fit each other")
        state.start = arrays["start"].copy()
        state.omega, state._rho, state.k = omega.copy(), float(arrays["rho"][0]), int(arrays["k"][0])
        state.penalty = penalty
        state._cut(actors)
        state._set_edges(Edges(lo, hi))
        cuts = state._firsts[1:-1]
        parts = zip(*(np.split(arrays[name], cuts) for name in ("s", "delta", "built")), strict=True)
        state._parts.each("set_state", list(parts))
        return state
