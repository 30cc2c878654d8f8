"""Collapsed groups: devices that have been fused for long are represented once, without vectors for their pairs.

While a pair is fused, theta_ij = 0, and its vector only sums up differences: delta_ij <- delta_ij + omega_i - omega_j.
Anchors need each device's sum over its group alone,

    D_i = sum_{j in group} delta_ij,

which can be kept without the vectors: D_i <- D_i + n omega_i - sum_j omega_j for an active device i (all its pairs are
updated), D_i <- D_i + sum_{active j} (omega_i - omega_j) for the others. So a group of n devices needs n vectors
instead of n (n - 1) / 2. At rest D_i is -(m / rho) times the gradient of device i at its group's model: when gradients
disagree by more than the penalty can hold together, D_i grows too long, and the device leaves its group.

To devices outside, a group is one device (a unit) with its mean parameters; its pairs with them are kept once, and
weigh as much as it has devices.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from fedfuse.core.partitions import canonical, cluster_means, joined
from fedfuse.core.penalties import Penalty
from fedfuse.errors import FedfuseError
from fedfuse.pairs.layout import devices_of, pair_count, pair_numbers
from fedfuse.pairs.numpy_state import row_squares
from fedfuse.pairs.state import FusionState, Residuals, check_devices
from fedfuse.utils.typing import Bools, Floats, Ints

# A device stays in its group while its mean vector to the others is at most this part of what a fused pair's may be.
# Where vectors are differences of one for each device, no two of them are then further apart than that.
MAX_DUAL_RATIO = 0.5
# Vectors that are added up at once.
BATCH_VECTORS = 4096


def check_collapse(collapse: int | None) -> None:
    """Raise unless this is a number of rounds."""
    if collapse is not None and collapse < 1:
        raise FedfuseError(f"collapse must be at least 1 round, got {collapse}")


class CollapsingState(FusionState):
    """As `FusionState`, which makes it where ``collapse`` is given; groups of fused devices are kept as one.

    Every ``collapse`` rounds it collapses pairs that are fused and were so at the check before. With SCAD and MCP
    iterates are exact up to rounding while groups stay together and all others are beyond the penalty's reach.
    Otherwise three things are approximations: smoothed SCAD leaves a fused theta of up to xi, which is taken for 0; a
    group that is near others meets them with its mean parameters, and in every round in which one of its devices is
    active; and where devices leave a group, their vectors to those that stay are all the same.
    """

    def __init__(
        self, omega: npt.ArrayLike, penalty: Penalty, rho: float = 1.0, *, collapse: int | None = 1, **options: Any
    ) -> None:
        check_collapse(collapse)
        self._units = FusionState(omega, penalty, rho, **options)
        self._options = {name: options.get(name) for name in ("memory", "spill", "backend", "blocks")}
        self.omega = self._units.omega.copy()
        self._every, self._rounds = collapse or 1, 0
        self._duals = np.zeros(self.omega.shape)  # D_i; pages of devices that are alone are never written
        self._represent(np.arange(self.m))

    def _represent(self, unit: Ints) -> None:
        """Set the unit that represents each device."""
        self._unit, self._sizes = unit, np.bincount(unit)
        self._members = np.split(np.argsort(unit, kind="stable"), np.cumsum(self._sizes)[:-1])
        self._groups = np.flatnonzero(self._sizes > 1)
        self._fused: Bools | None = None  # pairs that were fused at the last check

    @property
    def members(self) -> Ints:
        """Number of the representing unit of each device."""
        return canonical(self._unit)

    @property
    def far(self) -> Bools:
        """As of `FusionState`, for units."""
        return self._units.far

    @property
    def near(self) -> Ints:
        """As of `FusionState`, for units."""
        return self._units.near

    @property
    def penalty(self) -> Penalty:
        return self._units.penalty

    @penalty.setter
    def penalty(self, penalty: Penalty) -> None:
        self._units.penalty = penalty

    @property
    def rho(self) -> float:
        return self._units.rho

    @rho.setter
    def rho(self, rho: float) -> None:
        ratio = self._units.rho / rho
        self._units.rho = rho
        for u in self._groups:  # v = rho delta stays what it is
            self._duals[self._members[u]] *= ratio

    @property
    def nbytes(self) -> int:
        return self._units.nbytes + int(self._sizes[self._groups].sum()) * self.d * self._duals.itemsize

    def _update(self, active: Ints, new: Floats) -> Residuals:
        """Return the residuals of units, and of groups against their means."""
        check_devices(active, self.m, once=True)
        before = self.omega[active]
        self.omega[active] = new
        touched = np.unique(self._unit[active])
        try:
            found = self._units.update(touched, np.stack([self._mean(u) for u in touched]))
        except FedfuseError:
            self.omega[active] = before
            raise
        is_active = np.zeros(self.m, np.bool_)
        is_active[active] = True
        within = sum(self._update_duals(self._members[u], is_active) for u in touched if self._sizes[u] > 1)
        scale = sqrt(row_squares(self.omega).sum() / self.m) or 1.0
        moved = sqrt(row_squares(self.omega[active] - before).sum() / active.size) / scale
        self._split()
        self._rounds += 1
        if self._rounds % self._every == 0:
            self._merge()
        return Residuals(max(found.primal, sqrt(within / active.size) / scale), found.dual, moved)

    def _mean(self, u: int) -> Floats:
        return np.asarray(self.omega[self._members[u]].mean(axis=0, dtype=np.float64).astype(self.omega.dtype))

    def _update_duals(self, group: Ints, is_active: Bools) -> float:
        """Update D of a group; return the sum of its active devices' squared distances from the mean."""
        moved, still = group[is_active[group]], group[~is_active[group]]
        omega = self.omega[moved].astype(np.float64)
        away = omega - self.omega[group].mean(axis=0, dtype=np.float64)
        self._duals[moved] += group.size * away
        self._duals[still] += moved.size * self.omega[still].astype(np.float64) - omega.sum(axis=0)
        return float(np.square(away).sum())

    def _anchors(self, index: Ints) -> Floats:
        unit = self._unit[index]
        if not self._groups.size:
            return self._units.anchors(unit)
        units, place = np.unique(unit, return_inverse=True)
        apart = self.omega[index].astype(np.float64) - self._units.omega[unit]
        # theta = 0 within a group; D and the distance from its mean are 0 for a device that is alone
        pulls = self._pulls(units)[place] - self._duals[index] - self._sizes[unit][:, None] * apart
        return np.asarray(self.omega[index] + (pulls / self.m).astype(self.omega.dtype))

    def _pulls(self, units: Ints) -> Floats:
        """Return sum_h n_h [(2 s_uh - 1) delta_uh - (omega_u - omega_h)] over all others, for each of these units."""
        omega = self._units.omega
        pulls = len(omega) * (self._units.anchors(units).astype(np.float64) - omega[units])  # each counts once
        near, lo, hi = self._near_pairs()
        keep = (self._sizes[lo] > 1) | (self._sizes[hi] > 1)
        near, lo, hi = near[keep], lo[keep], hi[keep]
        gain, more = 2.0 * self._units.s[near] - 1, self._sizes - 1
        total = self._vector_sums(self._incidence(lo, hi, more[hi] * gain, more[lo] * gain), near)
        total -= self._differences(self._incidence(lo, hi, more[hi], more[lo]), lo, hi)
        return np.asarray(pulls + total[units])

    def _near_pairs(self) -> tuple[Ints, Ints, Ints]:
        """Return the near pairs of units, and their lower and higher units."""
        return self._units.near, *devices_of(self._units.near)

    def _incidence(self, lo: Ints, hi: Ints, at_lo: Any, at_hi: Any) -> Any:
        """Return a sparse matrix (units x pairs) with ``at_lo`` at the lower unit and ``-at_hi`` at the higher one."""
        k = np.arange(lo.size)
        values = np.concatenate([np.broadcast_to(at_lo, k.shape), -np.broadcast_to(at_hi, k.shape)]).astype(np.float64)
        places = np.concatenate([lo, hi]), np.concatenate([k, k])
        return scipy.sparse.csc_array((values, places), shape=(len(self._sizes), k.size))

    def _vector_sums(self, weights: Any, pairs: Ints) -> Floats:
        """Return weighted sums (rows of ``weights``) of the vectors of near pairs."""
        total = np.zeros((weights.shape[0], self.d))
        for first in range(0, pairs.size, BATCH_VECTORS):  # copies in double precision
            some = slice(first, first + BATCH_VECTORS)
            total += weights[:, some] @ self._units._vectors(pairs[some]).astype(np.float64)
        return total

    def _differences(self, weights: Any, lo: Ints, hi: Ints) -> Floats:
        """Return weighted sums of the differences omega_lo - omega_hi of units."""
        return np.asarray((weights @ self._incidence(lo, hi, 1, 1).T) @ self._units.omega.astype(np.float64))

    # -- groups form, and devices leave them

    @property
    def _fused_end(self) -> float:
        """Length that the vector of a fused pair may have; 0 if the penalty fuses nothing."""
        ends, c0, _ = self.penalty.pieces(self.rho)
        return float(ends[0]) if np.isfinite(ends[0]) and c0[0] < 1 else 0.0

    def _longest(self, n: int) -> float:
        """Return the length that D may have in a group of n."""
        return MAX_DUAL_RATIO * (n - 1) * self._fused_end

    def _merge(self) -> None:
        """Collapse groups all of whose pairs are fused, now and at the last check."""
        near, fused = self._units.near, np.zeros(len(self._units.s), np.bool_)
        fused[near] = self._units.r[near] <= self._fused_end
        before, self._fused = self._fused, fused
        if before is None:
            return
        lo, hi = devices_of(np.flatnonzero(fused & before))
        labels = joined(len(self._sizes), lo, hi)
        unit = np.arange(len(self._sizes))
        for label in np.flatnonzero(np.bincount(labels) > 1):
            some = self._stable(_clique(np.flatnonzero(labels == label), lo, hi))
            unit[some] = some[0] if some.size else 0
        if (unit != np.arange(unit.size)).any():
            self._regroup(unit[self._unit])

    def _stable(self, units: Ints) -> Ints:
        """Leave out units that would not stay in a group of these."""
        while units.size > 1:
            inside = np.full(len(self._sizes), -1)
            inside[units] = 0
            duals = self._duals + self._dual_gains(inside)[self._unit]
            leaving = np.sqrt(row_squares(duals)) > self._longest(int(self._sizes[units].sum()))
            stays = ~np.isin(units, self._unit[leaving])
            if stays.all():
                return units
            units = units[stays]
        return units[:0]

    def _dual_gains(self, into: Ints) -> Floats:
        """Return what each unit's D gains when units with the same number in ``into`` merge; -1 does not."""
        near, lo, hi = self._near_pairs()
        keep = (into[lo] == into[hi]) & (into[lo] >= 0)
        near, lo, hi = near[keep], lo[keep], hi[keep]
        return self._vector_sums(self._incidence(lo, hi, self._sizes[hi], self._sizes[lo]), near)

    def _split(self) -> None:
        """Let devices go whose gradients disagree with those of their group."""
        unit, free = self._unit.copy(), len(self._sizes)
        for u in self._groups:
            group = self._members[u]
            gone = group[np.sqrt(row_squares(self._duals[group])) > self._longest(group.size)]
            unit[gone] = free + np.arange(gone.size)
            free += gone.size
        if free > len(self._sizes):
            self._regroup(unit)

    def _regroup(self, unit: Ints) -> None:
        """Represent devices by these units instead: each a union of old ones, or a part of one."""
        unit = canonical(unit)
        omega = cluster_means(self.omega, unit, np.ones(self.m)).astype(self.omega.dtype)
        into = [np.unique(unit[members]).tolist() for members in self._members]
        pairs, vectors, was = self._between(np.bincount(unit), into, omega)
        self._duals += self._dual_gains(np.array([a[0] if len(a) == 1 else -1 for a in into]))[self._unit]
        parted, between = self._part(unit, into)
        was = np.concatenate([was, np.full(parted.size, -1)])
        self._units = self._built(np.concatenate([pairs, parted]), np.concatenate([vectors, between]), was, omega)
        self._represent(unit)

    def _between(self, sizes: Ints, into: list[list[int]], omega: Floats) -> tuple[Ints, Floats, Ints]:
        """Return near pairs of new units, their vectors, and the old pairs that they equal, or -1.

        A new vector is the mean of the old ones; those of far pairs are differences of parameters.
        """
        near, lo, hi = self._near_pairs()
        old = enumerate(zip(lo.tolist(), hi.tolist(), strict=True))
        entries = [(a, b, k) for k, (u, h) in old for a in into[u] for b in into[h] if a != b]
        a, b, k = np.array(entries, np.int64).reshape(-1, 3).T
        parts = self._sizes[lo[k]] / sizes[a], self._sizes[hi[k]] / sizes[b]
        shares = np.where(a < b, 1.0, -1.0) * np.minimum(parts[0], 1) * np.minimum(parts[1], 1)
        low, high = np.minimum(a, b), np.maximum(a, b)
        pairs, first, place = np.unique(pair_numbers(low, high), return_index=True, return_inverse=True)
        weights = scipy.sparse.csc_array((shares, (place, k)), shape=(pairs.size, near.size))
        now = omega[low[first]].astype(np.float64) - omega[high[first]]
        vectors = self._vector_sums(weights, near) + (now - self._differences(weights, lo, hi))
        same = (parts[0] == 1) & (parts[1] == 1)
        return pairs, vectors, np.where(same, near[k], -1)[first]

    def _part(self, unit: Ints, into: list[list[int]]) -> tuple[Ints, Floats]:
        """Cut D of units that fall apart; return the pairs of their parts, and vectors."""
        pairs, vectors = [], np.empty((0, self.d))
        for members, parts in zip(self._members, into, strict=True):
            if len(parts) == 1:
                continue
            part, each = np.searchsorted(parts, unit[members]), self._duals[members] / members.size
            means = cluster_means(each, part, np.ones(members.size))
            self._duals[members] = np.bincount(part)[part][:, None] * (each - means[part])
            lo, hi = devices_of(np.arange(pair_count(len(parts))))
            pairs.append(pair_numbers(np.array(parts)[lo], np.array(parts)[hi]))
            vectors = np.concatenate([vectors, means[lo] - means[hi]])
        return np.concatenate([np.empty(0, np.int64), *pairs]), vectors

    def _built(self, near: Ints, vectors: Floats, was: Ints, omega: Floats) -> FusionState:
        """Return the state of units with these parameters; pairs without a vector are far."""
        norms, same = np.sqrt(row_squares(vectors)), was >= 0
        s, r = (np.full(pair_count(len(omega)), value, self._units.s.dtype) for value in (1, 0))
        s[near], r[near] = self.penalty.shrink(norms, self.rho), norms
        s[near[same]], r[near[same]] = self._units.s[was[same]], self._units.r[was[same]]
        arrays = {"near": near, "delta": vectors.astype(omega.dtype), "s": s, "r": r, "omega": omega}
        known = {**arrays, "sums": np.zeros(omega.shape), "rho": np.array([self.rho])}
        state = FusionState.unpack(known, self.penalty, **self._options)
        state.recompute_anchors()
        return state

    # -- the rest of the interface

    def admit(self, omega: npt.ArrayLike, *, warm: bool = True) -> Ints:
        before = self.m
        units = self._units.admit(omega, warm=warm)
        new = self._units.omega[units]
        self.omega = np.concatenate([self.omega, new])
        self._duals = np.concatenate([self._duals, np.zeros(new.shape)])
        self._represent(np.concatenate([self._unit, units]))
        return np.arange(before, self.m)

    def restart_pairs(self) -> None:
        """Forget all pairs and groups."""
        dtype = self.omega.dtype
        self._units = FusionState(self.omega, self.penalty, self.rho, warm=True, dtype=dtype, **self._options)
        self._duals = np.zeros(self.omega.shape)
        self._represent(np.arange(self.m))

    def recompute_anchors(self) -> None:
        self._units.recompute_anchors()

    def norms(self) -> Floats:
        return np.asarray(self._units.norms()[np.ix_(self._unit, self._unit)])

    def labels(self, nu: float) -> Ints:
        return canonical(self._units.labels(nu)[self._unit])

    def theta(self, i: int, j: int) -> Floats:
        return self._units.theta(int(self._unit[i]), int(self._unit[j]))

    def v(self, i: int, j: int) -> Floats:
        u, h = int(self._unit[i]), int(self._unit[j])
        if u != h:
            return self._units.v(u, h)
        return np.asarray((self.rho * (self._duals[i] - self._duals[j]) / self._sizes[u]).astype(self.omega.dtype))

    def pack(self) -> dict[str, npt.NDArray[Any]]:
        held = np.flatnonzero(self._sizes[self._unit] > 1)
        return {
            **{f"units_{name}": array for name, array in self._units.pack().items()},
            "omega": self.omega, "unit": self._unit, "held": held, "duals": self._duals[held],
            "rounds": np.array([self._rounds]), "seen": np.zeros(0) if self._fused is None else self._fused,
        }  # fmt: skip

    @classmethod
    def _restored(
        cls, arrays: dict[str, npt.NDArray[Any]], penalty: Penalty, *, collapse: int | None = 1, **room: Any
    ) -> FusionState:
        check_collapse(collapse)
        state = object.__new__(cls)
        units = {name.removeprefix("units_"): a for name, a in arrays.items() if name.startswith("units_")}
        state._options, state._units = room, FusionState.unpack(units, penalty, **room)
        state.omega, state._every, state._rounds = arrays["omega"], collapse or 1, int(arrays["rounds"][0])
        state._duals = np.zeros(state.omega.shape)
        state._duals[arrays["held"]] = arrays["duals"]
        state._represent(arrays["unit"])
        state._fused = arrays["seen"].astype(np.bool_) if arrays["seen"].size else None
        return state


def _clique(units: Ints, lo: Ints, hi: Ints) -> Ints:
    """Drop from these units the one fused with the fewest, until all are fused with each other."""
    inside = np.isin(lo, units) & np.isin(hi, units)
    meets = np.eye(units.size, dtype=np.bool_)
    i, j = np.searchsorted(units, lo[inside]), np.searchsorted(units, hi[inside])
    meets[i, j] = meets[j, i] = True
    while not meets.all():
        keep = np.arange(units.size) != meets.sum(axis=1).argmin()
        units, meets = units[keep], meets[np.ix_(keep, keep)]
    return units
