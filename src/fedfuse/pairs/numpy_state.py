"""A round of the pair state in plain NumPy, for federations so small that compiling takes longer than it saves.

Arrays (`pairs.layout`) and formulas are those of `pairs.pair_kernels`, for all pairs of a round at once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedfuse.pairs.layout import FAR, ROUND_DOWN, Pairs, devices_of, pair_count
from fedfuse.pairs.memory import Numbers, Pool
from fedfuse.utils.typing import Bools, Floats, Ints


def update_pairs(
    pairs: Pairs,
    omega: Floats,
    before: Floats,
    active: Ints,
    shrink: Callable[[Floats], Floats],
    reach: float,
    pool: Pool,
) -> tuple[float, float, Numbers]:
    """Update every pair of these devices, which have moved from ``before``; ``pool`` has the rows of ``pairs``.

    Returns the sums of squared primal and dual residuals, and the rows of pairs that have become far.
    """
    d = omega.shape[1]
    p, lo, hi = _touched_pairs(len(omega), active)
    apart, was = omega[lo] - omega[hi], before[lo] - before[hi]
    stays = _enter(pairs, p, apart, was, reach, pool)
    dual = row_squares(apart[stays] - was[stays]).sum()  # theta of a far pair moves as its devices do
    p, apart = p[~stays], apart[~stays]
    place, s_old = pairs.where[p], pairs.s[p]
    old = pairs.delta[place, :d]
    new = apart + (1 - s_old)[:, None] * old
    norms = np.sqrt(row_squares(new))
    s_new = shrink(norms).astype(s_old.dtype)
    pairs.delta[place, :d], pairs.s[p], pairs.r[p] = new, s_new, norms
    # omega_i - omega_j - theta is the change of v / rho = (1 - s) delta; theta is s delta
    primal = _square_changes(1 - s_new, new, 1 - s_old, old).sum()
    dual += _square_changes(s_new, new, s_old, old).sum()
    far = (s_old == 1) & (s_new == 1)
    pairs.where[p[far]] = FAR
    _set_sums(pairs, omega)
    return float(primal), float(dual), place[far]


def _touched_pairs(m: int, active: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the pairs that have one of these devices, and their devices."""
    moved = np.zeros(m, bool)
    moved[active] = True
    lo, hi = devices_of(np.arange(pair_count(m)))
    p = np.flatnonzero(moved[lo] | moved[hi])
    return p, lo[p], hi[p]


def _enter(pairs: Pairs, p: Ints, apart: Floats, was: Floats, reach: float, pool: Pool) -> Bools:
    """Return which of these pairs stay far; give rows to those that come within reach: their differences before."""
    bound = np.sqrt(row_squares(apart)) * ROUND_DOWN
    far = pairs.where[p] < 0
    stays = far & (bound > reach)
    enters = far & ~stays
    rows = pool.take(int(enters.sum()))
    pairs.where[p[enters]] = rows
    pool.rows[rows, : apart.shape[1]] = was[enters]
    return stays


def _set_sums(pairs: Pairs, omega: Floats) -> None:
    """Build the sums of all devices anew from the stored pairs."""
    near = np.flatnonzero(pairs.where >= 0)
    lo, hi = devices_of(near)
    exact = omega.astype(np.float64)
    gain = 2 * pairs.s[near].astype(np.float64) - 1
    part = gain[:, None] * pairs.delta[pairs.where[near], : omega.shape[1]] - (exact[lo] - exact[hi])
    pairs.sums[:] = 0
    np.add.at(pairs.sums, lo, part)
    np.subtract.at(pairs.sums, hi, part)


def row_squares(rows: Floats) -> Floats:
    """Return the squared lengths of rows."""
    return np.asarray(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))


def _square_changes(a: Floats, new: Floats, b: Floats, old: Floats) -> Floats:
    """Return ||a new - b old||^2 of each pair."""
    return row_squares(a[:, None].astype(np.float64) * new - b[:, None].astype(np.float64) * old)
