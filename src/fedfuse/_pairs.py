"""Compiled passes over the pair state; `fusion.FusionState` is the face of this module.

Per unordered pair lo < hi there is one row ``delta`` and two numbers: its shrink factor ``s`` and its norm ``r``.
Pair (lo, hi) has number ``hi (hi - 1) / 2 + lo``, so that a newcomer's pairs are appended at the end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, prange
from numba.core import cgutils, types
from numba.extending import intrinsic

# reassociation lets sums be vectorised; nan and inf keep their meaning, since uploads may carry them
FAST = {"reassoc", "contract", "nsz", "arcp"}
# Rows of active devices that stay in the second-level cache while a column of partners goes by.
TILE = 16
# Elements that are summed in the array's own type before float64 takes over.
BLOCK = 1024
# Bytes of the next pair's vector that are asked for while this one is worked on.
AHEAD = 8192


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(_typing: Any, array: Any, _index: Any) -> Any:
    """Ask for the cache line of ``array.flat[index]`` ahead of its use (rows lie too far apart to be guessed)."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        pointer = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        i32 = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, i32, i32, i32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, i32(1), i32(3), i32(1)])
        return context.get_dummy_value()

    return types.none(array, types.intp), codegen


@njit(cache=True)
def _ask(delta: Any, p: int) -> None:
    """Prefetch the beginning of row p."""
    d = delta.shape[1]
    for e in range(0, min(d, AHEAD // delta.itemsize), 64 // delta.itemsize):
        _prefetch(delta, p * d + e)


@njit(cache=True)
def _number(i: int, j: int) -> int:
    """Number of the pair of i and j; the casts are for prange, whose indices are unsigned."""
    lo, hi = np.int64(min(i, j)), np.int64(max(i, j))
    return hi * (hi - 1) // 2 + lo


@njit(cache=True)
def _shrink(r: float, ends: Any, c0: Any, c1: Any) -> float:
    k = 0
    while r > ends[k]:
        k += 1
    return c0[k] if c1[k] == 0.0 else c0[k] + c1[k] / r


@njit(cache=True, fastmath=FAST)
def _step_block(delta: Any, omega_lo: Any, omega_hi: Any, change: Any, s: Any, loss: Any) -> Any:
    """`_step` on a few elements, summed in the arrays' own type. Loops from 0, or it is not vectorised."""
    one = delta.dtype.type(1)
    keep = one - s
    new_new = diff_diff = diff_new = new_old = gap_gap = one - one
    for e in range(delta.size):
        old = delta[e]
        diff = omega_lo[e] - omega_hi[e]
        new = diff + keep * old
        gap = new - s * old
        delta[e] = new
        change[e] += loss * old
        new_new += new * new
        diff_diff += diff * diff
        diff_new += diff * new
        new_old += new * old
        gap_gap += gap * gap
    return new_new, diff_diff, diff_new, new_old, gap_gap


@njit(cache=True, fastmath=FAST)
def _step(delta: Any, omega_lo: Any, omega_hi: Any, change: Any, s: Any, loss: Any) -> Any:
    """Delta <- omega_lo - omega_hi + (1 - s) delta, and change += loss * (delta as it was).

    Returns ||new||^2, ||diff||^2, <diff, new>, <new, old> and ||new - s old||^2: all that the residuals need, so
    that no second vector is kept.
    """
    a, b, c, f, g = 0.0, 0.0, 0.0, 0.0, 0.0
    for first in range(0, delta.size, BLOCK):
        part = slice(first, first + BLOCK)
        a_, b_, c_, f_, g_ = _step_block(delta[part], omega_lo[part], omega_hi[part], change[part], s, loss)
        a, b, c, f, g = a + a_, b + b_, c + c_, f + f_, g + g_
    return a, b, c, f, g


@njit(cache=True, fastmath=FAST)
def _spread(delta: Any, mine: Any, change: Any, gain: Any) -> None:
    """Add gain * delta to one device's anchor sum and take it from the other's."""
    for e in range(delta.size):
        g = gain * delta[e]
        mine[e] += g
        change[e] -= g


@njit(cache=True)
def _residuals(products: Any, old_old: float, s: float, s_old: float) -> tuple[float, float]:
    """||omega_i - omega_j - theta||^2 and ||theta - theta_old||^2 from scalar products.

    Two ways to write each; for far pairs (s near 1) and near pairs (s near 0) one of them loses no digits.
    """
    new_new, diff_diff, diff_new, new_old, gap_gap = products
    if s <= 0.5:
        primal = diff_diff - 2 * s * diff_new + s * s * new_new
        dual = s * s * new_new - 2 * s * s_old * new_old + s_old * s_old * old_old
    else:
        t, t_old = 1 - s, 1 - s_old
        primal = t * t * new_new - 2 * t * t_old * new_old + t_old * t_old * old_old
        dual = gap_gap - 2 * t * (new_new - s_old * new_old) + t * t * new_new
    return max(primal, 0.0), max(dual, 0.0)


@njit(cache=True)
def _flush(change: Any, private: Any, total: Any, active: bool) -> None:
    """Hand a partner's collected change to its sum, and begin again."""
    if active:
        for e in range(change.size):
            private[e] += change[e]
            change[e] = 0
    else:
        for e in range(change.size):
            total[e] += change[e]
            change[e] = 0


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
    private = np.zeros((chunks, k, d), delta.dtype)
    residuals = np.zeros((chunks, 2))
    one = delta.dtype.type(1)
    for c in prange(chunks):
        change = np.zeros(d, delta.dtype)
        primal, dual = 0.0, 0.0
        for first in range(0, k, TILE):
            for j in range(c, m, chunks):
                last = min(first + TILE, k) - 1
                for b in range(first, last + 1):
                    i = active[b]
                    if i == j or (rank[j] >= 0 and i > j):
                        continue  # two active devices meet once, at the higher one's turn
                    p = _number(i, j)
                    if b < last:
                        _ask(delta, _number(active[b + 1], j))
                    elif j + chunks < m:
                        _ask(delta, _number(active[first], j + chunks))
                    s_old, old_old = s[p], np.float64(r[p]) ** 2
                    sign = one if i < j else -one
                    # what an active partner had in its sum goes when the sum is built anew
                    loss = one - one if rank[j] >= 0 else sign * (s_old + s_old - one)
                    products = _step(delta[p], omega[min(i, j)], omega[max(i, j)], change, s_old, loss)
                    norm = np.sqrt(products[0])
                    s_new = delta.dtype.type(_shrink(norm, ends, c0, c1))
                    s[p] = s_new
                    r[p] = norm
                    _spread(delta[p], private[c, b], change, sign * (s_new + s_new - one))
                    p2, d2 = _residuals(products, old_old, s_new, s_old)
                    primal += p2
                    dual += d2
                _flush(change, private[c, rank[j]], sums[j], rank[j] >= 0)
        residuals[c, 0] = primal
        residuals[c, 1] = dual
    for b in prange(k):
        total = sums[active[b]]
        total[:] = 0.0
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
