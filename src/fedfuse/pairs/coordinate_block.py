"""One block of coordinates of the pair state: what a thread or a machine of its own looks after.

It knows its columns of all parameters, pair vectors and anchor sums, and adds up squares over them. What depends on
whole norms is decided by `pairs.blocks.BlockedState`, which adds the squares of all blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedfuse.pairs.layout import BLOCK, FAR, Pairs
from fedfuse.pairs.memory import Numbers, Pool, _free_memory
from fedfuse.pairs.state import squared_distances
from fedfuse.utils.jit import Kernels
from fedfuse.utils.typing import Bools, Floats, Ints

# Numbers of a device in a tile: as many as leave room for all devices in the cache, within these bounds.
CACHED, LEAST, MOST = 1 << 17, 256, BLOCK

_pairs, _tiles = Kernels("fedfuse.pairs.pair_kernels"), Kernels("fedfuse.pairs.tile_kernels")


@dataclass
class Turn:
    """A round that goes on: who has moved, and the near pairs that this touches."""

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

    Parameters
    ----------
    omega
        The columns of all devices' parameters; no pair has a vector yet.
    limit, spill
        Bytes for vectors of pairs, and a directory for what is more: see `pairs.memory.Pool`.
    sharers
        How many blocks share the memory of this machine, where there is no limit.
    """

    _turn: Turn | None = None

    def __init__(self, omega: Floats, limit: int | None = None, spill: Path | None = None, sharers: int = 1) -> None:
        self.omega = np.array(omega, order="C")
        self.sums = np.zeros(self.omega.shape)
        m, d = self.omega.shape
        limit = _free_memory() // sharers if limit is None else limit
        self._pool = Pool(m * (m - 1) // 2, d, self.omega.dtype, limit, spill)
        self._where: Numbers = np.full(m * (m - 1) // 2, FAR, np.int32)

    @property
    def _tile(self) -> int:
        return max(LEAST, min(MOST, CACHED // len(self.omega) // 16 * 16))

    # -- one round: `place`, perhaps `look`, `measure`, `spread`

    def place(self, active: Ints, new: Floats) -> Floats:
        """Put in new parameters; return the squares of what they have changed by, and of themselves (active x 2)."""
        rank = np.full(len(self.omega), -1)
        rank[active] = np.arange(active.size)
        none, before = np.empty(0, np.int64), self.omega[active]
        self._turn = Turn(np.array(active), rank, before, none, none, none, before[0, :0], np.empty(0, np.int32))
        self.omega[active] = new
        now = self.omega[active]
        return np.stack([_lengths(now - before), _lengths(now)], axis=1)

    def look(self, pairs: Ints, both: Ints) -> tuple[Floats, Floats]:
        """Return the squared distances of these devices (2 x n), and of the moves of those (by rank)."""
        turn = self._now
        moved = self.omega[turn.active] - turn.before if both.size else turn.before
        return self._apart(self.omega, pairs), self._apart(moved, both)

    def measure(self, pairs: Ints, devices: Ints, s: Floats, fresh: Bools) -> tuple[Floats, Floats]:
        """Return the squares of these near pairs' new vectors and of their changes, and those of fresh pairs' old ones.

        Fresh ones were far until now, and get rows. These are all pairs that the round touches; the devices are 2 x n.
        """
        turn = self._now
        turn.pairs, turn.s, (turn.lo, turn.hi) = np.array(pairs), np.array(s), np.array(devices, order="C")
        turn.fresh = self._pool.take(int(fresh.sum()))
        self._where[pairs[fresh]] = turn.fresh
        lo, hi, place = turn.lo, turn.hi, self._where[turn.pairs]
        old, squares = np.zeros(turn.fresh.size), np.zeros((lo.size, 2))
        _tiles.fill(self._pool.rows, self.omega, turn.before, turn.rank, lo[fresh], hi[fresh], turn.fresh)
        _tiles.lengths(self._pool.rows, turn.fresh, old, MOST)
        _tiles.measure(self._pool.rows, self.omega, lo, hi, place, 1 - turn.s, squares, self._tile)
        return squares, old

    def spread(self, s: Floats) -> None:
        """Finish the round: the new factors of the pairs that were measured. Pairs that stay beyond reach are far."""
        turn, place = self._now, self._where[self._now.pairs]
        space = (np.empty((len(n), self._tile), self.omega.dtype) for n in (self.omega, turn.active))
        todo, factors = (turn.lo, turn.hi, place), (turn.s, np.array(s))
        _tiles.spread(
            self._pool.rows, self.omega, turn.before, self.sums, turn.active, turn.rank, todo, factors, tuple(space)
        )
        left = (turn.s == 1) & (factors[1] == 1)
        self._turn = None
        if left.any():
            self._pool.give_back(place[left])
            self._where[turn.pairs[left]] = FAR
            self._tidy()

    def undo(self) -> None:
        """Forget a round that could not be finished."""
        if self._turn is None:
            return
        turn, self._turn = self._turn, None
        self.omega[turn.active] = turn.before
        fresh = np.isin(self._where, turn.fresh)
        self._pool.give_back(turn.fresh)
        self._where[fresh] = FAR

    # -- the rest of the interface

    def anchors(self, devices: Ints) -> Floats:
        """Return these columns of the anchors."""
        zeta = np.empty((devices.size, self.omega.shape[1]), self.omega.dtype)
        _pairs.anchors(self.omega, self.sums, np.array(devices), zeta)
        return zeta

    def give(self, pairs: Ints, delta: Floats | None = None) -> None:
        """Give rows to these pairs, with these vectors or zeros."""
        self._where[pairs] = places = self._pool.take(pairs.size)
        self._pool.rows[places] = 0 if delta is None else delta

    def set_sums(self, sums: Floats) -> None:
        """Set the anchor sums."""
        self.sums = np.array(sums, np.float64)

    def admit(self, new: Floats) -> None:
        """Add devices; all their pairs are far."""
        self.omega = np.concatenate([self.omega, new])
        self.sums = np.concatenate([self.sums, np.zeros(new.shape)])
        pairs = len(self.omega) * (len(self.omega) - 1) // 2
        self._pool = self._pool.grown(pairs)
        self._where = np.concatenate([self._where, np.full(pairs - self._where.size, FAR, np.int32)])

    def restart(self) -> None:
        """Make all pairs far."""
        self._pool.give_back(self._where[self._where >= 0])
        self._where[:] = FAR
        self.sums[:] = 0
        self._tidy()

    def recompute_sums(self, s: Floats) -> None:
        """Build all anchor sums anew from the vectors and these factors of all pairs."""
        s = np.array(s)
        pairs = Pairs(self._pool.rows, s, s, self._where, self.sums)
        _pairs.total_sums(pairs, self.omega, np.arange(len(self.omega)))

    def rescale(self, s: Floats, ratio: float) -> None:
        """Change vectors as a new rho wants it (see `pairs.pair_kernels.rescale`); ``s`` are the factors of all pairs."""
        _pairs.rescale(self._pool.rows, np.array(s), np.array(s), self._where, ratio)

    def rows(self, pairs: Ints) -> Floats:
        """Return the vectors of these near pairs."""
        return np.asarray(self._pool.rows[self._where[pairs]])

    def total(self) -> Floats:
        """Return the anchor sums."""
        return self.sums

    def gaps(self, origin: int, rows: slice) -> Floats:
        """Return these columns' part of the squared distances of these devices to all."""
        return squared_distances(self.omega, origin, rows)

    def nbytes(self) -> int:
        """Return the bytes of all vectors of pairs."""
        return self._pool.nbytes + self._where.nbytes

    @property
    def _now(self) -> Turn:
        if self._turn is None:
            raise RuntimeError("no round goes on")
        return self._turn

    def _apart(self, rows: Floats, pairs: Ints) -> Floats:
        squares = np.zeros(pairs.shape[1])
        _tiles.apart(rows, *np.array(pairs, order="C"), squares, self._tile)
        return squares

    def _tidy(self) -> None:
        if self._pool.sparse:
            near = np.flatnonzero(self._where >= 0)
            places = self._where[near]
            self._pool.squeeze(places)
            self._where[near] = places


def _lengths(rows: Floats) -> Floats:
    squares = np.zeros(len(rows))
    _tiles.lengths(rows, np.arange(len(rows), dtype=np.int32), squares, MOST)
    return squares
