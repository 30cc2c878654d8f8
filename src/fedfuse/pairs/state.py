"""The server's half of FPFC: parameters of all devices and the state of all their pairs.

The textbook keeps theta_ij and v_ij for every ordered pair. After an update both are multiples of one vector,
theta = s delta and v = rho (1 - s) delta, so one vector and one number per unordered pair are enough:

    delta_ij <- omega_i - omega_j + (1 - s_ij) delta_ij
    s_ij     <- shrink(||delta_ij||)
    zeta_i    = mean_j omega_j + (1/m) sum_{j != i} (2 s_ij - 1) delta_ij,    delta_ji = -delta_ij
              = omega_i + (1/m) sum_{j != i} [(2 s_ij - 1) delta_ij - (omega_i - omega_j)]

The start theta = v = 0 is delta = 0, s = 1; the start theta = omega_i - omega_j, v = 0 is delta = omega_i -
omega_j, s = 1. A pair beyond the reach of the penalty gets there by itself and adds nothing to the sum: while
it stays there, its vector is not even kept. So memory and work are those of the pairs within reach, and a number or
three for each of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import sqrt
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.core import penalties
from fedfuse.core.partitions import joined
from fedfuse.core.penalties import Penalty
from fedfuse.errors import FedfuseError
from fedfuse.pairs import numpy_state, screening
from fedfuse.pairs.distance_bounds import DistanceBounds
from fedfuse.pairs.layout import CAUTION, FAR, LEFT, RUN, TILE, WANTED, Pairs, Round, Scratch, devices_of
from fedfuse.pairs.memory import Numbers, Pool
from fedfuse.utils import alignment
from fedfuse.utils.jit import Kernels
from fedfuse.utils.threads import spread
from fedfuse.utils.typing import Bools, Bytes, Floats, Ints

# Numbers in all pairs up to which a round is done in plain NumPy: some milliseconds, when to compile takes seconds.
SMALL = 1 << 16
# Numbers in a round's pairs below which a second thread costs more than it saves.
LARGE = 3_000_000
# How much work such a number is, in the units of `spread`: memory is slower than arithmetic.
WORK = 4.0
# How many numbers of a pair's vector a look at a far pair is worth.
GLANCE = 10
# Devices whose distances to all others are taken at once where not all are needed.
BLOCK = 500
# Columns whose differences are taken in double precision at once.
PANEL = 1 << 16
# The jobs of a round that is one chunk.
ONLY = np.zeros(1, np.int64)

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
    penalty
        What pulls pairs together. May be replaced at any time (`penalty` is an ordinary attribute).
    rho
        Weight of the proximal terms.
    warm
        Start from theta_ij = omega_i - omega_j instead of theta_ij = 0: devices that differ are then not
        pulled to their mean at first.
    dtype
        float32 or float64 for the stored vectors. Norms and sums are float64 in either case.
    memory
        Bytes that the vectors of pairs may take; nine tenths of what is free by default. More is an error, unless
    spill
        names a directory: then the vectors go to a file there (which is gone with the process).
    backend
        Cut the state into blocks of coordinates, for long vectors (`blocked`): ``"threads"`` of this process, or
        ``"ray"``, actors on the machines of a Ray cluster with one block each. Iterates are the same up to rounding.
    blocks
        How many blocks. By default a process has up to eight, by ``d`` alone; Ray one for every processor it has.
    collapse
        Represent devices once that have been fused for about so many rounds (`collapsing`): memory and work of a group
        are then those of its devices, not of its pairs. Off by default, since it is exact in simple cases only.

    Examples
    --------
    >>> state = FusionState(np.zeros((3, 2)), penalties.SmoothedSCAD(0.5))
    >>> _ = state.update([0, 1, 2], np.array([[1.0, 0.0], [1.0, 0.1], [9.0, 9.0]]))
    >>> state.anchors([2]).round(3).tolist()
    [[9.0, 9.0]]
    """

    _kept: tuple[Any, ...] | None = None
    _last: Scratch | None = None
    _beside: Bytes | None = None

    def __new__(cls, *_: Any, backend: str | None = None, collapse: int | None = None, **__: Any) -> FusionState:
        """Choose the class by where and how the state is to live, as `pathlib.Path` does."""
        return super().__new__(_kind(backend, collapse) if cls is FusionState else cls)

    def __init__(
        self,
        omega: npt.ArrayLike,
        penalty: Penalty,
        rho: float = 1.0,
        *,
        warm: bool = False,
        dtype: npt.DTypeLike = np.float32,
        memory: int | None = None,
        spill: str | PathLike[str] | None = None,
        backend: str | None = None,
        blocks: int | None = None,
        collapse: int | None = None,
    ) -> None:
        if blocks is not None:  # with a backend it is another class that is made
            raise FedfuseError("blocks need a backend: 'threads' or 'ray'")
        self.omega: Floats = one_row_each(omega, dtype)
        self._rho = rho
        self.penalty = penalty
        pairs = self.m * (self.m - 1) // 2
        self._pool = _pool(pairs, self.omega, memory, spill)
        self.s: Floats = np.ones(pairs, dtype)
        self.r: Floats = np.zeros(pairs, dtype)
        self._where: Numbers = np.full(pairs, FAR, np.int32)
        self._sums: Floats = cold_sums(self.omega)
        self._squares = squares_of(self.omega)
        self._watch = DistanceBounds(self.m)
        if warm:
            self.restart_pairs()
        else:
            self._where[:] = self._pool.take(pairs)  # of zeros

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
        penalty.check(self._rho)
        self._penalty = penalty
        self._pieces = penalty.pieces(self._rho)

    @property
    def rho(self) -> float:
        return self._rho

    @rho.setter
    def rho(self, rho: float) -> None:
        """Change rho; theta and v stay what they are."""
        self._penalty.check(rho)
        ratio = self._rho / rho
        if self._small:
            numpy_state.rescale(self._all, ratio)
        else:
            _pairs.rescale(self._pool.rows, self.s, self.r, self._where, ratio)
        self._rho = rho
        self._pieces = self._penalty.pieces(rho)
        self.recompute_anchors()

    @property
    def nbytes(self) -> int:
        """Bytes of the pair state."""
        beside = 0 if self._beside is None else self._beside.nbytes
        return self._pool.nbytes + self.s.nbytes + self.r.nbytes + self._where.nbytes + beside

    def update(self, devices: npt.ArrayLike, omegas: npt.ArrayLike) -> Residuals:
        """Take the new parameters of some devices and update every pair that has one of them."""
        active = np.array(devices, dtype=np.int64)
        new = np.asarray(omegas, dtype=self.omega.dtype, order="C")
        if active.ndim != 1 or new.shape != (active.size, self.d):
            raise FedfuseError(
                f"{active.size} devices need parameters of shape ({active.size}, {self.d}), got {new.shape}"
            )
        if not active.size:
            return Residuals(0.0, 0.0, 0.0)
        if self._small:
            way, size, primal, dual = self._update_with_numpy(active, new)
        else:
            way, size, primal, dual = self._update_compiled(active, new)
        scale, meetings = sqrt(size / self.m) or 1.0, max(_meetings(self.m, active.size), 1)
        # a dual residual that is a difference may round below zero
        residuals = sqrt(primal / meetings), sqrt(max(dual, 0.0) / meetings), sqrt(way / active.size)
        return Residuals(*(residual / scale for residual in residuals))

    def _update_with_numpy(self, active: Ints, new: Floats) -> tuple[float, float, float, float]:
        """Return squared lengths: of what devices have moved by, of all parameters, of primal and dual residuals."""
        if np.unique(active).size < active.size or not 0 <= active.min() <= active.max() < self.m:
            raise unknown_device(active, self.m)
        before = self.omega.copy()
        self.omega[active] = new
        try:
            end = numpy_state.settle(self._all, self.omega, before, active, self._shrunk, self._reach, self._pool)
        except FedfuseError:
            self.omega[:] = before
            raise
        self._take_back(end.left)
        self._squares = squares_of(self.omega)
        way = squares_of(self.omega[active] - before[active]).sum()
        return float(way), float(self._squares.sum()), end.primal, end.dual

    def _shrunk(self, norms: Floats) -> Floats:
        return self.penalty.shrink(norms, self.rho)

    def _update_compiled(self, active: Ints, new: Floats) -> tuple[float, float, float, float]:
        """As `_update_with_numpy`."""
        if np.may_share_memory(new, self.omega):
            new = new.copy()
        # chunks by sizes alone, so that the number of threads does not change results
        meetings = _meetings(self.m, active.size)
        chunks = min(max(self.m // 25, 2), 8) if meetings * self.d > LARGE else 1
        rank, bounds = _cut(self.m, active, chunks)
        turn = Round(rank, bounds, *self._space(active.size))
        rest = self._pool.live < self.s.size  # pairs that are far
        together, found = np.empty(self.d), np.empty(3)
        _pairs.place(self.omega, active, new, turn, self._squares, together, found)
        way, size, scatter = found.tolist()
        primal, dual = self._update_pairs(turn, meetings, rest)
        return way, size, primal, dual + scatter if rest else dual

    def anchors(self, devices: npt.ArrayLike) -> Floats:
        """Return zeta_i, the vector that device i is pulled to, for each of these devices."""
        index = np.array(devices, dtype=np.int64)
        if index.size and not 0 <= index.min() <= index.max() < self.m:
            raise unknown_device(index, self.m)
        zeta: Floats = np.empty((index.size, self.d), self.omega.dtype)
        if self._small:
            zeta[:] = self.omega[index] + self._sums[index] / self.m
        else:
            _pairs.anchors(self.omega, self._sums, index, zeta)
        return zeta

    def admit(self, omega: npt.ArrayLike, *, warm: bool = True) -> Ints:
        """Add newcomers (one vector, or one row each); return their numbers. Nobody else's parameters change.

        With ``warm`` a newcomer starts without a pull (theta = omega_i - omega_j); else from theta = 0.
        """
        new = np.atleast_2d(np.asarray(omega, dtype=self.omega.dtype))
        if new.shape[1] != self.d:
            raise FedfuseError(f"a newcomer needs {self.d} parameters, got {new.shape[1]}")
        self._watch.settle(self.r, self._where)
        before, self.omega = self.m, np.concatenate([self.omega, new])
        self._watch, self._beside = DistanceBounds(self.m), None
        known, pairs = len(self.s), self.m * (self.m - 1) // 2
        self._pool = self._pool.grown(pairs)
        self.s = np.concatenate([self.s, np.ones(pairs - known, self.s.dtype)])
        self.r = np.concatenate([self.r, np.zeros(pairs - known, self.r.dtype)])
        self._where = np.concatenate([self._where, np.full(pairs - known, FAR, np.int32)])
        self._sums = np.concatenate([self._sums, np.zeros((len(new), self.d))])
        self._squares = np.concatenate([self._squares, squares_of(new)])
        if not warm:
            self._where[known:] = self._pool.take(pairs - known)
            self._pool.rows[self._where[known:]] = 0
            self.recompute_anchors()
        return np.arange(before, self.m)

    def restart_pairs(self) -> None:
        """Forget all pairs: theta_ij = omega_i - omega_j, v_ij = 0.

        Memory for the pairs within reach is provided here rather than in the rounds that first touch them.
        """
        self._pool.give_back(self._where[self._where >= 0])
        self.s[:], self.r[:], self._where[:] = 1, 0, FAR
        self._watch, self._beside = DistanceBounds(self.m), None
        self._sums[:] = 0
        self._tidy()
        self._pool.provide(self._bound_all())
        if not self._small:
            self._beside = self._matrix()

    def _bound_all(self) -> int:
        """Find out how far apart all devices at least are; return how many pairs may be within reach."""
        if not np.isfinite(self._reach) or self._small:
            return self.r.size
        return screening.lower_bounds(self.omega, self.r, self._reach)

    def recompute_anchors(self) -> None:
        """Build all anchor sums anew from the stored pairs."""
        if self._small:
            numpy_state.total_sums(self._all, self.omega)
            return
        spread(lambda jobs: _pairs.total_sums(self._all, self.omega, jobs), np.full(self.m, WORK * self.m * self.d))

    def norms(self) -> Floats:
        """Return ||theta_ij|| for all pairs (m x m, symmetric)."""
        far = self.far
        near = self._square(np.where(far, 0, self.s.astype(np.float64) * self.r))
        return near + self._square(far) * self.distances() if far.any() else near

    def labels(self, nu: float) -> Ints:
        """Return the clusters: devices with ||theta_ij|| <= nu are in one, and so are their other neighbours.

        As `core.partitions.components` of `norms`, without a number for every pair of devices.
        """
        near = self.near
        lo, hi = devices_of(near[self.s[near].astype(np.float64) * self.r[near] <= nu])
        if not self._beyond(nu):  # far, so theta is the difference; but how far is not known
            i, j = self._close(nu)
            lo, hi = np.concatenate([lo, i]), np.concatenate([hi, j])
        return joined(self.m, lo, hi)

    def _beyond(self, nu: float) -> bool:
        """Say whether all far pairs are certainly further apart than this."""
        if self._watch.beyond(nu):
            return True
        self._watch.settle(self.r, self._where)
        return not (self.r[self._where < 0] <= nu).any()

    def _close(self, nu: float) -> tuple[Ints, Ints]:
        """Return the far pairs whose devices are at most ``nu`` apart."""
        found = []
        for first in range(0, self.m, BLOCK):
            hi, lo = np.nonzero(self.distances(slice(first, first + BLOCK)) <= nu)
            hi += first
            lo, hi = lo[lo < hi], hi[lo < hi]
            far = self._where[hi * (hi - 1) // 2 + lo] < 0
            found.append((lo[far], hi[far]))
        return np.concatenate([i for i, _ in found]), np.concatenate([j for _, j in found])

    def distances(self, rows: slice = slice(None)) -> Floats:
        """Return ||omega_i - omega_j|| for these devices and all (m x m)."""
        # the shortest, not the mean, which a single device that lies can move as far as it likes
        origin = int(squares_of(self.omega).argmin()) if self.m else 0
        gaps = self._gaps(origin, rows)
        gaps[np.arange(len(gaps)), np.arange(self.m)[rows]] = 0.0
        return np.asarray(np.sqrt(np.maximum(gaps, 0.0)))

    def _gaps(self, origin: int, rows: slice) -> Floats:
        return squared_distances(self.omega, origin, rows)

    def theta(self, i: int, j: int) -> Floats:
        """Return theta_ij."""
        return self._oriented(i, j, lambda s: s)

    def v(self, i: int, j: int) -> Floats:
        """Return v_ij."""
        return self._oriented(i, j, lambda s: self.rho * (1 - s))

    def pack(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state as arrays (see `unpack`)."""
        near = self.near
        self._watch.settle(self.r, self._where)
        rows = self._pool.rows[self._where[near], : self.d]
        numbers = {"s": self.s, "r": self.r, "sums": self._sums, "omega": self.omega, "rho": np.float64(self.rho)[None]}
        return {"near": near, "delta": rows, **numbers}

    @classmethod
    def unpack(
        cls,
        arrays: dict[str, npt.NDArray[Any]],
        penalty: Penalty,
        *,
        memory: int | None = None,
        spill: str | PathLike[str] | None = None,
        backend: str | None = None,
        blocks: int | None = None,
        collapse: int | None = None,
    ) -> FusionState:
        """Build the state that `pack` took apart, here or wherever ``backend`` says."""
        kind = _kind(backend, collapse)
        if kind is not FusionState:
            room = {"memory": memory, "spill": spill, "backend": backend, "blocks": blocks, "collapse": collapse}
            return kind.unpack(arrays, penalty, **room)  # type: ignore[arg-type]
        check_fit(arrays)
        state = cls.__new__(cls)
        state.omega, state._rho = arrays["omega"], float(arrays["rho"][0])
        near, delta, state.s, state.r, state._sums = (arrays[name] for name in ("near", "delta", "s", "r", "sums"))
        pairs = state.m * (state.m - 1) // 2
        state._pool, state._squares = _pool(pairs, state.omega, memory, spill), squares_of(state.omega)
        state._where = np.full(pairs, FAR, np.int32)
        state._where[near] = state._pool.take(near.size)
        state._pool.rows[: near.size, : state.d] = delta
        state._watch, state.penalty = DistanceBounds(state.m), penalty
        return state

    def save(self, path: str | PathLike[str]) -> None:
        """Write the state to an .npz file (no pickles)."""
        settings = {f"penalty_{k}": np.array(v) for k, v in self.penalty.to_config().items()}
        with open(path, "wb") as file:  # noqa: PTH123 - a path without the suffix that numpy would add
            np.savez(file, **self.pack(), **settings)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | PathLike[str], **room: Any) -> FusionState:
        """Read what `save` wrote; ``room`` are the settings of `unpack`."""
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        settings = {k.removeprefix("penalty_"): v.item() for k, v in arrays.items() if k.startswith("penalty_")}
        return cls.unpack(arrays, penalties.from_config(settings), **room)

    @property
    def _small(self) -> bool:
        """Whether nothing of this state is worth compiling; by sizes alone, as results differ in their last bits."""
        return len(self.s) * self.d <= SMALL

    @property
    def _all(self) -> Pairs:
        return Pairs(self._pool.rows, self.s, self.r, self._where, self._sums)

    def _space(self, k: int) -> tuple[Any, ...]:
        """Return arrays for a round of k active devices (see `Round`): the last ones if they fit."""
        if self._kept is None or self._kept[0].size != k:
            rows = alignment.rows((3, k), self.d, self.omega.dtype)
            self._kept = np.empty(k, np.int64), np.empty(k), *rows
        return self._kept

    def _scratch(self, k: int, chunks: int) -> Scratch:
        """Return space for the chunks of such a round: the last one if it fits."""
        tile = self._tile(k)
        shapes = (chunks, k + 5), (chunks, 3, tile * RUN + 1), (chunks, 2, RUN + tile + 2)
        last = self._last
        if last is None or (last.rows.shape[:2], last.todo.shape, last.order.shape) != shapes:
            rows = alignment.rows(shapes[0], self.d, self.omega.dtype)
            todo, order = (np.empty(shape, np.int64) for shape in shapes[1:])
            self._last = last = Scratch(rows, todo, order, np.empty((chunks, 2)), np.empty(chunks, np.int64))
        return last

    def _tile(self, k: int) -> int:
        """Return how many of k active devices partners go by at once: about `TILE` of them are near to each."""
        tile, near = TILE, self._pool.live
        while tile < k and 2 * tile * near <= TILE * self.s.size:
            tile *= 2
        return tile

    def _update_pairs(self, turn: Round, meetings: int, rest: bool) -> tuple[float, float]:
        """Update every pair with an active device; return the sums of its squared residuals."""
        chunks = turn.bounds.size - 1
        if rest:
            self._come_near(turn, meetings)
        scratch = self._scratch(turn.active.size, chunks)
        state = self._all, self._adjacent, self.omega, turn, self._pieces, rest, scratch

        def run(jobs: Ints) -> None:
            for c in jobs.tolist():
                _pairs.settle(*state, c)

        _share_out(run, chunks, meetings * self.d)
        if scratch.left.any():
            self._let_go()
        self._gather(turn.active, scratch)
        primal, dual = map(sum, scratch.squares.T.tolist())
        return primal, dual

    def _come_near(self, turn: Round, meetings: int) -> None:
        """Give rows to pairs that are far no longer; if there are none to be had, undo the round."""
        self._watch.move(turn.active, turn.lengths)
        due = self._watch.due(turn.active, self._reach)
        if not due.any():
            return
        chunks, way, reach, everything = turn.bounds.size - 1, self._watch.way, self._reach, self._all
        least, wanted = np.empty((chunks, due.size)), np.empty(chunks, np.int64)

        def look(jobs: Ints) -> None:
            _pairs.look(everything, self.omega, turn, due, way, reach, (wanted, least), jobs)

        _share_out(look, chunks, meetings * GLANCE)
        if wanted.any():
            rows, starts = self._rows_for(int(wanted.sum()), turn), np.cumsum(wanted) - wanted
            everything, near = self._all, self._adjacent  # the rows may have gone to disk

            def claim(jobs: Ints) -> None:
                _pairs.claim(everything, near, self.omega, turn, due, rows, starts, jobs)

            _share_out(claim, chunks, float(wanted.sum()) * self.d)
        self._watch.learn(turn.active[due], least.min(axis=0)[due])
        if self._watch.long(reach):
            self._watch.settle(self.r, self._where)

    @property
    def _adjacent(self) -> Bytes:
        """Say of every two devices whether their pair is near (m x m, 0 or 1)."""
        if self._beside is None:
            self._beside = self._matrix()
        return self._beside

    def _matrix(self) -> Bytes:
        beside: Bytes = alignment.zeros(self.m**2, np.uint8).reshape(self.m, self.m)
        if not self._pool.live:
            return beside
        for hi in range(1, self.m):
            beside[hi, :hi] = self._where[hi * (hi - 1) // 2 : hi * (hi + 1) // 2] >= 0
        for a, b in product(range(0, self.m, BLOCK), repeat=2):
            beside[a : a + BLOCK, b : b + BLOCK] |= beside[b : b + BLOCK, a : a + BLOCK].T
        return beside

    def _gather(self, active: Ints, scratch: Scratch) -> None:
        """Put together what chunks have collected for active devices."""
        rows = scratch.rows
        if len(rows) == 1:
            self._sums[active] = rows[0, : active.size, : self.d]
            return
        cost = np.full(active.size, WORK * rows[:, 0].size)
        spread(lambda some: _pairs.gather(rows, active, self._sums, some), cost)

    @property
    def _reach(self) -> float:
        """Distance from which on a pair needs no vector."""
        return float(self.penalty.reach)

    def _let_go(self) -> None:
        """Take back the rows of pairs that have become far in this round."""
        pairs = np.flatnonzero(self._where <= LEFT)
        rows, (lo, hi), watch = LEFT - self._where[pairs], devices_of(pairs), self._watch
        self._where[pairs] = FAR
        self.r[pairs] = self.r[pairs] * CAUTION + watch.way[lo] + watch.way[hi]
        self._adjacent[lo, hi] = self._adjacent[hi, lo] = 0
        watch.forget(np.concatenate([lo, hi]))
        self._take_back(rows)

    def _take_back(self, rows: Numbers) -> None:
        if rows.size:
            self._pool.give_back(rows)
            self._tidy()

    def _rows_for(self, wanted: int, turn: Round) -> Numbers:
        """Return rows for so many pairs; if there are none, undo what the round has done so far."""
        try:
            return self._pool.take(wanted)
        except FedfuseError:
            self.omega[turn.active] = turn.before[:, : self.d]
            self._squares = squares_of(self.omega)
            self.r[self._where < 0] = 0  # bounds for parameters that are no more
            self._watch = DistanceBounds(self.m)
            self._where[self._where == WANTED] = FAR
            raise

    def _tidy(self) -> None:
        """Give memory back to the system where much of it lies idle."""
        if self._pool.sparse:
            near = self.near
            places = self._where[near]
            self._pool.squeeze(places)
            self._where[near] = places

    def _square(self, pairs: Floats | Bools) -> Floats:
        full = np.zeros((self.m, self.m))
        full[np.tril_indices(self.m, -1)] = pairs
        return np.asarray(full + full.T)

    def _oriented(self, i: int, j: int, weight: Any) -> Floats:
        if i == j:
            return np.zeros(self.d, self.omega.dtype)
        lo, hi = min(i, j), max(i, j)
        p = hi * (hi - 1) // 2 + lo
        delta = self.omega[lo] - self.omega[hi] if self._where[p] < 0 else self._vectors(np.array([p]))[0]
        return np.asarray(weight(self.s[p]) * delta * (1 if i < j else -1))

    def _vectors(self, pairs: Ints) -> Floats:
        """Return the vectors of these near pairs."""
        return np.asarray(self._pool.rows[self._where[pairs], : self.d])


def _kind(backend: str | None, collapse: int | None) -> type[FusionState]:
    """Return the class of a state that lives so."""
    if collapse is not None:
        from fedfuse.pairs.collapsed import CollapsingState

        return CollapsingState
    if backend is not None:
        from fedfuse.pairs.blocks import BlockedState

        return BlockedState
    return FusionState


def one_row_each(omega: npt.ArrayLike, dtype: npt.DTypeLike) -> Floats:
    """Return first parameters as an array of this type; raise unless they have one row per device."""
    start: Floats = np.array(omega, dtype=dtype, order="C")
    if start.ndim != 2:
        raise FedfuseError(f"omega must have one row per device, got an array of shape {start.shape}")
    return start


def cold_sums(omega: Floats) -> Floats:
    """Return the anchor sums of pairs that all have theta = v = 0."""
    return np.asarray(omega.sum(axis=0, dtype=np.float64) - len(omega) * omega.astype(np.float64))


def squared_distances(omega: Floats, origin: int, rows: slice) -> Floats:
    """Return ||omega_i - omega_j||^2 of these rows and all, by matrix products in double precision.

    The product formula loses digits where rows share a large part, so row ``origin`` is taken from all first.
    """
    apart: Floats = np.zeros((len(omega[rows]), len(omega)))
    for first in range(0, omega.shape[1], PANEL):  # a panel at a time: copies in double precision are large
        panel = omega[:, first : first + PANEL].astype(np.float64)
        panel -= panel[origin].copy()
        squares = np.square(panel).sum(axis=1)
        apart += squares[rows, None] + squares[None, :] - 2 * panel[rows] @ panel.T
    return apart


def _share_out(run: Callable[[Ints], None], chunks: int, work: float) -> None:
    """Do all chunks, in threads if there are several."""
    if chunks == 1:
        run(ONLY)
    else:
        spread(run, np.full(chunks, WORK * work / chunks))


def _pool(pairs: int, omega: Floats, memory: int | None, spill: str | PathLike[str] | None) -> Pool:
    """Return room for the vectors of so many pairs.

    Long ones are whole cache lines; in short ones that would cost more memory than it is worth.
    """
    d, long = omega.shape[1], omega.shape[1] * omega.itemsize >= 16 * alignment.LINE
    width = alignment.whole(d, omega.dtype) if long else d
    return Pool(pairs, width, omega.dtype, memory, None if spill is None else Path(spill))


def check_fit(arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Raise unless these arrays can be those of one state."""
    near, delta, s, r, sums = (arrays[name] for name in ("near", "delta", "s", "r", "sums"))
    m, d = arrays["omega"].shape
    pairs = m * (m - 1) // 2
    shapes = [delta.shape, s.shape, r.shape, sums.shape]
    if shapes != [(near.size, d), (pairs,), (pairs,), (m, d)] or (near >= pairs).any():
        raise FedfuseError("the arrays of this fusion state do not fit each other")


def _meetings(m: int, k: int) -> int:
    """Return the number of pairs that have at least one of k active devices."""
    return k * (m - k) + k * (k - 1) // 2


def _cut(m: int, devices: Ints, chunks: int) -> tuple[Ints, Ints]:
    """Return each device's place among the active ones (or -1), and partners cut into runs of equal work."""
    rank, bounds = np.empty(m, np.int64), np.empty(chunks + 1, np.int64)
    _pairs.line_up(devices, rank, bounds)
    if bounds[0] < 0:
        raise unknown_device(devices, m)
    return rank, bounds


def unknown_device(devices: Ints, m: int) -> FedfuseError:
    """Say what is wrong with these devices."""
    if devices.min() >= 0 and devices.max() < m:
        return FedfuseError("a device occurs twice in one round")
    return FedfuseError(f"devices must lie in 0 … {m - 1}, got {devices.min()} … {devices.max()}")


def squares_of(omega: Floats) -> Floats:
    """Return the squared lengths of rows."""
    return np.asarray(np.einsum("ij,ij->i", omega, omega, dtype=np.float64))
