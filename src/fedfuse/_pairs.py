"""Compiled passes over the pair state; `fusion.FusionState` is the face of this module.

Per unordered pair lo < hi there is one row ``delta`` and two numbers: its shrink factor ``s`` and its norm ``r``.
Pair (lo, hi) has number ``hi (hi - 1) / 2 + lo``, so that a newcomer's pairs are appended at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, prange

# reassociation lets sums be vectorised; nan and inf keep their meaning, since uploads may carry them
FAST = {"reassoc", "contract", "nsz", "arcp"}
# Rows of active devices that stay in the second-level cache while a column of partners goes by.
TILE = 16


@njit(cache=True, inline="always")
def _number(i: int, j: int) -> int:
    """Number of the pair of i and j; the casts are for prange, whose indices are unsigned."""
    lo, hi = np.int64(min(i, j)), np.int64(max(i, j))
    return hi * (hi - 1) // 2 + lo


@njit(cache=True, inline="always")
def _shrink(r: float, ends: Any, c0: Any, c1: Any) -> float:
    k = 0
    while r > ends[k]:
        k += 1
    return c0[k] if c1[k] == 0.0 else c0[k] + c1[k] / r


@njit(cache=True, fastmath=FAST, inline="always")
def _move(delta: Any, diff: Any, old: Any, omega_lo: Any, omega_hi: Any, keep: Any) -> float:
    """delta <- omega_lo - omega_hi + keep delta; returns its squared norm. diff, old: scratch for `_tally`."""
    square = 0.0
    for e in range(delta.size):
        diff[e] = omega_lo[e] - omega_hi[e]
        old[e] = delta[e]
        delta[e] = diff[e] + keep * old[e]
    # summed in float64 in four lanes of its own: norms decide what is fused
    for e in range(delta.size):
        square += np.float64(delta[e]) * np.float64(delta[e])
    return square


@njit(cache=True, fastmath=FAST, inline="always")
def _both(delta: Any, lo: Any, hi: Any, gain: Any) -> None:
    """Add gain * delta to the anchor sum of lo and take it from that of hi."""
    for e in range(delta.size):
        g = gain * delta[e]
        lo[e] += g
        hi[e] -= g


@njit(cache=True, fastmath=FAST, inline="always")
def _exchange(delta: Any, old: Any, active: Any, other: Any, gain: Any, loss: Any) -> None:
    """The same for an active and an inactive device: the latter's sum also forgets the old vector."""
    for e in range(delta.size):
        g = gain * delta[e]
        active[e] += g
        other[e] -= g - loss * old[e]


@njit(cache=True, fastmath=FAST, inline="always")
def _tally(delta: Any, diff: Any, old: Any, s: Any, s_old: Any) -> tuple[float, float]:
    """||omega_i - omega_j - theta||^2 and ||theta - theta_old||^2."""
    primal = 0.0
    dual = 0.0
    for e in range(delta.size):
        theta = s * delta[e]
        p = diff[e] - theta
        q = theta - s_old * old[e]
        primal += p * p
        dual += q * q
    return primal, dual


@njit(cache=True, parallel=True, fastmath=FAST, nogil=True)
def absorb(
    delta: Any,
    s: Any,
    r: Any,
    omega: Any,
    sums: Any,
    active: Any,
    rank: Any,
    ends: Any,
    c0: Any,
    c1: Any,
    chunks: int,
) -> npt.NDArray[np.float64]:
    """Update every pair with an active device, once; keep ``sums[i] = sum_j (2 s_ij - 1) delta_ij``.

    Sums of active devices are built anew (all their pairs pass by), sums of the others are corrected by the
    difference. Partners are dealt to ``chunks`` threads; a partner that is not active belongs to one thread
    alone, sums of active devices are collected per thread and added in a fixed order, so that the result does
    not depend on how many threads there are. ``rank[j]`` is j's place among the active devices, or -1.

    Returns the sums of squared primal and dual residuals.
    """
    m, d = omega.shape
    k = active.size
    private = np.zeros((chunks, k, d))
    residuals = np.zeros((chunks, 2))
    one = delta.dtype.type(1)
    for c in prange(chunks):
        diff = np.empty(d, delta.dtype)
        old = np.empty(d, delta.dtype)
        primal = 0.0
        dual = 0.0
        for first in range(0, k, TILE):
            for j in range(c, m, chunks):
                for b in range(first, min(first + TILE, k)):
                    i = active[b]
                    if i == j or (rank[j] >= 0 and i > j):
                        continue  # two active devices meet once, at the higher one's turn
                    lo, hi = min(i, j), max(i, j)
                    p = _number(lo, hi)
                    row = delta[p]
                    s_old = s[p]
                    square = _move(row, diff, old, omega[lo], omega[hi], one - s_old)
                    norm = np.sqrt(square)
                    s_new = delta.dtype.type(_shrink(norm, ends, c0, c1))
                    s[p] = s_new
                    r[p] = norm
                    gain = s_new + s_new - one
                    loss = s_old + s_old - one
                    if rank[j] >= 0:
                        _both(row, private[c, b], private[c, rank[j]], gain)
                    elif i < j:
                        _exchange(row, old, private[c, b], sums[j], gain, loss)
                    else:
                        _exchange(row, old, private[c, b], sums[j], -gain, -loss)
                    pr, du = _tally(row, diff, old, s_new, s_old)
                    primal += pr
                    dual += du
        residuals[c, 0] = primal
        residuals[c, 1] = dual
    for b in prange(k):
        total = sums[active[b]]
        for e in range(d):
            total[e] = 0.0
        for c in range(chunks):
            for e in range(d):
                total[e] += private[c, b, e]
    return residuals.sum(axis=0)


@njit(cache=True, parallel=True, nogil=True)
def total_sums(delta: Any, s: Any, sums: Any) -> None:
    """Set ``sums[i] = sum_j (2 s_ij - 1) delta_ij`` for all devices from the stored vectors."""
    m, d = sums.shape
    for i in prange(m):
        total = sums[i]
        for e in range(d):
            total[e] = 0.0
        for j in range(m):
            if i != j:
                p = _number(i, j)
                gain = np.float64(s[p] + s[p] - 1) * (1 if i < j else -1)
                for e in range(d):
                    total[e] += gain * delta[p, e]


@njit(cache=True, parallel=True, nogil=True)
def differences(delta: Any, r: Any, omega: Any) -> None:
    """Set ``delta_ij = omega_i - omega_j`` and its norm for all pairs (a warm start)."""
    m, d = omega.shape
    for hi in prange(m):
        for lo in range(hi):
            p = _number(lo, hi)
            square = 0.0
            for e in range(d):
                delta[p, e] = omega[lo, e] - omega[hi, e]
                square += np.float64(delta[p, e]) ** 2
            r[p] = np.sqrt(square)


@njit(cache=True, parallel=True, nogil=True)
def rescale(delta: Any, s: Any, r: Any, ratio: float) -> None:
    """Keep theta and v when rho changes by rho_old / rho_new = ratio.

    theta = s delta and v / rho_new = ratio (1 - s) delta are again multiples of one vector, which is
    (s + ratio (1 - s)) delta.
    """
    for p in prange(s.size):
        stretch = s[p] + ratio * (1 - s[p])
        if stretch > 0:
            for e in range(delta.shape[1]):
                delta[p, e] *= stretch
            r[p] *= stretch
            s[p] /= stretch
