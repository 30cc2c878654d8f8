"""Compiled passes over the pair state; `fusion.FusionState` is the face of this module.

Per unordered pair lo < hi there is one row ``delta`` and two numbers: its shrink factor ``s`` and its norm
``r``. Pair (lo, hi) has number ``hi (hi - 1) / 2 + lo``, so that a newcomer's pairs are appended at the end.

Functions that take ``jobs`` do the parts of the work whose numbers it lists; other threads do the others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit
from numba.core import types
from numba.extending import intrinsic

from fedfuse.types import Floats, Ints

# Reassociation lets sums be vectorised; nan and inf keep their meaning, since uploads may carry them.
_ENTRY: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "no_cfunc_wrapper": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}
# Inner functions become part of their callers: then no reference to a lent array is counted (see `_lend`).
_INNER = {**_ENTRY, "no_cpython_wrapper": True, "forceinline": True}

# Rows of active devices that stay in the second-level cache while the partners go by.
TILE = 32
# Elements that are summed in the array's own type before float64 takes over.
BLOCK = 256
# Bytes of the next pair's row that are asked for early; in longer rows the processor looks ahead by itself.
AHEAD = 8192


class Pairs(NamedTuple):
    """What is known of all pairs, and of the devices' anchors."""

    delta: Floats  # pairs x d
    s: Floats
    r: Floats
    sums: Floats  # devices x d, float64: sum_j (2 s_ij - 1) delta_ij


class Plan(NamedTuple):
    """Who meets whom in a round, cut into chunks of about the same work."""

    active: Ints  # ascending
    rank: Ints  # place among the active devices, or -1
    bounds: Ints  # chunk c has the partners bounds[c] … bounds[c + 1] - 1


