"""The pair state cut by coordinates: each block in a thread, or on a machine of its own.

The norm is the only thing that couples coordinates. So every block keeps its columns of parameters, pair vectors and
anchor sums; in a round blocks send partial squares of pairs, the sums of which give the shrink factors, which go back
to all blocks. What is known of whole pairs (factor, norm, near or far) is kept here once, and so are the parameters,
which callers read.
"""

from __future__ import annotations

from math import sqrt
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedfuse.core.penalties import Penalty
from fedfuse.errors import FedfuseError
from fedfuse.pairs.layout import CAUTION, FAR
from fedfuse.pairs.ray_blocks import BlockExecutor, crew_for
from fedfuse.pairs.state import FusionState, Residuals, check_fit, cold_sums, one_row_each, squares_of, unknown_device
from fedfuse.utils.jit import Kernels
from fedfuse.utils.typing import Bools, Floats, Ints

# Bytes of pair vectors that are fetched from blocks at once.
FETCH = 1 << 28
# What `_where` says of a near pair: blocks know where its vector is.
NEAR = 0

_pairs = Kernels("fedfuse.pairs.pair_kernels")


class Meetings(NamedTuple):
    """The pairs that a round touches."""

    pairs: Ints
    devices: Ints  # 2 x n: the lower and the higher device
    ranks: Ints  # 2 x n: their places among the active ones, or -1

    def only(self, which: Bools) -> Meetings:
        return Meetings(self.pairs[which], self.devices[:, which], self.ranks[:, which])


