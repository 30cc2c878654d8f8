"""Blocks of coordinates of the pair state, in threads of this process or (`pairs.ray_blocks`) on a Ray cluster.

The norm is the only thing that couples coordinates. So every block keeps its columns of parameters, pair vectors and
anchor sums. In a round, blocks send partial squares of pairs; their sums give the shrink factors, which go back to all
blocks. Numbers of whole pairs (factor, norm, near or far) and the parameters, which callers read, are kept once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedfuse.errors import FedfuseError
from fedfuse.pairs.distance_bounds import DistanceBounds
from fedfuse.pairs.layout import FAR, ROUND_DOWN, SUM_BLOCK, pair_count, pair_numbers
from fedfuse.pairs.memory import Folder, Numbers, Pool, free_memory
from fedfuse.pairs.numpy_state import row_squares
from fedfuse.pairs.state import FusionState, check_backend, check_devices
from fedfuse.utils.jit import Kernels
from fedfuse.utils.lazy import load
from fedfuse.utils.threads import spread
from fedfuse.utils.typing import Bools, Floats, Ints

# By default a process has one block for so many columns, and at most so many blocks: by d alone, so that the number
# of processors does not change results.
COLUMNS_PER_BLOCK, MAX_BLOCKS = 1 << 14, 8
# Bytes of pair vectors that are sent from or to blocks at once.
MAX_SENT_BYTES = 1 << 28
# Columns of a tile: as many as leave room for this many numbers of all devices in the cache, within these bounds.
CACHED_NUMBERS, MIN_TILE_COLUMNS, MAX_TILE_COLUMNS = 1 << 17, 256, SUM_BLOCK
# Value of `_where` for a near pair: blocks know where its vector is.
NEAR = 0

_pairs = Kernels("fedfuse.pairs.pair_kernels")


class TouchedPairs(NamedTuple):
    """Pairs that a round touches."""

    pairs: Ints
    devices: Ints  # 2 x n: the lower and the higher device
    ranks: Ints  # 2 x n: their places among the active ones, or -1

    def only(self, which: Bools) -> TouchedPairs:
        return TouchedPairs(self.pairs[which], self.devices[:, which], self.ranks[:, which])


class BlockedState(FusionState):
    """As `FusionState`, which makes it where a ``backend`` is given. ``omega`` is read-only."""

    def _allocate(
        self, memory: int | None = None, spill: Folder = None, backend: str | None = None, blocks: int | None = None
    ) -> None:
        check_backend(backend, blocks)
        kind = load("fedfuse.pairs.ray_blocks:RayBlocks") if backend == "ray" else ThreadBlocks
        self._executor: BlockExecutor = kind(self.omega, blocks, memory, spill)
        self._where = np.full(len(self.s), FAR, np.int32)
        self._bounds = DistanceBounds(self.m)  # without paths: bounds are kept for each pair
        self._squares = row_squares(self.omega)
        self.omega.flags.writeable = False  # blocks have their own

    def _set_vectors(self, pairs: Ints, delta: Floats | None = None) -> None:
        if delta is None:
            self._executor.every("set_vectors", pairs)
        else:
            for some in self._batches(pairs.size):
                self._executor.each("set_vectors", [(pairs[some], part) for part in self._executor.cut(delta[some])])
        self._where[pairs] = NEAR

    def _vectors(self, pairs: Ints) -> Floats:
        delta: Floats = np.empty((pairs.size, self.d), self.omega.dtype)
        for some in self._batches(pairs.size):
            self._executor.joined(self._executor.every("vectors", pairs[some]), delta[some])
        return delta

    def _batches(self, n: int) -> list[slice]:
        """Cut so many vectors into runs that may be sent at once."""
        step = max(1, MAX_SENT_BYTES // max(1, self.d * self.omega.itemsize))
        return [slice(first, first + step) for first in range(0, n, step)]

    @property
    def _sums(self) -> Floats:
        return self._executor.joined(self._executor.every("get_sums"), np.empty((self.m, self.d)))

    @_sums.setter
    def _sums(self, sums: Floats) -> None:
        self._executor.each("set_sums", [(part,) for part in self._executor.cut(sums)])

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self._executor)

    @property
    def nbytes(self) -> int:
        return int(sum(self._executor.every("nbytes"))) + self.s.nbytes + self.r.nbytes + self._where.nbytes

    def _update_squares(self, active: Ints, new: Floats) -> tuple[float, float, float, float]:
        check_devices(active, self.m, once=True)
        order = np.argsort(active)
        active, new = active[order], new[order]
        squares = _added(self._executor.each("set_parameters", [(active, part) for part in self._executor.cut(new)]))
        try:
            primal, dual = self._update_touched(active, np.sqrt(squares[:, 0]))
        except FedfuseError:
            self._executor.every("undo")
            raise
        self._squares[active] = squares[:, 1]
        self.omega.flags.writeable = True
        self.omega[active] = new
        self.omega.flags.writeable = False
        return float(squares[:, 0].sum()), float(self._squares.sum()), primal, dual

    def _update_touched(self, active: Ints, lengths: Floats) -> tuple[float, float]:
        """Update the pairs of devices that have moved so far; return squared residuals."""
        touched = _touched_pairs(self.m, active)
        far = self._where[touched.pairs] < 0
        bound, apart = self._far_bounds(touched.only(far), lengths)
        stays = bound > self._reach
        fresh = far.copy()
        fresh[far] = ~stays
        near = touched.only(~far | fresh)
        primal, dual = self._update_near(near, fresh[~far | fresh])
        # nothing is written before this: a round may be refused for want of memory
        self.r[touched.pairs[far & ~fresh]] = bound[stays]
        return primal, dual + float(apart[stays].sum())

    def _far_bounds(self, far: TouchedPairs, lengths: Floats) -> tuple[Floats, Floats]:
        """Return lower bounds for the distances of far pairs, and the squared changes of their theta."""
        moved = np.where(far.ranks < 0, 0.0, lengths[far.ranks])
        bound = ROUND_DOWN * (self.r[far.pairs] - moved.sum(axis=0) / ROUND_DOWN)
        unsure = ~(bound > self._reach)
        both = (far.ranks >= 0).all(axis=0)
        apart = np.square(moved).sum(axis=0)  # theta of a far pair moves as its devices do
        if unsure.any() or both.any():
            parts = self._executor.every("distances", far.devices[:, unsure], far.ranks[:, both])
            bound[unsure] = ROUND_DOWN * np.sqrt(_added([part for part, _ in parts]))
            apart[both] = _added([part for _, part in parts])
        return bound, apart

    def _update_near(self, near: TouchedPairs, fresh: Bools) -> tuple[float, float]:
        """Update near pairs, some of which were far until now; return the sums of their squared residuals."""
        p = near.pairs
        s, r = self.s[p], self.r[p].astype(np.float64)
        parts = self._executor.every("products", p, near.devices, s, fresh)
        r[fresh] = np.sqrt(_added([old for _, old in parts]))
        new, gap = _added([squares for squares, _ in parts]).T
        norms = np.sqrt(new)
        factors = self._shrink(norms).astype(s.dtype)
        self._executor.every("finish", factors)
        products = new, (new + gap - r**2) / 2, gap
        primal = _square_change(1.0 - factors.astype(np.float64), 1.0 - s.astype(np.float64), products)
        dual = _square_change(factors.astype(np.float64), s.astype(np.float64), products)
        self.s[p], self.r[p] = factors, norms
        self._where[p] = np.where((s == 1) & (factors == 1), FAR, NEAR)
        return primal, dual

    def _anchors(self, index: Ints) -> Floats:
        zeta = np.empty((index.size, self.d), self.omega.dtype)
        return self._executor.joined(self._executor.every("anchors", index), zeta)

    def _add_devices(self, new: Floats) -> None:
        self._executor.each("admit", [(part,) for part in self._executor.cut(new)])
        self.omega = np.concatenate([self.omega, new])
        self._squares = row_squares(self.omega)
        self.omega.flags.writeable = False


def _touched_pairs(m: int, active: Ints) -> TouchedPairs:
    """Return the pairs that have at least one of these devices, each once."""
    rank = np.full(m, -1)
    rank[active] = np.arange(active.size)
    i, j = np.repeat(active, m), np.tile(np.arange(m), active.size)
    once = (rank[j] < 0) | (j < i)  # two active devices meet at the higher one's turn
    lo, hi = np.minimum(i, j)[once], np.maximum(i, j)[once]
    return TouchedPairs(pair_numbers(lo, hi), np.stack([lo, hi]), np.stack([rank[lo], rank[hi]]))


def _added(parts: list[Floats]) -> Floats:
    """Add up the parts of all blocks, in their order."""
    total: Floats = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def _square_change(a: Floats, b: Floats, products: tuple[Floats, Floats, Floats]) -> float:
    """Return the sum over pairs of ||a new - b old||^2 (see `pairs.pair_kernels.square_change`)."""
    new_new, gap_new, gap_gap = products
    c = a - b
    return float(np.maximum(c * c * new_new + 2 * c * b * gap_new + b * b * gap_gap, 0.0).sum())


class BlockExecutor(ABC):
    """Blocks of coordinates; block b has the columns ``cuts[b]`` … ``cuts[b + 1]`` - 1.

    Parameters
    ----------
    omega
        Parameters, one row per device.
    blocks
        How many blocks, at most; the executor's own number by default.
    memory, spill
        Bytes for the vectors of all pairs together, and a directory for what is more.
    """

    def __init__(self, omega: Floats, blocks: int | None, memory: int | None, spill: Folder) -> None:
        d = omega.shape[1]
        n = max(1, min(blocks or self._default_blocks(d), d))
        self.cuts: Ints = np.arange(n + 1) * d // n
        shares = [None if memory is None else memory * int(w) // max(d, 1) for w in np.diff(self.cuts)]
        self._start([(part, share, spill) for part, share in zip(self.cut(omega), shares, strict=True)])

    def __len__(self) -> int:
        return self.cuts.size - 1

    @abstractmethod
    def _default_blocks(self, d: int) -> int:
        """Return the number of blocks for vectors of this length."""

    @abstractmethod
    def _start(self, blocks: list[tuple[Any, ...]]) -> None:
        """Make blocks with these arguments."""

    @abstractmethod
    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call this method of every block, with its own arguments; return the results in order."""

    def every(self, name: str, *arguments: Any) -> list[Any]:
        """Call this method of every block with the same arguments."""
        return self.each(name, [arguments] * len(self))

    def cut(self, array: Floats) -> list[Floats]:
        """Return the columns of every block."""
        return [np.ascontiguousarray(array[:, self._columns(b)]) for b in range(len(self))]

    def joined(self, parts: list[Floats], out: Floats) -> Floats:
        """Put the columns of all blocks side by side."""
        for b, part in enumerate(parts):
            out[:, self._columns(b)] = part
        return out

    def _columns(self, b: int) -> slice:
        return slice(int(self.cuts[b]), int(self.cuts[b + 1]))


