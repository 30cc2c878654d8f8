"""Devices that have been fused for long are represented once: no vectors for the pairs among them.

While a pair is fused, theta_ij = 0, and its vector only sums up differences: delta_ij <- delta_ij + omega_i - omega_j.
Anchors need no single one of these, but each device's sum over its group alone,

    D_i = sum_{j in group} delta_ij,

and that can be kept without them: D_i <- D_i + n omega_i - sum_j omega_j for an active device i (all its pairs are
updated), D_i <- D_i + sum_{active j} (omega_i - omega_j) for the others. So a group of n devices needs n vectors
instead of n (n - 1) / 2. At rest D_i is -(m / rho) times the gradient of device i at its group's model: when gradients
disagree by more than the penalty can hold together, D_i says so, and the device leaves its group.

To devices outside, a group is one device with its mean parameters; its pairs with them are kept once, and weigh as
much as it has devices.
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
from fedfuse.pairs.layout import devices_of
from fedfuse.pairs.state import FusionState, Residuals, squares_of, unknown_device
from fedfuse.utils.typing import Bools, Floats, Ints

# A device stays in its group while its mean vector to the others is at most this part of what a fused pair's may be.
# Where vectors are differences of one for each device, no two of them are then further apart than that.
HOLD = 0.5

# Vectors that are added up at once.
BATCH = 4096

Key = tuple[int, int]  # units a < b


def check_collapse(collapse: int | None) -> None:
    """Raise unless this is a number of rounds."""
    if collapse is not None and collapse < 1:
        raise FedfuseError(f"collapse must be at least 1 round, got {collapse}")


class CollapsingState(FusionState):
    """As `FusionState`, which makes it where ``collapse`` is given; groups of fused devices are kept as one.

    Every ``collapse`` rounds it looks which pairs are fused, and collapses those that were so the last time too. With
    SCAD and MCP iterates are exact up to rounding while groups stay together and all others are beyond the
    penalty's reach. Otherwise three things are approximations: smoothed SCAD leaves a fused theta of up to xi, which is
    taken for 0; a group that is near others meets them with its mean parameters, and in every round in which one of
    its devices is active; and where devices leave a group, their vectors to those that stay are all the same.
    """

    def __init__(
        self, omega: npt.ArrayLike, penalty: Penalty, rho: float = 1.0, *, collapse: int | None = 1, **options: Any
    ) -> None:
        check_collapse(collapse)
        self._units = FusionState(omega, penalty, rho, **options)
        self._options = {name: options.get(name) for name in ("memory", "spill", "backend", "blocks")}
        self.omega = self._units.omega.copy()
        self._every, self._rounds = collapse or 1, 0
        self._duals = np.zeros(self.omega.shape)  # D_i; pages of devices that are alone are never touched
        self._enter(np.arange(self.m))

    def _enter(self, unit: Ints) -> None:
        """Note who is represented by what."""
        self._unit, self._sizes, self._first = unit, np.bincount(unit), np.unique(unit, return_index=True)[1]
        self._groups = {int(u): np.flatnonzero(unit == u) for u in np.flatnonzero(self._sizes > 1)}
        self._seen: Bools | None = None  # which pairs were fused at the last look

    @property
    def members(self) -> Ints:
        """Who is represented together: a number for each device."""
        return canonical(self._unit)

    @property
    def far(self) -> Bools:
        """As of `FusionState`, of those that are represented."""
        return self._units.far

    @property
    def near(self) -> Ints:
        """As of `FusionState`, of those that are represented."""
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
        for group in self._groups.values():  # v = rho delta stays what it is
            self._duals[group] *= ratio

    @property
    def nbytes(self) -> int:
        held = sum(group.size for group in self._groups.values())
        return self._units.nbytes + held * self.d * self._duals.itemsize

    def update(self, devices: npt.ArrayLike, omegas: npt.ArrayLike) -> Residuals:
        """Take new parameters; residuals are those of what is represented, and of groups against their means."""
        active, new = self._checked(devices, omegas)
        if not active.size:
            return Residuals(0.0, 0.0, 0.0)
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
        within = sum(self._sum_up(self._groups[u], is_active) for u in touched.tolist() if u in self._groups)
        scale = sqrt(squares_of(self.omega).sum() / self.m) or 1.0
        moved = sqrt(squares_of(new - before).sum() / active.size) / scale
        self._split()
        self._rounds += 1
        if self._rounds % self._every == 0:
            self._look()
        return Residuals(max(found.primal, sqrt(within / active.size) / scale), found.dual, moved)

    def _checked(self, devices: npt.ArrayLike, omegas: npt.ArrayLike) -> tuple[Ints, Floats]:
        active, new = np.array(devices, dtype=np.int64), np.asarray(omegas, dtype=self.omega.dtype)
        if active.ndim != 1 or new.shape != (active.size, self.d):
            raise FedfuseError(
                f"{active.size} devices need parameters of shape ({active.size}, {self.d}), got {new.shape}"
            )
        if active.size and (active.min() < 0 or active.max() >= self.m or np.unique(active).size < active.size):
            raise unknown_device(active, self.m)
        return active, new.copy()

    def _mean(self, u: int) -> Floats:
        group = self._groups.get(int(u))
        if group is None:
            return np.asarray(self.omega[self._first[u]])
        return np.asarray(self.omega[group].mean(axis=0, dtype=np.float64).astype(self.omega.dtype))

    def _sum_up(self, group: Ints, is_active: Bools) -> float:
        """Update D of a group; return the sum of its active devices' squared distances from the mean."""
        moved, still = group[is_active[group]], group[~is_active[group]]
        omega = self.omega[moved].astype(np.float64)
        away = omega - self.omega[group].mean(axis=0, dtype=np.float64)
        self._duals[moved] += group.size * away
        self._duals[still] += moved.size * self.omega[still].astype(np.float64) - omega.sum(axis=0)
        return float(np.square(away).sum())

    def anchors(self, devices: npt.ArrayLike) -> Floats:
        index = np.array(devices, dtype=np.int64)
        if index.size and not 0 <= index.min() <= index.max() < self.m:
            raise unknown_device(index, self.m)
        asked = self._unit[index]
        if not self._groups:
            return self._units.anchors(asked)
        units, place = np.unique(asked, return_inverse=True)
        pulls = self._across(units)[place]
        for b, i in enumerate(index):
            if self._sizes[asked[b]] > 1:  # what is in the group: theta = 0
                apart = self.omega[i].astype(np.float64) - self._units.omega[asked[b]]
                pulls[b] -= self._duals[i] + self._sizes[asked[b]] * apart
        return np.asarray(self.omega[index] + (pulls / self.m).astype(self.omega.dtype))

    def _across(self, units: Ints) -> Floats:
        """Return sum_h n_h [(2 s_uh - 1) delta_uh - (omega_u - omega_h)] over all others, for each of these units."""
        omega = self._units.omega
        pulls = len(omega) * (self._units.anchors(units).astype(np.float64) - omega[units])  # each counts once
        row = {int(u): b for b, u in enumerate(units)}
        for u, h, p in self._near_pairs(only=self._sizes > 1):
            s = float(self._units.s[p])
            pull = (2 * s - 1) * self._delta(u, h) - (omega[u].astype(np.float64) - omega[h])
            if u in row:
                pulls[row[u]] += (self._sizes[h] - 1) * pull
            if h in row:
                pulls[row[h]] -= (self._sizes[u] - 1) * pull
        return pulls

    def _near_pairs(self, only: Bools) -> list[tuple[int, int, int]]:
        """Return both units and the number of each near pair that has one of these."""
        near = self._units.near
        lo, hi = devices_of(near)
        keep = only[lo] | only[hi]
        return list(zip(lo[keep].tolist(), hi[keep].tolist(), near[keep].tolist(), strict=True))

    def _delta(self, u: int, h: int) -> Floats:
        return self._units._oriented(u, h, lambda s: 1.0).astype(np.float64)

    # -- who comes together, and who leaves

    @property
    def _fused_end(self) -> float:
        """How long the vector of a fused pair may be; 0 if the penalty fuses nobody."""
        ends, c0, _ = self.penalty.pieces(self.rho)
        return float(ends[0]) if np.isfinite(ends[0]) and c0[0] < 1 else 0.0

    def _look(self) -> None:
        """Collapse groups all of whose pairs are fused, now and when it looked last."""
        near, fused = self._units.near, np.zeros(len(self._units.s), np.bool_)
        fused[near] = self._units.r[near] <= self._fused_end
        seen, self._seen = self._seen, fused
        if seen is None:
            return
        lo, hi = devices_of(np.flatnonzero(fused & seen))
        labels = joined(len(self._sizes), lo, hi)
        unit = np.arange(len(self._sizes))
        for label in np.flatnonzero(np.bincount(labels) > 1):
            some = self._calm(_clique(np.flatnonzero(labels == label), lo, hi))
            unit[some] = some[0] if some.size else 0
        if (unit != np.arange(unit.size)).any():
            self._regroup(unit[self._unit])

    def _calm(self, units: Ints) -> Ints:
        """Leave out those that would not stay."""
        while units.size > 1:
            inside = np.zeros(len(self._sizes), np.bool_)
            inside[units] = True
            duals = self._duals + self._within(np.where(inside, 0, -1))[self._unit]
            hot = np.zeros(len(self._sizes), np.bool_)
            far = np.sqrt(squares_of(duals)) > self._longest(int(self._sizes[units].sum()))
            hot[self._unit[far]] = True
            if not hot[units].any():
                return units
            units = units[~hot[units]]
        return units[:0]

    def _within(self, into: Ints) -> Floats:
        """Return what each unit's D gains when units with the same number in ``into`` come together; -1 is nobody."""
        near = self._units.near
        lo, hi = devices_of(near)
        inside = (into[lo] == into[hi]) & (into[lo] >= 0)
        lo, hi, near = lo[inside], hi[inside], near[inside]
        k = np.arange(near.size)
        weights = np.concatenate([self._sizes[hi], -self._sizes[lo]]).astype(np.float64)
        places = np.concatenate([lo, hi]), np.concatenate([k, k])
        return self._sums_of(scipy.sparse.csc_array((weights, places), shape=(len(self._sizes), k.size)), near)

    def _sums_of(self, weights: Any, pairs: Ints) -> Floats:
        """Return weighted sums of the vectors of near pairs."""
        total = np.zeros((weights.shape[0], self.d))
        for first in range(0, pairs.size, BATCH):  # copies in double precision
            some = slice(first, first + BATCH)
            total += weights[:, some] @ self._units._vectors(pairs[some]).astype(np.float64)
        return total

    def _longest(self, n: int) -> float:
        """Return how long D may be in a group of n."""
        return HOLD * (n - 1) * self._fused_end

    def _split(self) -> None:
        """Let devices go whose gradients disagree with those of their group."""
        unit, free = self._unit.copy(), len(self._sizes)
        for group in self._groups.values():
            gone = group[np.sqrt(squares_of(self._duals[group])) > self._longest(group.size)]
            unit[gone] = free + np.arange(gone.size)
            free += gone.size
        if free > len(self._sizes):
            self._regroup(unit)

    def _regroup(self, unit: Ints) -> None:
        """Represent devices by these units instead: each a union of old ones, or a part of one."""
        unit = canonical(unit)
        omega = cluster_means(self.omega, unit, np.ones(self.m)).astype(self.omega.dtype)
        into: dict[int, list[int]] = {}
        for u, a in sorted(set(zip(self._unit.tolist(), unit.tolist(), strict=True))):
            into.setdefault(u, []).append(a)
        whole = np.array([into[u][0] if len(into[u]) == 1 else -1 for u in range(len(self._sizes))])
        across = self._between(np.bincount(unit), into, omega)
        self._duals += self._within(whole)[self._unit]
        apart = self._apart_again(unit, into)
        self._units = self._built(across, apart, omega)
        self._enter(unit)

    def _apart_again(self, unit: Ints, into: dict[int, list[int]]) -> dict[Key, Floats]:
        """Cut D of units that fall apart; return the vectors between their parts."""
        rows: dict[Key, Floats] = {}
        for u, parts in into.items():
            if len(parts) == 1:
                continue
            means = {}
            for a in parts:
                some = np.flatnonzero(unit == a)
                vectors = self._duals[some] / self._sizes[u]
                means[a] = vectors.mean(axis=0)
                self._duals[some] = some.size * (vectors - means[a])
            rows |= {(a, b): means[a] - means[b] for a in parts for b in parts if a < b}
        return rows

    def _between(self, sizes: Ints, into: dict[int, list[int]], omega: Floats) -> tuple[list[Key], Floats, Ints]:
        """Return near pairs of new units, their vectors, and the old pairs that they are, or -1.

        A new vector is the mean of the old ones, of which those of far pairs are differences of parameters.
        """
        near = self._units.near
        number: dict[Key, int] = {}
        entries: list[tuple[float, int, int]] = []
        was: list[int] = []
        for k, (u, h, p) in enumerate(zip(*(x.tolist() for x in (*devices_of(near), near)), strict=True)):
            for a, b in ((a, b) for a in into[u] for b in into[h] if a != b):
                key, sign = ((a, b), 1.0) if a < b else ((b, a), -1.0)
                share = min(self._sizes[u] / sizes[a], 1.0) * min(self._sizes[h] / sizes[b], 1.0)
                place = number.setdefault(key, len(number))
                entries.append((sign * share, place, k))
                same = (sizes[a], sizes[b]) == (self._sizes[u], self._sizes[h])
                if place == len(was):
                    was.append(p if same else -1)
        keys = list(number)
        values, i, k = np.array(entries, np.float64).reshape(-1, 3).T
        weights = scipy.sparse.csc_array(
            (values, (i.astype(np.int64), k.astype(np.int64))), shape=(len(keys), near.size)
        )
        lo, hi = np.array(keys, np.int64).reshape(-1, 2).T
        old = self._units.omega.astype(np.float64)
        before = _differences(weights, *devices_of(near), old)
        now = omega[lo].astype(np.float64) - omega[hi]
        return keys, self._sums_of(weights, near) + (now - before), np.array(was, np.int64)

    def _built(self, across: tuple[list[Key], Floats, Ints], apart: dict[Key, Floats], omega: Floats) -> FusionState:
        """Return the state of units with these parameters; pairs without a vector are far."""
        m, d = omega.shape
        keys, vectors, was = across
        lo, hi = np.array([*keys, *apart], np.int64).reshape(-1, 2).T
        near = hi * (hi - 1) // 2 + lo
        vectors = np.concatenate([vectors, np.array(list(apart.values())).reshape(-1, d)])
        was = np.concatenate([was, np.full(len(apart), -1)])
        norms = np.sqrt(squares_of(vectors))
        s, r = (np.full(m * (m - 1) // 2, value, self._units.s.dtype) for value in (1, 0))
        s[near], r[near] = self.penalty.shrink(norms, self.rho), norms
        same = was >= 0
        s[near[same]], r[near[same]] = self._units.s[was[same]], self._units.r[was[same]]
        arrays = {"near": near, "delta": vectors.astype(omega.dtype), "s": s, "r": r, "omega": omega}
        known = {**arrays, "sums": np.zeros((m, d)), "rho": np.array([self.rho])}
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
        self._enter(np.concatenate([self._unit, units]))
        return np.arange(before, self.m)

    def restart_pairs(self) -> None:
        """Forget all pairs and groups."""
        dtype = self.omega.dtype
        self._units = FusionState(self.omega, self.penalty, self.rho, warm=True, dtype=dtype, **self._options)
        self._duals = np.zeros(self.omega.shape)
        self._enter(np.arange(self.m))

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
            "rounds": np.array([self._rounds]), "seen": np.zeros(0) if self._seen is None else self._seen,
        }  # fmt: skip

    @classmethod
    def unpack(
        cls, arrays: dict[str, npt.NDArray[Any]], penalty: Penalty, *, collapse: int | None = 1, **room: Any
    ) -> FusionState:
        check_collapse(collapse)
        state = object.__new__(cls)
        state._options = room
        units = {name.removeprefix("units_"): a for name, a in arrays.items() if name.startswith("units_")}
        state._units = FusionState.unpack(units, penalty, **state._options)
        state.omega, state._every, state._rounds = arrays["omega"], collapse or 1, int(arrays["rounds"][0])
        state._duals = np.zeros(state.omega.shape)
        state._duals[arrays["held"]] = arrays["duals"]
        state._enter(arrays["unit"])
        state._seen = arrays["seen"].astype(np.bool_) if arrays["seen"].size else None
        return state


def _differences(weights: Any, lo: Ints, hi: Ints, omega: Floats) -> Floats:
    """Return weighted sums of the differences omega_lo - omega_hi."""
    k = np.arange(lo.size)
    ones = np.ones(lo.size)
    ends = scipy.sparse.csc_array((ones, (k, lo)), shape=(lo.size, len(omega))) - scipy.sparse.csc_array(
        (ones, (k, hi)), shape=(lo.size, len(omega))
    )
    return np.asarray((weights @ ends) @ omega)


def _clique(units: Ints, lo: Ints, hi: Ints) -> Ints:
    """Leave out of these units whoever is fused with the fewest, until all are fused with each other."""
    inside = np.isin(lo, units) & np.isin(hi, units)
    meets = np.eye(units.size, dtype=np.bool_)
    i, j = np.searchsorted(units, lo[inside]), np.searchsorted(units, hi[inside])
    meets[i, j] = meets[j, i] = True
    while not meets.all():
        keep = np.arange(units.size) != meets.sum(axis=1).argmin()
        units, meets = units[keep], meets[np.ix_(keep, keep)]
    return units