class BlockedState(FusionState):
    """As `FusionState`, which makes it where a ``backend`` is given. ``omega`` is not to be written to."""

    def __init__(
        self,
        omega: npt.ArrayLike,
        penalty: Penalty,
        rho: float = 1.0,
        *,
        warm: bool = False,
        dtype: npt.DTypeLike = np.float32,
        **room: Any,
    ) -> None:
        start = one_row_each(omega, dtype)
        self._rho, self.penalty = rho, penalty
        pairs = len(start) * (len(start) - 1) // 2
        self._settle_in(start, np.ones(pairs, dtype), np.zeros(pairs, dtype), **room)
        if not warm:
            self._begin(np.arange(pairs), None, cold_sums(start))

    def _settle_in(
        self,
        omega: Floats,
        s: Floats,
        r: Floats,
        *,
        memory: int | None = None,
        spill: str | PathLike[str] | None = None,
        backend: str = "threads",
        blocks: int | None = None,
        collapse: None = None,
    ) -> None:
        """Cut the parameters into blocks; all pairs are far."""
        self._crew: BlockExecutor = crew_for(backend, omega, blocks, memory, None if spill is None else Path(spill))
        self.s, self.r = s, r
        self._where = np.full(len(s), FAR, np.int32)
        self._put(omega)

    def _put(self, omega: Floats) -> None:
        self.omega, self._squares = omega, squares_of(omega)
        self.omega.flags.writeable = False  # blocks have their own

    def _begin(self, near: Ints, delta: Floats | None, sums: Floats) -> None:
        """Give vectors to these pairs, zeros if there are no others, and set the anchor sums."""
        if delta is None:
            self._crew.every("give", near)
        else:
            for some in self._batches(near.size):
                self._crew.each("give", [(near[some], part) for part in self._crew.cut(delta[some])])
        self._crew.each("set_sums", [(part,) for part in self._crew.cut(sums)])
        self._where[near] = NEAR

    def _batches(self, n: int) -> list[slice]:
        """Cut so many vectors into runs that may be sent at once."""
        step = max(1, FETCH // max(1, self.d * self.omega.itemsize))
        return [slice(first, first + step) for first in range(0, n, step)]

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self._crew)

    @property
    def rho(self) -> float:
        return self._rho

    @rho.setter
    def rho(self, rho: float) -> None:
        self._penalty.check(rho)
        ratio = self._rho / rho
        self._crew.every("rescale", self.s, ratio)
        _pairs.rescale(np.empty((1, 0), self.s.dtype), self.s, self.r, self._where, ratio)  # the numbers alone
        self._rho = rho
        self._pieces = self._penalty.pieces(rho)
        self.recompute_anchors()

    @property
    def nbytes(self) -> int:
        return int(sum(self._crew.every("nbytes"))) + self.s.nbytes + self.r.nbytes + self._where.nbytes

    def update(self, devices: npt.ArrayLike, omegas: npt.ArrayLike) -> Residuals:
        active, new = self._sorted(devices, omegas)
        if not active.size:
            return Residuals(0.0, 0.0, 0.0)
        squares = _added(self._crew.each("place", [(active, part) for part in self._crew.cut(new)]))
        try:
            primal, dual, meetings = self._update(active, np.sqrt(squares[:, 0]))
        except FedfuseError:
            self._crew.every("undo")
            raise
        self._squares[active] = squares[:, 1]
        self.omega.flags.writeable = True
        self.omega[active] = new
        self.omega.flags.writeable = False
        scale = sqrt(self._squares.sum() / self.m) or 1.0
        n = max(meetings, 1)
        moved = sqrt(squares[:, 0].sum() / active.size)
        return Residuals(sqrt(primal / n) / scale, sqrt(dual / n) / scale, moved / scale)

    def _sorted(self, devices: npt.ArrayLike, omegas: npt.ArrayLike) -> tuple[Ints, Floats]:
        active = np.array(devices, dtype=np.int64)
        new = np.asarray(omegas, dtype=self.omega.dtype)
        if active.ndim != 1 or new.shape != (active.size, self.d):
            raise FedfuseError(
                f"{active.size} devices need parameters of shape ({active.size}, {self.d}), got {new.shape}"
            )
        order = np.argsort(active)
        active, new = active[order], new[order]
        if active.size and (active[0] < 0 or active[-1] >= self.m or not np.diff(active).all()):
            raise unknown_device(active, self.m)
        return active, new

    def _update(self, active: Ints, lengths: Floats) -> tuple[float, float, int]:
        """Update the pairs of devices that have moved so far; return squared residuals, and of how many pairs."""
        all_ = _meetings(self.m, active)
        far = self._where[all_.pairs] < 0
        bound, apart = self._sift(all_.only(far), lengths)
        stays = bound > float(self.penalty.reach)
        fresh = far.copy()
        fresh[far] = ~stays
        near = all_.only(~far | fresh)
        primal, dual = self._settle(near, fresh[~far | fresh])
        # nothing is written before this: a round may be refused for want of memory
        self.r[all_.pairs[far & ~fresh]] = bound[stays]
        return primal, dual + float(apart[stays].sum()), all_.pairs.size

    def _sift(self, far: Meetings, lengths: Floats) -> tuple[Floats, Floats]:
        """Return lower bounds for the distances of far pairs, and the squared changes of their theta."""
        moved = np.where(far.ranks < 0, 0.0, lengths[far.ranks])
        bound = CAUTION * (self.r[far.pairs] - moved.sum(axis=0) / CAUTION)
        unsure = ~(bound > float(self.penalty.reach))
        both = (far.ranks >= 0).all(axis=0)
        apart = np.square(moved).sum(axis=0)  # theta of a far pair moves as its devices do
        if unsure.any() or both.any():
            parts = self._crew.every("look", far.devices[:, unsure], far.ranks[:, both])
            bound[unsure] = CAUTION * np.sqrt(_added([part for part, _ in parts]))
            apart[both] = _added([part for _, part in parts])
        return bound, apart

    def _settle(self, near: Meetings, fresh: Bools) -> tuple[float, float]:
        """Update near pairs, of which some were far until now; return the sums of their squared residuals."""
        p = near.pairs
        s, r = self.s[p], self.r[p].astype(np.float64)
        parts = self._crew.every("measure", p, near.devices, s, fresh)
        r[fresh] = np.sqrt(_added([old for _, old in parts]))
        new, gap = _added([squares for squares, _ in parts]).T
        norms = np.sqrt(new)
        factors = self.penalty.shrink(np.nan_to_num(norms, nan=0.0), self.rho).astype(s.dtype)
        self._crew.every("spread", factors)
        products = new, (new + gap - r**2) / 2, gap
        primal = _moved(1.0 - factors.astype(np.float64), 1.0 - s.astype(np.float64), products)
        dual = _moved(factors.astype(np.float64), s.astype(np.float64), products)
        self.s[p], self.r[p] = factors, norms
        self._where[p] = np.where((s == 1) & (factors == 1), FAR, NEAR)
        return primal, dual

    def anchors(self, devices: npt.ArrayLike) -> Floats:
        index = np.array(devices, dtype=np.int64)
        if index.size and not 0 <= index.min() <= index.max() < self.m:
            raise unknown_device(index, self.m)
        zeta = np.empty((index.size, self.d), self.omega.dtype)
        return self._crew.joined(self._crew.every("anchors", index), zeta)

    def admit(self, omega: npt.ArrayLike, *, warm: bool = True) -> Ints:
        new = np.atleast_2d(np.asarray(omega, dtype=self.omega.dtype))
        if new.shape[1] != self.d:
            raise FedfuseError(f"a newcomer needs {self.d} parameters, got {new.shape[1]}")
        before, known = self.m, len(self.s)
        self._crew.each("admit", [(part,) for part in self._crew.cut(new)])
        self._put(np.concatenate([self.omega, new]))
        added = np.arange(known, self.m * (self.m - 1) // 2)
        self.s = np.concatenate([self.s, np.ones(added.size, self.s.dtype)])
        self.r = np.concatenate([self.r, np.zeros(added.size, self.r.dtype)])
        self._where = np.concatenate([self._where, np.full(added.size, FAR, np.int32)])
        if not warm:
            self._crew.every("give", added)
            self._where[added] = NEAR
            self.recompute_anchors()
        return np.arange(before, self.m)

    def restart_pairs(self) -> None:
        self._crew.every("restart")
        self.s[:], self.r[:], self._where[:] = 1, 0, FAR

    def recompute_anchors(self) -> None:
        self._crew.every("recompute_sums", self.s)

    def _beyond(self, nu: float) -> bool:
        return not (self.r[self._where < 0] <= nu).any()

    def _gaps(self, origin: int, rows: slice) -> Floats:
        return _added(self._crew.every("gaps", origin, rows))

    def pack(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state as arrays, in the form of one that is not cut."""
        near, crew = self.near, self._crew
        sums = crew.joined(crew.every("total"), np.empty((self.m, self.d)))
        known = {"s": self.s.copy(), "r": self.r.copy(), "omega": self.omega.copy()}
        return {"near": near, "delta": self._vectors(near), "sums": sums, "rho": np.float64(self.rho)[None], **known}

    @classmethod
    def unpack(cls, arrays: dict[str, npt.NDArray[Any]], penalty: Penalty, **room: Any) -> FusionState:
        state = object.__new__(cls)
        near, delta, s, r, sums = (arrays[name] for name in ("near", "delta", "s", "r", "sums"))
        state._rho, state.penalty = float(arrays["rho"][0]), penalty
        check_fit(arrays)
        state._settle_in(arrays["omega"].copy(), s.copy(), r.copy(), **room)
        state._begin(near, delta, sums)
        return state

    def _vectors(self, pairs: Ints) -> Floats:
        delta: Floats = np.empty((pairs.size, self.d), self.omega.dtype)
        for some in self._batches(pairs.size):
            self._crew.joined(self._crew.every("rows", pairs[some]), delta[some])
        return delta


def _meetings(m: int, active: Ints) -> Meetings:
    """Return the pairs that have at least one of these devices, each once."""
    rank = np.full(m, -1)
    rank[active] = np.arange(active.size)
    i, j = np.repeat(active, m), np.tile(np.arange(m), active.size)
    once = (rank[j] < 0) | (j < i)  # two active devices meet at the higher one's turn
    lo, hi = np.minimum(i, j)[once], np.maximum(i, j)[once]
    return Meetings(hi * (hi - 1) // 2 + lo, np.stack([lo, hi]), np.stack([rank[lo], rank[hi]]))


def _added(parts: list[Floats]) -> Floats:
    """Add up what blocks say, in their order."""
    total: Floats = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def _moved(a: Floats, b: Floats, products: tuple[Floats, Floats, Floats]) -> float:
    """Return the sum over pairs of ||a new - b old||^2 (see `pairs.pair_kernels._moved`)."""
    new_new, gap_new, gap_gap = products
    c = a - b
    return float(np.maximum(c * c * new_new + 2 * c * b * gap_new + b * b * gap_gap, 0.0).sum())