class ThreadBlocks(BlockExecutor):
    """Blocks in this process, in as many threads as are allowed."""

    def _default_blocks(self, d: int) -> int:
        return min(MAX_BLOCKS, -(-d // COLUMNS_PER_BLOCK))

    def _start(self, blocks: list[tuple[Any, ...]]) -> None:
        self._blocks = [CoordinateBlock(omega, limit, spill, len(blocks)) for omega, limit, spill in blocks]

    def each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        found: list[Any] = [None] * len(self)

        def run(jobs: Ints) -> None:
            for b in jobs:
                found[b] = getattr(self._blocks[b], name)(*arguments[b])

        # about as many numbers as there may be in all pairs; most calls go through those
        spread(run, np.array([len(block.omega) * block.omega.size for block in self._blocks], np.float64))
        return found


@dataclass
class BlockRound:
    """A round in progress: devices that have moved, and the near pairs that this touches."""

    active: Ints  # ascending
    rank: Ints  # place among them, or -1
    before: Floats  # active x columns
    pairs: Ints
    lo: Ints
    hi: Ints
    s: Floats
    fresh: Numbers  # rows that were taken in this round


class CoordinateBlock:
    """Columns of ``omega`` (m x d), of the vectors of near pairs, and of the anchor sums.

    It adds up squares over its columns; `BlockedState` adds those of all blocks, and decides what depends on norms.
    A round is `set_parameters`, perhaps `distances`, `products`, `finish`.

    Parameters
    ----------
    omega
        The columns of all devices' parameters; no pair has a vector yet.
    limit, spill
        Bytes for vectors of pairs, and a directory for what is more: see `pairs.memory.Pool`.
    sharers
        How many blocks share the memory of this machine, where there is no limit.
    """

    _round: BlockRound

    def __init__(self, omega: Floats, limit: int | None = None, spill: Folder = None, sharers: int = 1) -> None:
        self.omega = np.array(omega, order="C")
        self.sums = np.zeros(self.omega.shape)
        m, d = self.omega.shape
        limit = free_memory() // sharers if limit is None else limit
        self._pool = Pool(pair_count(m), d, self.omega.dtype, limit, spill)
        self._where: Numbers = np.full(pair_count(m), FAR, np.int32)

    @property
    def _tile(self) -> int:
        return max(MIN_TILE_COLUMNS, min(MAX_TILE_COLUMNS, CACHED_NUMBERS // len(self.omega) // 16 * 16))

    def set_parameters(self, active: Ints, new: Floats) -> Floats:
        """Write new parameters; return the squares of their changes, and of themselves (active x 2)."""
        rank = np.full(len(self.omega), -1)
        rank[active] = np.arange(active.size)
        none, before = np.empty(0, np.int64), self.omega[active]
        self._round = BlockRound(np.array(active), rank, before, none, none, none, before[0, :0], none.astype(np.int32))
        self.omega[active] = new
        now = self.omega[active]
        return np.stack([_lengths(now - before), _lengths(now)], axis=1)

    def distances(self, pairs: Ints, both: Ints) -> tuple[Floats, Floats]:
        """Return the squared distances of these devices (2 x n), and of the moves of those (by rank)."""
        turn = self._round
        moved = self.omega[turn.active] - turn.before if both.size else turn.before
        return self._distances(self.omega, pairs), self._distances(moved, both)

    def _distances(self, rows: Floats, pairs: Ints) -> Floats:
        squares = np.zeros(pairs.shape[1])
        _pairs.tile_distances(rows, *np.array(pairs, order="C"), squares, self._tile)
        return squares

    def products(self, pairs: Ints, devices: Ints, s: Floats, fresh: Bools) -> tuple[Floats, Floats]:
        """Return the squares of these near pairs' new vectors and of their changes, and those of fresh pairs' old ones.

        Fresh ones were far until now, and get rows. These are all pairs that the round touches; the devices are 2 x n.
        """
        turn = self._round
        turn.pairs, turn.s, (turn.lo, turn.hi) = np.array(pairs), np.array(s), np.array(devices, order="C")
        turn.fresh = self._pool.take(int(fresh.sum()))
        self._where[pairs[fresh]] = turn.fresh
        lo, hi, place = turn.lo, turn.hi, self._where[turn.pairs]
        old, squares = np.zeros(turn.fresh.size), np.zeros((lo.size, 2))
        _pairs.tile_fill(self._pool.rows, self.omega, turn.before, turn.rank, lo[fresh], hi[fresh], turn.fresh)
        _pairs.tile_lengths(self._pool.rows, turn.fresh, old, MAX_TILE_COLUMNS)
        _pairs.tile_products(self._pool.rows, self.omega, lo, hi, place, 1 - turn.s, squares, self._tile)
        return squares, old

    def finish(self, s: Floats) -> None:
        """Finish the round with the new factors of its pairs. Pairs that stay beyond reach are far."""
        turn, place = self._round, self._where[self._round.pairs]
        space = (np.empty((len(n), self._tile), self.omega.dtype) for n in (self.omega, turn.active))
        todo, factors = (turn.lo, turn.hi, place), (turn.s, np.array(s))
        _pairs.tile_update(
            self._pool.rows, self.omega, turn.before, self.sums, turn.active, turn.rank, todo, factors, tuple(space)
        )
        left = (turn.s == 1) & (factors[1] == 1)
        if left.any():
            self._where[turn.pairs[left]] = FAR
            self._pool.give_back(place[left])
            self._pool.compact(self._where)

    def undo(self) -> None:
        """Forget a round that could not be finished."""
        turn = self._round
        self.omega[turn.active] = turn.before
        fresh = np.isin(self._where, turn.fresh)
        self._pool.give_back(turn.fresh)
        self._where[fresh] = FAR

    def anchors(self, devices: Ints) -> Floats:
        """Return these columns of the anchors."""
        zeta = np.empty((devices.size, self.omega.shape[1]), self.omega.dtype)
        _pairs.anchors(self.omega, self.sums, np.array(devices), zeta)
        return zeta

    def set_vectors(self, pairs: Ints, delta: Floats | None = None) -> None:
        """Give vectors to these pairs, by default zeros."""
        self._where[pairs] = places = self._pool.take(pairs.size)
        self._pool.rows[places] = 0 if delta is None else delta

    def vectors(self, pairs: Ints) -> Floats:
        """Return the vectors of these near pairs."""
        return np.asarray(self._pool.rows[self._where[pairs]])

    def set_sums(self, sums: Floats) -> None:
        """Set the anchor sums."""
        self.sums = np.array(sums, np.float64)

    def get_sums(self) -> Floats:
        """Return the anchor sums."""
        return self.sums

    def admit(self, new: Floats) -> None:
        """Add devices; all their pairs are far."""
        self.omega = np.concatenate([self.omega, new])
        self.sums = np.concatenate([self.sums, np.zeros(new.shape)])
        pairs = pair_count(len(self.omega))
        self._pool = self._pool.grown(pairs)
        self._where = np.concatenate([self._where, np.full(pairs - self._where.size, FAR, np.int32)])

    def nbytes(self) -> int:
        """Return the bytes of all vectors of pairs."""
        return self._pool.nbytes + self._where.nbytes


def _lengths(rows: Floats) -> Floats:
    squares = np.zeros(len(rows))
    _pairs.tile_lengths(rows, np.arange(len(rows), dtype=np.int32), squares, MAX_TILE_COLUMNS)
    return squares
