"""FusionState: the server's half of FPFC, parameters of all devices and the state of all their pairs.

The textbook keeps theta_ij and v_ij for every ordered pair. After an update both are multiples of one vector,
theta = s delta and v = rho (1 - s) delta, so one vector and one number per unordered pair are enough:

    delta_ij <- omega_i - omega_j + (1 - s_ij) delta_ij
    s_ij     <- shrink(||delta_ij||)
    zeta_i    = mean_j omega_j + (1/m) sum_{j != i} (2 s_ij - 1) delta_ij,    delta_ji = -delta_ij
              = omega_i + (1/m) sum_{j != i} [(2 s_ij - 1) delta_ij - (omega_i - omega_j)]

The start theta = v = 0 is delta = 0, s = 1; the start theta = omega_i - omega_j, v = 0 is delta = omega_i -
omega_j, s = 1. A pair beyond the penalty's reach gets there by itself and adds nothing to the sum: while it stays
there, its vector is not kept. So memory and work are those of the pairs within reach, plus a few numbers for each of
the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fedfuse.core.partitions import joined, linkage_heights
from fedfuse.core.penalties import Penalty
from fedfuse.errors import FedfuseError
from fedfuse.pairs import layout
from fedfuse.pairs.distance_bounds import DistanceBounds
from fedfuse.pairs.layout import Pairs, Round, Scratch, devices_of, pair_count, pair_numbers, row_squares
from fedfuse.pairs.memory import Numbers, Pool
from fedfuse.utils import alignment
from fedfuse.utils.jit import Kernels
from fedfuse.utils.lazy import load
from fedfuse.utils.threads import own, spread
from fedfuse.utils.typing import Bools, Bytes, Floats, Ints

# With fewer numbers in a round's pairs, a second thread costs more than it saves.
MIN_THREADED_NUMBERS = 3_000_000
# Work of such a number, in the units of `spread`: memory is slower than arithmetic.
WORK_PER_NUMBER = 4.0
# Work of checking a far pair, in numbers of a pair's vector.
NUMBERS_PER_FAR_PAIR = 10
# Pairs whose first vectors are taken at once.
ENTERING_PAIRS = 1 << 16
# Devices whose distances to all others are taken at once where not all are needed.
DISTANCE_ROWS = 500
# Columns whose differences are taken in double precision at once.
DISTANCE_COLUMNS = 1 << 16
# Jobs of a round with one chunk.
ONLY_CHUNK = np.zeros(1, np.int64)

_pairs = Kernels("fedfuse.pairs.pair_kernels")


@dataclass(frozen=True)
class Residuals:
    """How far a round still moved things, relative to the size of the devices' parameters.

    Root mean squares over the pairs that the round touched (``primal``: omega_i - omega_j against theta_ij;
    ``dual``: the change of theta_ij) and over its active devices (``moved``: the change of omega_i).
    """

    primal: float
    dual: float
    moved: float

    @property
    def largest(self) -> float:
        return max(self.primal, self.dual, self.moved)


class FusionState:
    """Parameters ``omega`` (m x d) and the compact state of their pairs.

    Parameters
    ----------
    omega
        First parameters, one row per device.
    penalty, rho
        What pulls pairs together, and the weight of the proximal terms. The penalty may be replaced at any time.
    warm
        Start from theta_ij = omega_i - omega_j instead of theta_ij = 0: devices that differ are then not
        pulled to their mean at first.
    dtype
        float32 or float64 for the stored vectors. Norms and sums are float64 in either case.
    graph
        Fuse neighbours alone, for many devices (`pairs.edge_state`): ``"knn:10"`` for the ten nearest of each.
    actors
        Spread the vectors over so many actors of a Ray cluster (`pairs.edge_parts`), where one machine has no room.

    Examples
    --------
    >>> from fedfuse.core.penalties import SmoothedSCAD
    >>> state = FusionState(np.zeros((3, 2)), SmoothedSCAD(0.5))
    >>> _ = state.update([0, 1, 2], np.array([[1.0, 0.0], [1.0, 0.1], [9.0, 9.0]]))
    >>> state.anchors([2]).round(3).tolist()
    [[9.0, 9.0]]
    """

    _adjacency: Bytes | None = None
    _sums: Floats

    def __new__(cls, *_: Any, graph: str | None = None, actors: int | None = None, **__: Any) -> FusionState:
        """Choose the class by graph and actors, as `pathlib.Path` does by platform."""
        return super().__new__(_kind(graph, actors) if cls is FusionState else cls)

    def __init__(
        self,
        omega: npt.ArrayLike,
        penalty: Penalty,
        rho: float = 1.0,
        *,
        warm: bool = False,
        dtype: npt.DTypeLike = np.float32,
        graph: str | None = None,
        actors: int | None = None,
    ) -> None:
        self.omega: Floats = np.array(omega, dtype=dtype, order="C")
        if self.omega.ndim != 2:
            raise FedfuseError(f"omega must have one row per device, got an array of shape {self.omega.shape}")
        self._rho = rho
        self.penalty = penalty
        pairs = pair_count(self.m)
        self.s: Floats = np.ones(pairs, dtype)
        self.r: Floats = np.zeros(pairs, dtype)
        self._allocate()
        if not warm:
            self._set_vectors(np.arange(pairs))
            total = self.omega.sum(axis=0, dtype=np.float64)
            self._sums = np.asarray(total - self.m * self.omega.astype(np.float64))

    def _allocate(self) -> None:
        """Make room for vectors; all pairs are far."""
        d, itemsize = self.d, self.omega.itemsize
        # long rows are whole cache lines; in short ones that would cost more memory than it is worth
        width = alignment.whole(d, self.omega.dtype) if d * itemsize >= 16 * alignment.LINE_BYTES else d
        self._pool = Pool(len(self.s), width, self.omega.dtype)
        self._where: Numbers = np.full(len(self.s), layout.FAR, np.int32)
        self._sums = np.zeros(self.omega.shape)
        self._squares = row_squares(self.omega)
        self._bounds = DistanceBounds(self.m)

    def _set_vectors(self, pairs: Ints, delta: Floats | None = None) -> None:
        """Give vectors to these pairs, by default zeros."""
        self._where[pairs] = places = self._pool.take(pairs.size)
        if delta is not None:  # new rows are zeros, whose pages need not be in memory
            self._pool.rows[places, : self.d] = delta

    def _vectors(self, pairs: Ints) -> Floats:
        """Return the vectors of these near pairs."""
        return np.asarray(self._pool.rows[self._where[pairs], : self.d])

    @property
    def m(self) -> int:
        """Number of devices."""
        return int(self.omega.shape[0])

    @property
    def d(self) -> int:
        """Number of parameters of each device."""
        return int(self.omega.shape[1])

    @property
    def far(self) -> Bools:
        """Which pairs are beyond the penalty's reach, and so have no vector; pair lo < hi at hi (hi - 1) / 2 + lo."""
        return np.asarray(self._where < 0)

    @property
    def near(self) -> Ints:
        """Numbers of the other pairs."""
        return np.flatnonzero(self._where >= 0)

    @property
    def penalty(self) -> Penalty:
        return self._penalty

    @penalty.setter
    def penalty(self, penalty: Penalty) -> None:
        penalty.check(self.rho)
        self._penalty, self._pieces = penalty, penalty.pieces(self.rho)

    @property
    def rho(self) -> float:
        return self._rho

    @property
    def nbytes(self) -> int:
        """Bytes of the pair state."""
        adjacency = 0 if self._adjacency is None else self._adjacency.nbytes
        return self._pool.nbytes + self.s.nbytes + self.r.nbytes + self._where.nbytes + adjacency

    def update(self, devices: npt.ArrayLike, omegas: npt.ArrayLike) -> Residuals:
        """Take the new parameters of some devices and update every pair that has one of them."""
        active = np.array(devices, dtype=np.int64)
        new = np.asarray(omegas, dtype=self.omega.dtype, order="C")
        if active.ndim != 1 or new.shape != (active.size, self.d):
            raise FedfuseError(
                f"{active.size} devices need an array of shape ({active.size}, {self.d}), got {new.shape}"
            )
        if not active.size:
            return Residuals(0.0, 0.0, 0.0)
        moved, size, primal, dual = self._update_squares(active, new)
        scale, touched = sqrt(size / self.m) or 1.0, max(self._touched(active), 1)
        # a dual residual that is a difference may round below zero
        residuals = sqrt(primal / touched), sqrt(max(dual, 0.0) / touched), sqrt(moved / active.size)
        return Residuals(*(residual / scale for residual in residuals))

    def _update_squares(self, active: Ints, new: Floats) -> tuple[float, float, float, float]:
        """Update; return squared lengths: of the devices' moves, of all parameters, of primal and dual residuals."""
        if np.may_share_memory(new, self.omega):
            new = new.copy()
        # chunks by sizes alone, so that the number of threads does not change results
        touched = self._touched(active)
        chunks = min(max(self.m // 25, 2), 8) if touched * self.d > MIN_THREADED_NUMBERS else 1
        rank, bounds = _cut(self.m, active, chunks)
        turn = Round(rank, bounds, *own(_round_arrays, active.size, self.d, self.omega.dtype))
        rest = self._pool.live < self.s.size  # pairs that are far
        together, found = np.empty(self.d), np.empty(3)
        _pairs.set_parameters(self.omega, active, new, turn, self._squares, together, found)
        moved, size, scatter = found.tolist()
        primal, dual = self._update_pairs(turn, touched, rest)
        return moved, size, primal, dual + scatter if rest else dual

    def _touched(self, active: Ints) -> int:
        """Return how many pairs a round with these devices updates."""
        k = active.size
        return k * (self.m - k) + k * (k - 1) // 2

    def anchors(self, devices: npt.ArrayLike) -> Floats:
        """Return zeta_i, the vector that device i is pulled to, for each of these devices."""
        index = np.array(devices, dtype=np.int64)
        if index.size:
            check_devices(index, self.m)
        return self._anchors(index)

    def _anchors(self, index: Ints) -> Floats:
        zeta: Floats = np.empty((index.size, self.d), self.omega.dtype)
        _pairs.anchors(self.omega, self._sums, index, zeta)
        return zeta

    def norms(self) -> Floats:
        """Return ||theta_ij|| for all pairs (m x m, symmetric)."""
        far = self.far
        near = self._square(np.where(far, 0, self.s.astype(np.float64) * self.r))
        return near + self._square(far) * self.distances() if far.any() else near

    def heights(self) -> Floats:
        """Return the heights of single linkage of ||theta||, in increasing order."""
        return linkage_heights(self.norms())

    def labels(self, nu: float) -> Ints:
        """Return the groups that pairs with ||theta_ij|| <= nu join, without a number for every pair of devices."""
        near = self.near
        ends = [devices_of(near[self.s[near].astype(np.float64) * self.r[near] <= nu])]
        # Theta of a far pair is the difference of its devices.
        unknown = np.flatnonzero(self._bounds.within(np.arange(self.m), nu))
        for first in range(0, unknown.size, DISTANCE_ROWS):
            some = unknown[first : first + DISTANCE_ROWS]
            i, j = np.nonzero(self.distances(some) <= nu)
            i, j = some[i][some[i] != j], j[some[i] != j]
            far = self._where[pair_numbers(np.minimum(i, j), np.maximum(i, j))] < 0
            ends.append((i[far], j[far]))
        return joined(self.m, *map(np.concatenate, zip(*ends, strict=True)))

    def distances(self, rows: Ints | slice = slice(None)) -> Floats:
        """Return ||omega_i - omega_j|| for these devices and all (m x m), by matrix products in double precision."""
        # The product formula loses digits where rows share a large part, so that the shortest row is taken from all: a
        # single lying device could move their mean as far as it likes.
        origin = int(row_squares(self.omega).argmin()) if self.m else 0
        squares: Floats = np.zeros((len(self.omega[rows]), self.m))
        for first in range(0, self.d, DISTANCE_COLUMNS):  # copies in double precision are large
            panel = self.omega[:, first : first + DISTANCE_COLUMNS].astype(np.float64)
            panel -= panel[origin].copy()
            lengths = np.square(panel).sum(axis=1)
            squares += lengths[rows, None] + lengths[None, :] - 2 * panel[rows] @ panel.T
        squares[np.arange(len(squares)), np.arange(self.m)[rows]] = 0.0
        return np.asarray(np.sqrt(np.maximum(squares, 0.0)))

    def theta(self, i: int, j: int) -> Floats:
        """Return theta_ij."""
        return self._oriented(i, j, lambda s: s)

    def v(self, i: int, j: int) -> Floats:
        """Return v_ij."""
        return self._oriented(i, j, lambda s: self.rho * (1 - s))

    def _oriented(self, i: int, j: int, weight: Any) -> Floats:
        if i == j:
            return np.zeros(self.d, self.omega.dtype)
        lo, hi = min(i, j), max(i, j)
        p = hi * (hi - 1) // 2 + lo
        delta = self.omega[lo] - self.omega[hi] if self._where[p] < 0 else self._vectors(np.array([p]))[0]
        return np.asarray(weight(self.s[p]) * delta * (1 if i < j else -1))

    def _square(self, pairs: Floats | Bools) -> Floats:
        full = np.zeros((self.m, self.m))
        full[np.tril_indices(self.m, -1)] = pairs
        return np.asarray(full + full.T)

    # -- saved and loaded

    def pack(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state as arrays (see `unpack`)."""
        near = self.near
        numbers = {"s": self.s, "r": self.r, "sums": self._sums, "omega": self.omega, "rho": np.float64(self.rho)[None]}
        return {"near": near, "delta": self._vectors(near), **numbers}

    @classmethod
    def unpack(cls, arrays: dict[str, npt.NDArray[Any]], penalty: Penalty, **room: Any) -> FusionState:
        """Build the state that `pack` took apart; ``room``: graph, actors."""
        if cls is FusionState and (kind := _kind(**room)) is not cls:
            return kind.unpack(arrays, penalty, **room)
        near, delta, s, r, sums, omega = (arrays[name] for name in ("near", "delta", "s", "r", "sums", "omega"))
        (m, d), pairs = omega.shape, pair_count(len(omega))
        shapes = [delta.shape, s.shape, r.shape, sums.shape]
        like = {delta.dtype, s.dtype, r.dtype, omega.dtype} in ({np.dtype(np.float32)}, {np.dtype(np.float64)})
        like = like and sums.dtype.kind == "f" and near.dtype.kind in "iu"
        if shapes != [(near.size, d), (pairs,), (pairs,), (m, d)] or not like or (near >= pairs).any():
            raise FedfuseError("the arrays of this fusion state do not fit each other")
        state = object.__new__(cls)
        state.omega, state.s, state.r, state._rho = omega.copy(), s.copy(), r.copy(), float(arrays["rho"][0])
        state.penalty = penalty
        state._allocate()
        state._set_vectors(near, delta)
        state._sums = sums.copy()
        return state

    # -- one compiled round

    @property
    def _reach(self) -> float:
        """Distance from which on a pair needs no vector."""
        return float(self.penalty.reach)

    def _tile(self, k: int) -> int:
        """Return how many of k active devices are processed together: each partner is near about `TILE_DEVICES`."""
        tile, near = layout.TILE_DEVICES, self._pool.live
        while tile < k and 2 * tile * near <= layout.TILE_DEVICES * self.s.size:
            tile *= 2
        return tile

    def _update_pairs(self, turn: Round, touched: int, rest: bool) -> tuple[float, float]:
        """Update every pair with an active device; return the sums of its squared residuals."""
        chunks = turn.bounds.size - 1
        if rest:
            self._enter(turn, touched)
        k = turn.active.size
        scratch = own(_scratch, k, chunks, self._tile(k), self.d, self.omega.dtype)
        pairs = Pairs(self._pool.rows, self.s, self.r, self._where, self._sums)
        state = pairs, self._adjacent, self.omega, turn, self._pieces, rest, scratch

        def run(jobs: Ints) -> None:
            for c in jobs.tolist():
                _pairs.update_pairs(*state, c)

        _run_chunks(run, chunks, touched * self.d)
        if scratch.left.any():
            self._release_far()
        self._gather(turn.active, scratch)
        primal, dual = map(sum, scratch.squares.T.tolist())
        return primal, dual

    def _enter(self, turn: Round, touched: int) -> None:
        """Give rows to far pairs that come within reach, or undo the round if there is no memory for them."""
        bounds = self._bounds
        bounds.move(turn.active, turn.lengths)
        due = bounds.within(turn.active, self._reach)
        if not due.any():
            return
        chunks = turn.bounds.size - 1
        least, entering = np.empty((chunks, due.size)), np.zeros(chunks, np.bool_)

        def find(jobs: Ints) -> None:
            _pairs.find_entering(self._where, self.omega, turn, due, self._reach, entering, least, jobs)

        _run_chunks(find, chunks, touched * NUMBERS_PER_FAR_PAIR)
        if entering.any():
            pairs, was = np.flatnonzero(self._where == layout.ENTERING), self.omega.copy()
            was[turn.active] = turn.before[:, : self.d]
            try:
                rows = self._pool.take(pairs.size)
            except FedfuseError:
                self.omega[:], self._squares = was, row_squares(was)
                self._bounds = DistanceBounds(self.m)
                self._where[pairs] = layout.FAR
                raise
            lo, hi = devices_of(pairs)
            self._adjacent[lo, hi] = self._adjacent[hi, lo] = 1
            self._where[pairs] = rows
            for first in range(0, pairs.size, ENTERING_PAIRS):
                some = slice(first, first + ENTERING_PAIRS)
                delta = was[lo[some]] - was[hi[some]]
                self._pool.rows[rows[some], : self.d], self.r[pairs[some]] = delta, np.sqrt(row_squares(delta))
        bounds.set(turn.active[due], least.min(axis=0)[due])

    @property
    def _adjacent(self) -> Bytes:
        """Adjacency of near pairs (m x m, 0 or 1)."""
        if self._adjacency is not None:
            return self._adjacency
        self._adjacency = near = alignment.zeros(self.m**2, np.uint8).reshape(self.m, self.m)
        for hi in range(1, self.m):
            near[hi, :hi] = near[:hi, hi] = self._where[hi * (hi - 1) // 2 : hi * (hi + 1) // 2] >= 0
        return near

    def _gather(self, active: Ints, scratch: Scratch) -> None:
        """Add up what chunks have collected for active devices."""
        rows = scratch.rows
        if len(rows) == 1:
            self._sums[active] = rows[0, : active.size, : self.d]
            return
        work = np.full(active.size, WORK_PER_NUMBER * rows[:, 0].size)
        spread(lambda some: _pairs.gather_sums(rows, active, self._sums, some), work)

    def _release_far(self) -> None:
        """Take back the rows of pairs that have become far in this round."""
        pairs = np.flatnonzero(self._where <= layout.LEAVING)
        rows, (lo, hi) = layout.LEAVING - self._where[pairs], devices_of(pairs)
        self._where[pairs] = layout.FAR
        self._adjacent[lo, hi] = self._adjacent[hi, lo] = 0
        self._bounds.forget(np.concatenate([lo, hi]))
        self._pool.give_back(rows)
        self._pool.compact(self._where)


def _kind(graph: str | None = None, actors: int | None = None) -> type[FusionState]:
    """Return the class for these settings."""
    edges = graph is not None or actors is not None
    return cast("type[FusionState]", load("fedfuse.pairs.edge_state:EdgeState")) if edges else FusionState


def check_devices(devices: Ints, m: int, *, once: bool = False) -> None:
    """Raise unless all devices exist and, where asked, occur once."""
    if devices.min() < 0 or devices.max() >= m:
        raise FedfuseError(f"devices must lie in 0 … {m - 1}, got {devices.min()} … {devices.max()}")
    if once and np.unique(devices).size < devices.size:
        raise FedfuseError("a device occurs twice in one round")


def _run_chunks(run: Callable[[Ints], None], chunks: int, work: float) -> None:
    """Do all chunks, in threads if there are several."""
    if chunks == 1:
        run(ONLY_CHUNK)
    else:
        spread(run, np.full(chunks, WORK_PER_NUMBER * work / chunks))


def _round_arrays(k: int, d: int, dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Return arrays for a round of k active devices (see `Round`)."""
    return np.empty(k, np.int64), np.empty(k), *alignment.rows((3, k), d, dtype)


def _scratch(k: int, chunks: int, tile: int, d: int, dtype: np.dtype[Any]) -> Scratch:
    """Return space for the chunks of such a round."""
    run = max(min(layout.RUN_PARTNERS, layout.RUN_BYTES // (d * dtype.itemsize)), 1)
    results = np.empty((chunks, 2)), np.empty(chunks, np.int64)
    rows, todo = alignment.rows((chunks, k + 2 * run), d, dtype), np.empty((chunks, 3, tile * run + 1), np.int64)
    return Scratch(rows, todo, *results)


def _cut(m: int, devices: Ints, chunks: int) -> tuple[Ints, Ints]:
    """Return each device's place among the active ones (or -1), and partners cut into runs of equal work."""
    rank, bounds = np.empty(m, np.int64), np.empty(chunks + 1, np.int64)
    _pairs.cut_chunks(devices, rank, bounds)
    if bounds[0] < 0:
        check_devices(devices, m, once=True)
    return rank, bounds
