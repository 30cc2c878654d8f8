"""The server's half of FPFC: parameters of all devices and the state of all their pairs.

The textbook keeps theta_ij and v_ij for every ordered pair. After an update both are multiples of one vector,
theta = s delta and v = rho (1 - s) delta, so one vector and one number per unordered pair are enough:

    delta_ij <- omega_i - omega_j + (1 - s_ij) delta_ij
    s_ij     <- shrink(||delta_ij||)
    zeta_i    = mean_j omega_j + (1/m) sum_{j != i} (2 s_ij - 1) delta_ij,    delta_ji = -delta_ij
              = omega_i + (1/m) sum_{j != i} [(2 s_ij - 1) delta_ij - (omega_i - omega_j)]

The start theta = v = 0 is delta = 0, s = 1; the start theta = omega_i - omega_j, v = 0 is delta = omega_i -
omega_j, s = 1. A pair beyond the reach of the penalty gets there by itself and adds nothing to the sum: while
it stays there, its vector is not even looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse import _pairs, penalties
from fedfuse._lanes import BYTES
from fedfuse._pairs import Pairs, Round, Scratch
from fedfuse.errors import FedfuseError
from fedfuse.models._threads import spread
from fedfuse.penalties import Penalty
from fedfuse.types import Bools, Floats, Ints

# Numbers in a round's pairs below which a second thread costs more than it saves.
LARGE = 3_000_000
# How much work such a number is, in the units of `spread`: memory is slower than arithmetic.
WORK = 4.0
# The jobs of a round that is one chunk.
ONLY = np.zeros(1, np.int64)


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

    Examples
    --------
    >>> state = FusionState(np.zeros((3, 2)), penalties.SmoothedSCAD(0.5))
    >>> _ = state.absorb([0, 1, 2], np.array([[1.0, 0.0], [1.0, 0.1], [9.0, 9.0]]))
    >>> state.anchors([2]).round(3).tolist()
    [[9.0, 9.0]]
    """

    _kept: tuple[tuple[int, ...], tuple[Any, ...], Scratch] | None = None

    def __init__(
        self,
        omega: npt.ArrayLike,
        penalty: Penalty,
        rho: float = 1.0,
        *,
        warm: bool = False,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        self.omega: Floats = np.array(omega, dtype=dtype, order="C")
        if self.omega.ndim != 2:
            raise FedfuseError(f"omega must have one row per device, got an array of shape {self.omega.shape}")
        self._rho = rho
        self.penalty = penalty
        pairs = self.m * (self.m - 1) // 2
        self._delta: Floats = _rows((pairs,), self.d, self.omega.dtype)
        self.s: Floats = np.ones(pairs, dtype)
        self.r: Floats = np.zeros(pairs, dtype)
        self.far: Bools = np.zeros(pairs, np.bool_)
        self._sums: Floats = self.omega.sum(axis=0, dtype=np.float64) - self.m * self.omega.astype(np.float64)
        self._squares = _squares(self.omega)
        if warm:
            self.restart_pairs()

    @property
    def m(self) -> int:
        """Number of devices."""
        return int(self.omega.shape[0])

    @property
    def d(self) -> int:
        """Number of parameters of each device."""
        return int(self.omega.shape[1])

    @property
    def delta(self) -> Floats:
        """One row per pair lo < hi, at hi (hi - 1) / 2 + lo."""
        return self._delta[:, : self.d]

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
        _pairs.rescale(self._delta, self.s, self.r, self._rho / rho)
        self._rho = rho
        self._pieces = self._penalty.pieces(rho)
        self.renew()

    @property
    def nbytes(self) -> int:
        """Bytes of the pair state."""
        return self._delta.nbytes + self.s.nbytes + self.r.nbytes + self.far.nbytes

    def absorb(self, devices: npt.ArrayLike, omegas: npt.ArrayLike) -> Residuals:
        """Take the new parameters of some devices and update every pair that has one of them."""
        active = np.array(devices, dtype=np.int64)
        new = np.asarray(omegas, dtype=self.omega.dtype, order="C")
        if active.ndim != 1 or new.shape != (active.size, self.d):
            raise FedfuseError(
                f"{active.size} devices need parameters of shape ({active.size}, {self.d}), got {new.shape}"
            )
        if not active.size:
            return Residuals(0.0, 0.0, 0.0)
        if np.may_share_memory(new, self.omega) or not new.flags.writeable:
            new = new.copy()  # numba would compile once more for arrays that are not to be written
        # chunks by sizes alone, so that the number of threads does not change results
        meetings = _meetings(self.m, active.size)
        chunks = min(max(self.m // 25, 2), 8) if meetings * self.d > LARGE else 1
        rank, bounds = _cut(self.m, active, chunks)
        space, scratch = self._room(active.size, chunks)
        turn = Round(rank, bounds, *space)
        way, size = _pairs.place(self.omega, active, new, tuple(turn), self._squares)
        primal, dual = self._update_pairs(turn, scratch, meetings)
        scale = sqrt(size / self.m) or 1.0
        return Residuals(primal / scale, dual / scale, sqrt(way / active.size) / scale)

    def anchors(self, devices: npt.ArrayLike) -> Floats:
        """Return zeta_i, the vector that device i is pulled to, for each of these devices."""
        index = np.array(devices, dtype=np.int64)
        zeta: Floats = np.empty((index.size, self.d), self.omega.dtype)
        if not _pairs.anchors(self.omega, self._sums, index, zeta):
            raise _nobody(index, self.m)
        return zeta

    def admit(self, omega: npt.ArrayLike, *, warm: bool = True) -> Ints:
        """Add newcomers (one vector, or one row each); return their numbers. Nobody else's parameters change.

        With ``warm`` a newcomer starts without a pull (theta = omega_i - omega_j); else from theta = 0.
        """
        new = np.atleast_2d(np.asarray(omega, dtype=self.omega.dtype))
        if new.shape[1] != self.d:
            raise FedfuseError(f"a newcomer needs {self.d} parameters, got {new.shape[1]}")
        before, self.omega = self.m, np.concatenate([self.omega, new])
        fresh = self.m * (self.m - 1) // 2 - len(self.s)
        known, self._delta = self._delta, _rows((len(self.s) + fresh,), self.d, self.omega.dtype)
        self._delta[: len(known)] = known
        self.s = np.concatenate([self.s, np.ones(fresh, self.s.dtype)])
        self.r = np.concatenate([self.r, np.zeros(fresh, self.r.dtype)])
        self.far = np.concatenate([self.far, np.full(fresh, warm)])
        self._sums = np.concatenate([self._sums, np.zeros((len(new), self.d))])
        self._squares = np.concatenate([self._squares, _squares(new)])
        if not warm:
            self.renew()
        return np.arange(before, self.m)

    def restart_pairs(self) -> None:
        """Forget all pairs: theta_ij = omega_i - omega_j, v_ij = 0."""
        self.s[:], self.r[:], self.far[:] = 1, 0, True
        self._sums[:] = 0

    def renew(self) -> None:
        """Build all anchor sums anew from the stored pairs."""
        spread(
            lambda jobs: _pairs.total_sums(self._all, self.omega, jobs),
            np.full(self.m, WORK * self.m * self.d),
        )

    def norms(self) -> Floats:
        """Return ||theta_ij|| for all pairs (m x m, symmetric)."""
        near = self._square(np.where(self.far, 0, self.s.astype(np.float64) * self.r))
        return near + self._square(self.far) * self.distances() if self.far.any() else near

    def distances(self) -> Floats:
        """Return ||omega_i - omega_j|| for all pairs (m x m)."""
        # the product formula loses digits when rows share a large part, so the shortest is taken from all first; not
        # their mean, which a single device that lies can move as far as it likes
        rows = self.omega.astype(np.float64)
        centred = rows - rows[int(np.square(rows).sum(axis=1).argmin())] if len(rows) else rows
        squares = np.square(centred).sum(axis=1)
        gram = squares[:, None] + squares[None, :] - 2 * centred @ centred.T
        np.fill_diagonal(gram, 0.0)
        return np.asarray(np.sqrt(np.maximum(gram, 0.0)))

    def theta(self, i: int, j: int) -> Floats:
        """Return theta_ij."""
        return self._oriented(i, j, lambda s: s)

    def v(self, i: int, j: int) -> Floats:
        """Return v_ij."""
        return self._oriented(i, j, lambda s: self.rho * (1 - s))

    def pack(self) -> dict[str, npt.NDArray[Any]]:
        """Return the whole state as arrays (see `unpack`)."""
        return {**self._all._asdict(), "delta": self.delta, "omega": self.omega, "rho": np.float64(self.rho)[None]}

    @classmethod
    def unpack(cls, arrays: dict[str, npt.NDArray[Any]], penalty: Penalty) -> FusionState:
        """Build the state that `pack` took apart."""
        state = cls.__new__(cls)
        state.omega, state._rho = arrays["omega"], float(arrays["rho"][0])
        delta, state.s, state.r, state.far, state._sums = (arrays[name] for name in Pairs._fields)
        pairs = state.m * (state.m - 1) // 2
        shapes = [arrays[name].shape for name in Pairs._fields]
        if shapes != [(pairs, state.d), (pairs,), (pairs,), (pairs,), (state.m, state.d)]:
            raise FedfuseError("the arrays of this fusion state do not fit each other")
        state._delta, state._squares = _rows((pairs,), state.d, state.omega.dtype), _squares(state.omega)
        state._delta[:, : state.d] = delta
        state.penalty = penalty
        return state

    def save(self, path: str | PathLike[str]) -> None:
        """Write the state to an .npz file (no pickles)."""
        settings = {f"penalty_{k}": np.array(v) for k, v in self.penalty.to_config().items()}
        with open(path, "wb") as file:  # noqa: PTH123 - a path without the suffix that numpy would add
            np.savez(file, **self.pack(), **settings)  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | PathLike[str]) -> FusionState:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        settings = {k.removeprefix("penalty_"): v.item() for k, v in arrays.items() if k.startswith("penalty_")}
        return cls.unpack(arrays, penalties.from_config(settings))

    @property
    def _all(self) -> Pairs:
        return Pairs(self._delta, self.s, self.r, self.far, self._sums)

    def _room(self, k: int, chunks: int) -> tuple[tuple[Any, ...], Scratch]:
        """Return arrays for a round of k active devices (see `Round`) and its chunks: the last ones if they fit."""
        sizes = (k, chunks, self.m)
        if self._kept is None or self._kept[0] != sizes:
            now, before, moved = _rows((3, k), self.d, self.omega.dtype, _pairs.LINE)
            scratch = Scratch(
                rows=_rows((chunks, k + 4), self.d, self.omega.dtype, _pairs.LINE),
                todo=np.empty((chunks, 3, _pairs.TILE * self.m + 1), np.int64),
                squares=np.empty((chunks, 2)),
            )
            self._kept = sizes, (np.empty(k, np.int64), np.empty(k), now, before, moved), scratch
        return self._kept[1:]

    def _update_pairs(self, turn: Round, scratch: Scratch, meetings: int) -> tuple[float, float]:
        """Update every pair with an active device; return the root mean squares of its residuals."""
        # named tuples take numba longer to look at
        arguments = (tuple(self._all), self.omega, tuple(turn), tuple(self._pieces), float(self.penalty.reach))
        chunks, space = turn.bounds.size - 1, tuple(scratch)

        def run(jobs: Ints) -> None:
            _pairs.absorb(*arguments, space, jobs)

        if chunks == 1:
            run(ONLY)
        else:
            spread(run, np.full(chunks, WORK * meetings * self.d / chunks))
        primal, dual = _pairs.gather(space, turn.active, self._sums)
        return sqrt(primal / max(meetings, 1)), sqrt(dual / max(meetings, 1))

    def _square(self, pairs: Floats | Bools) -> Floats:
        full = np.zeros((self.m, self.m))
        full[np.tril_indices(self.m, -1)] = pairs
        return np.asarray(full + full.T)

    def _oriented(self, i: int, j: int, weight: Any) -> Floats:
        if i == j:
            return np.zeros(self.d, self.delta.dtype)
        lo, hi = min(i, j), max(i, j)
        p = hi * (hi - 1) // 2 + lo
        delta = self.omega[lo] - self.omega[hi] if self.far[p] else self.delta[p]
        return np.asarray(weight(self.s[p]) * delta * (1 if i < j else -1))


def _meetings(m: int, k: int) -> int:
    """Return the number of pairs that have at least one of k active devices."""
    return k * (m - k) + k * (k - 1) // 2


def _cut(m: int, devices: Ints, chunks: int) -> tuple[Ints, Ints]:
    """Return each device's place among the active ones (or -1), and partners cut into runs of equal work."""
    rank, bounds = np.empty(m, np.int64), np.empty(chunks + 1, np.int64)
    if not _pairs.line_up(devices, rank, bounds):
        raise _nobody(devices, m)
    return rank, bounds


def _nobody(devices: Ints, m: int) -> FedfuseError:
    """Say what is wrong with these devices."""
    if devices.min() >= 0 and devices.max() < m:
        return FedfuseError("a device occurs twice in one round")
    return FedfuseError(f"devices must lie in 0 … {m - 1}, got {devices.min()} … {devices.max()}")


def _rows(shape: tuple[int, ...], d: int, dtype: npt.DTypeLike, unit: int | None = None) -> Floats:
    """Return zeros with room for ``d`` numbers along the last axis, in rows of whole units of so many bytes.

    Without a unit, long rows are whole vectors; in short ones that would cost more memory than it is worth.
    """
    kind = np.dtype(dtype)
    unit = unit or (BYTES if d * kind.itemsize >= 32 * BYTES else kind.itemsize)
    size = -(-d * kind.itemsize // unit) * unit
    space = np.empty(prod(shape) * size + _pairs.LINE, np.uint8)
    space[:] = 0  # not np.zeros: numpy asks for huge pages only here, and rows are visited far apart
    first = -space.ctypes.data % _pairs.LINE
    return space[first : first + prod(shape) * size].view(kind).reshape(*shape, size // kind.itemsize)


def _squares(omega: Floats) -> Floats:
    """Return the squared lengths of rows."""
    return np.asarray(np.einsum("ij,ij->i", omega, omega, dtype=np.float64))
