"""The server's half of FPFC: parameters of all devices and the state of all their pairs.

The textbook keeps theta_ij and v_ij for every ordered pair. After an update both are multiples of one vector,
theta = s delta and v = rho (1 - s) delta, so one vector and one number per unordered pair are enough:

    delta_ij <- omega_i - omega_j + (1 - s_ij) delta_ij
    s_ij     <- shrink(||delta_ij||)
    zeta_i    = mean_j omega_j + (1/m) sum_{j != i} (2 s_ij - 1) delta_ij,    delta_ji = -delta_ij

The start theta = v = 0 is delta = 0; the start theta = omega_i - omega_j, v = 0 is delta = omega_i - omega_j,
s = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse import _pairs, penalties
from fedfuse._pairs import Pairs, Plan
from fedfuse.errors import FedfuseError
from fedfuse.models._threads import spread
from fedfuse.penalties import Penalty
from fedfuse.types import Floats, Ints

# Numbers in a round's pairs below which a second thread costs more than it saves.
LARGE = 3_000_000
# How much work such a number is, in the units of `spread`: memory is slower than arithmetic.
WORK = 4.0


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
        self.delta: Floats = np.empty((pairs, self.d), dtype)
        self.delta[:] = 0  # not np.zeros: numpy asks for huge pages only here, and rows are visited far apart
        self.s: Floats = np.ones(pairs, dtype)
        self.r: Floats = np.zeros(pairs, dtype)
        self._sums: Floats = np.zeros((self.m, self.d))
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
        _pairs.rescale(self.delta, self.s, self.r, self._rho / rho)
        self._rho = rho
        self._pieces = self._penalty.pieces(rho)
        self.renew()

    @property
    def nbytes(self) -> int:
        """Bytes of the pair state."""
        return self.delta.nbytes + self.s.nbytes + self.r.nbytes

    def absorb(self, devices: npt.ArrayLike, omegas: npt.ArrayLike) -> Residuals:
        """Take the new parameters of some devices and update every pair that has one of them."""
        active = np.asarray(devices, dtype=np.int64)
        new = np.asarray(omegas, dtype=self.omega.dtype)
        if active.ndim != 1 or new.shape != (active.size, self.d):
            raise FedfuseError(
                f"{active.size} devices need parameters of shape ({active.size}, {self.d}), got {new.shape}"
            )
        if not active.size:
            return Residuals(0.0, 0.0, 0.0)
        order = np.argsort(active)
        active = active[order]
        self._check(active)
        moved, size = _pairs.place(self.omega, active, new[order])
        primal, dual = self._update_pairs(active)
        scale = sqrt(size / self.m) or 1.0
        return Residuals(primal / scale, dual / scale, sqrt(moved / active.size) / scale)

    def anchors(self, devices: npt.ArrayLike) -> Floats:
        """Return zeta_i, the vector that device i is pulled to, for each of these devices."""
        index = np.asarray(devices, dtype=np.int64)
        mean = self.omega.mean(axis=0, dtype=np.float64)
        zeta: Floats = (mean + self._sums[index] / self.m).astype(self.omega.dtype)
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
        first = len(self.s)
        self.delta = np.concatenate([self.delta, np.zeros((fresh, self.d), self.delta.dtype)])
        self.s = np.concatenate([self.s, np.ones(fresh, self.s.dtype)])
        self.r = np.concatenate([self.r, np.zeros(fresh, self.r.dtype)])
        self._sums = np.concatenate([self._sums, np.zeros((len(new), self.d))])
        if warm:
            hi, lo = np.tril_indices(self.m, -1)
            for start in range(first, len(self.s), 4096):
                block = slice(start, start + 4096)
                self.delta[block] = self.omega[lo[block]] - self.omega[hi[block]]
                self.r[block] = np.linalg.norm(self.delta[block], axis=1)
            self.renew()
        return np.arange(before, self.m)

    def restart_pairs(self) -> None:
        """Forget all pairs: theta_ij = omega_i - omega_j, v_ij = 0."""
        self.s[:] = 1
        spread(
            lambda jobs: _pairs.differences(self.delta, self.r, self.omega, jobs),
            WORK * np.arange(self.m) * self.d,
        )
        self.renew()

    def renew(self) -> None:
        """Build all anchor sums anew from the stored pairs."""
        spread(
            lambda jobs: _pairs.total_sums(self.delta, self.s, self._sums, jobs),
            np.full(self.m, WORK * self.m * self.d),
        )

    def norms(self) -> Floats:
        """Return ||theta_ij|| for all pairs (m x m, symmetric)."""
        return self._square(self.s.astype(np.float64) * self.r)

    def distances(self) -> Floats:
        """Return ||omega_i - omega_j|| for all pairs (m x m)."""
        # centred first: the product formula loses digits when all rows share a large part
        centred = self.omega - self.omega.mean(axis=0, dtype=np.float64)
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
        arrays = {"omega": self.omega, "delta": self.delta, "s": self.s, "r": self.r, "sums": self._sums}
        return {**arrays, "rho": np.float64(self.rho)[None]}

    @classmethod
    def unpack(cls, arrays: dict[str, npt.NDArray[Any]], penalty: Penalty) -> FusionState:
        """Build the state that `pack` took apart."""
        state = cls.__new__(cls)
        state.omega, state.delta, state.s, state.r = (arrays[n] for n in ("omega", "delta", "s", "r"))
        state._sums, state._rho = arrays["sums"], float(arrays["rho"][0])
        pairs = state.m * (state.m - 1) // 2
        shapes = (state.delta.shape, state.s.shape, state.r.shape, state._sums.shape)
        if shapes != ((pairs, state.d), (pairs,), (pairs,), (state.m, state.d)):
            raise FedfuseError("the arrays of this fusion state do not fit each other")
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

    def _update_pairs(self, active: Ints) -> tuple[float, float]:
        """Update every pair with an active device; return the root mean squares of its residuals."""
        k, (m, d) = active.size, self.omega.shape
        pairs = max(k * (m - k) + k * (k - 1) // 2, 1)
        # by sizes alone, so that the number of threads does not change results
        chunks = min(max(m // 25, 2), 8) if pairs * d > LARGE else 1
        plan = _plan(m, active, chunks)
        private, squares = np.zeros((chunks, k + 1, d), self.delta.dtype), np.zeros((chunks, 2))
        state = Pairs(self.delta, self.s, self.r, self._sums)
        spread(
            lambda jobs: _pairs.absorb(state, self.omega, self._pieces, plan, private, squares, jobs),
            np.full(chunks, WORK * pairs * d / chunks),
        )
        _pairs.gather(private, active, self._sums)
        primal, dual = squares.sum(axis=0)
        return sqrt(primal / pairs), sqrt(dual / pairs)

    def _check(self, active: Ints) -> None:
        """Look over the sorted numbers of devices."""
        if active[0] < 0 or active[-1] >= self.m:
            raise FedfuseError(f"devices must lie in 0 … {self.m - 1}, got {active[0]} … {active[-1]}")
        if (active[1:] == active[:-1]).any():
            raise FedfuseError("a device occurs twice in one round")

    def _square(self, pairs: Floats) -> Floats:
        full = np.zeros((self.m, self.m))
        full[np.tril_indices(self.m, -1)] = pairs
        return np.asarray(full + full.T)

    def _oriented(self, i: int, j: int, weight: Any) -> Floats:
        if i == j:
            return np.zeros(self.d, self.delta.dtype)
        lo, hi = min(i, j), max(i, j)
        p = hi * (hi - 1) // 2 + lo
        return np.asarray(weight(self.s[p]) * self.delta[p] * (1 if i < j else -1))


def _plan(m: int, active: Ints, chunks: int) -> Plan:
    """Cut the partners of these devices into runs of about the same number of pairs."""
    rank = np.full(m, -1)
    rank[active] = np.arange(active.size)
    bounds = np.zeros(chunks + 1, np.int64)
    if chunks > 1:
        pairs = np.where(rank < 0, active.size, rank).cumsum()
        bounds[1:] = np.searchsorted(pairs, pairs[-1] / chunks * np.arange(1, chunks + 1))
    bounds[-1] = m
    return Plan(active, rank, bounds)