def _emit_prefetch(_typing: Any, array: Any, _index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(prefetch, [pointer, number(1), number(3), number(1)])  # to write; first level; data
        return context.get_dummy_value()

    return types.none(array, types.intp), generate


def _emit_loan(_typing: Any, array: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lent = context.make_array(array)(context, builder, arguments[0])
        lent.meminfo = ir.Constant(lent.meminfo.type, None)
        lent.parent = ir.Constant(lent.parent.type, None)
        return lent._getvalue()

    return array(array), generate


# _prefetch(array, index) asks for the cache line of array.flat[index] ahead of its use; any index is allowed.
_prefetch: Any = intrinsic(_emit_prefetch)
# _lend(array) is the same array, but nobody counts who holds it: threads wait for each other at the counter.
_lend: Any = intrinsic(_emit_loan)


@njit(**_INNER)
def _number(i: Any, j: Any) -> Any:
    lo, hi = min(i, j), max(i, j)
    return hi * (hi - 1) // 2 + lo


@njit(**_INNER)
def _shrink(r: Any, pieces: Any) -> Any:
    ends, c0, c1 = pieces
    k = 0
    while r > ends[k]:
        k += 1
    return c0[k] if c1[k] == 0.0 else c0[k] + c1[k] / r


@njit(**_INNER)
def _step_block(delta: Any, omega_lo: Any, omega_hi: Any, change: Any, keep: Any, loss: Any) -> Any:
    """`_step` on a few elements, summed in the arrays' own type. Loops from 0, or it is not vectorised."""
    new_new = gap_new = gap_gap = delta.dtype.type(0)
    for e in range(delta.size):
        old = delta[e]
        new = omega_lo[e] - omega_hi[e] + keep * old
        gap = new - old
        delta[e] = new
        change[e] += loss * old
        new_new += new * new
        gap_new += gap * new
        gap_gap += gap * gap
    return new_new, gap_new, gap_gap


@njit(**_INNER)
def _step(delta: Any, p: int, following: int, lo: Any, hi: Any, change: Any, s: Any, loss: Any) -> Any:
    """delta_p <- omega_lo - omega_hi + (1 - s) delta_p, and change += loss * (delta_p as it was).

    Returns ||new||^2, <gap, new> and ||gap||^2, where gap = new - old. Meanwhile the row of the following
    pair comes into the cache.
    """
    d = delta.shape[1]
    keep = delta.dtype.type(1) - s
    a, b, c = 0.0, 0.0, 0.0
    for first in range(0, d, BLOCK):
        last = min(first + BLOCK, d)
        for e in range(first, min(last, AHEAD // delta.itemsize), 64 // delta.itemsize):
            _prefetch(delta, following * d + e)
        products = _step_block(delta[p, first:last], lo[first:last], hi[first:last], change[first:last], keep, loss)
        a, b, c = a + products[0], b + products[1], c + products[2]
    return a, b, c


@njit(**_INNER)
def _spread(delta: Any, mine: Any, change: Any, gain: Any) -> None:
    """Add gain * delta to one device's anchor sum and take it from the other's."""
    for e in range(delta.size):
        g = gain * delta[e]
        mine[e] += g
        change[e] -= g


@njit(**_INNER)
def _hand_over(change: Any, total: Any) -> None:
    """Add a partner's collected change to its sum, and begin again."""
    for e in range(change.size):
        total[e] += change[e]
        change[e] = 0


@njit(**_INNER)
def _moved(a: Any, b: Any, products: Any) -> Any:
    """||a new - b old||^2 = ||(a - b) new + b gap||^2: no digits are lost where little has moved."""
    new_new, gap_new, gap_gap = products
    c = a - b
    return max(c * c * new_new + 2 * c * b * gap_new + b * b * gap_gap, 0.0)


@njit(**_INNER)
def _meet(
    pairs: Any, omega: Any, pieces: Any, i: int, j: int, following: int, losing: bool, mine: Any, change: Any
) -> tuple[float, float]:
    """Update the pair of an active device i and its partner j; return its squared residuals.

    What the pair adds to i's sum goes to ``mine``, how it changes j's sum to ``change``.
    """
    delta, s, r = pairs.delta, pairs.s, pairs.r
    one = delta.dtype.type(1)
    p, sign = _number(i, j), one if i < j else -one
    s_old = s[p]
    # an active partner's sum is built anew, so there is nothing to take out of it
    loss = sign * (s_old + s_old - one) if losing else one - one
    products = _step(delta, p, following, omega[min(i, j)], omega[max(i, j)], change, s_old, loss)
    norm = np.sqrt(products[0])
    s_new = delta.dtype.type(_shrink(norm, pieces))
    s[p], r[p] = s_new, norm
    _spread(delta[p], mine, change, sign * (s_new + s_new - one))
    # omega_i - omega_j - theta is the change of v / rho = (1 - s) delta; theta is s delta
    primal = _moved(np.float64(one - s_new), np.float64(one - s_old), products)
    return primal, _moved(np.float64(s_new), np.float64(s_old), products)


@njit(**_INNER)
def _chunk(pairs: Any, omega: Any, pieces: Any, plan: Any, c: int, private: Any) -> tuple[float, float]:
    """Update all pairs of active devices with this chunk's partners; return the sums of squared residuals."""
    active, rank = plan.active, plan.rank
    k = active.size
    change = private[k]
    primal, dual = 0.0, 0.0
    for first in range(0, k, TILE):
        last = min(first + TILE, k)
        for j in range(plan.bounds[c], plan.bounds[c + 1]):
            losing = rank[j] < 0
            # two active devices meet once, at the higher one's turn
            stop = last if losing else min(last, rank[j])
            for b in range(first, stop):
                following = _number(active[b + 1], j) if b + 1 < stop else _number(active[first], j + 1)
                squares = _meet(pairs, omega, pieces, active[b], j, following, losing, private[b], change)
                primal += squares[0]
                dual += squares[1]
            if losing:
                _hand_over(change, pairs.sums[j])
            elif first < stop:
                _hand_over(change, private[rank[j]])
    return primal, dual


@njit(**_ENTRY)
def absorb(pairs: Any, omega: Any, pieces: Any, plan: Any, private: Any, squares: Any, jobs: Any) -> None:
    """Update every pair with an active device, once; keep ``sums[i] = sum_j (2 s_ij - 1) delta_ij``.

    Sums of inactive devices are corrected by the difference; such a partner belongs to one chunk alone. Sums
    of active devices are built anew (all their pairs pass by): every chunk collects its part in
    ``private[c]`` (zero at first; one row per active device and one to work with), and `gather` adds the
    parts in a fixed order, so that the result does not depend on how many threads there are.
    ``squares[c]`` takes the sums of squared primal and dual residuals.
    """
    pairs = Pairs(_lend(pairs.delta), _lend(pairs.s), _lend(pairs.r), _lend(pairs.sums))
    plan = Plan(_lend(plan.active), _lend(plan.rank), _lend(plan.bounds))
    pieces = (_lend(pieces.ends), _lend(pieces.c0), _lend(pieces.c1))
    omega, private = _lend(omega), _lend(private)
    for c in jobs:
        squares[c, 0], squares[c, 1] = _chunk(pairs, omega, pieces, plan, c, private[c])


@njit(**_ENTRY)
def gather(private: Any, active: Any, sums: Any) -> None:
    """Set the sums of active devices to what all chunks have collected."""
    for b in range(active.size):
        total = sums[active[b]]
        for e in range(total.size):
            total[e] = private[0, b, e]
        for c in range(1, private.shape[0]):
            part = private[c, b]
            for e in range(total.size):
                total[e] += part[e]


@njit(**_ENTRY)
def place(omega: Any, active: Any, new: Any) -> tuple[float, float]:
    """Put in new parameters; return the squared length of what they change, and of all parameters."""
    moved, size = 0.0, 0.0
    for b in range(active.size):
        row = omega[active[b]]
        for e in range(row.size):
            moved += np.float64(new[b, e] - row[e]) ** 2
            row[e] = new[b, e]
    for x in omega.flat:
        size += np.float64(x) ** 2
    return moved, size


@njit(**_ENTRY)
def total_sums(delta: Any, s: Any, sums: Any, jobs: Any) -> None:
    """Set ``sums[i] = sum_j (2 s_ij - 1) delta_ij`` for these devices from the stored vectors."""
    for i in jobs:
        total = sums[i]
        for e in range(total.size):
            total[e] = 0.0
        for j in range(sums.shape[0]):
            if i != j:
                p = _number(i, j)
                gain = np.float64(s[p] + s[p] - 1) * (1 if i < j else -1)
                row = delta[p]
                for e in range(total.size):
                    total[e] += gain * row[e]


@njit(**_ENTRY)
def differences(delta: Any, r: Any, omega: Any, jobs: Any) -> None:
    """Set ``delta_ij = omega_i - omega_j`` and its norm, for these devices and all that come before them."""
    for hi in jobs:
        for lo in range(hi):
            row, a, b = delta[_number(lo, hi)], omega[lo], omega[hi]
            square = 0.0
            for e in range(row.size):
                row[e] = a[e] - b[e]
                square += np.float64(row[e]) ** 2
            r[_number(lo, hi)] = np.sqrt(square)


@njit(**_ENTRY)
def rescale(delta: Any, s: Any, r: Any, ratio: float) -> None:
    """Keep theta and v when rho changes by rho_old / rho_new = ratio.

    theta = s delta and v / rho_new = ratio (1 - s) delta are again multiples of one vector, which is
    (s + ratio (1 - s)) delta.
    """
    for p in range(s.size):
        stretch = s[p] + ratio * (1 - s[p])
        if stretch > 0:
            for e in range(delta.shape[1]):
                delta[p, e] *= stretch
            r[p] *= stretch
            s[p] /= stretch
