"""Compiled passes over the pair state; `fusion.FusionState` is the face of this module.

Per unordered pair lo < hi there is one row ``delta`` and two numbers: its shrink factor ``s`` and its norm
``r``. Pair (lo, hi) has number ``hi (hi - 1) / 2 + lo``, so that a newcomer's pairs are appended at the end.

A pair that has come to lie beyond the penalty's reach is ``far``: s = 1, delta = omega_lo - omega_hi whatever
its row says, and ``r`` is at most the true norm. Rows of far pairs are neither read nor written.

Per device there is a sum over its pairs, ``sum_j (2 s_ij - 1) delta_ij - (omega_i - omega_j)``, to which far
pairs add nothing.

Functions that take ``jobs`` do the parts of the work whose numbers it lists; other threads do the others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit
from numba.core import types
from numba.extending import intrinsic

from fedfuse.types import Bools, Floats, Ints

# Reassociation lets sums be vectorised; nan and inf keep their meaning, since uploads may carry them.
_ENTRY: dict[str, Any] = {
    "nogil": True,
    "cache": True,
    "no_cfunc_wrapper": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz", "arcp"},
}
_APART = {**_ENTRY, "no_cpython_wrapper": True}
# Inner functions become part of their callers: then no reference to a lent array is counted (see `_lend`).
_INNER = {**_APART, "forceinline": True}

# Rows of active devices that stay in the second-level cache while the partners go by.
TILE = 32
# Elements that are summed in the array's own type before float64 takes over.
BLOCK = 256
# Bytes of the next pair's row that are asked for early; in longer rows the processor looks ahead by itself.
AHEAD = 8192
# Lower bounds are rounded down by more than a float32 can be wrong.
CAUTION = 1 - 1e-5


class Pairs(NamedTuple):
    """What is known of all pairs, and their sums per device."""

    delta: Floats  # pairs x d
    s: Floats
    r: Floats
    far: Bools
    sums: Floats  # devices x d, float64


class Round(NamedTuple):
    """Who has moved, and how the meetings of a round are cut into chunks of about the same work."""

    active: Ints  # ascending
    rank: Ints  # place among the active devices, or -1
    before: Floats  # parameters of the active devices before the round
    moved: Floats  # how they have changed since
    lengths: Floats  # of these changes, float64
    bounds: Ints  # chunk c has the partners bounds[c] … bounds[c + 1] - 1


class Scratch(NamedTuple):
    """What each chunk collects; sums and near are zero at first."""

    sums: Floats  # chunks x (active + 1) x d: of every active device, and of the partner at hand
    near: Ints  # chunks x active: how many of its pairs are not far
    todo: Ints  # chunks x 2 x (TILE m): meetings of near pairs, as places of active devices and partners
    squares: Floats  # chunks x 2: squared primal and dual residuals


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


@njit(**_APART)
def _apart(a: Any, b: Any) -> Any:
    """||a - b||^2."""
    total = 0.0
    for first in range(0, a.size, BLOCK):
        x, y = a[first : first + BLOCK], b[first : first + BLOCK]
        part = x.dtype.type(0)
        for e in range(x.size):
            part += (x[e] - y[e]) ** 2
        total += part
    return total


@njit(**_INNER)
def _step_block(delta: Any, lo: Any, hi: Any, extra: Any, change: Any, keep: Any, loss: Any) -> Any:
    """`_step` on a few elements, summed in the arrays' own type. Loops from 0, or it is not vectorised."""
    new_new = gap_new = gap_gap = delta.dtype.type(0)
    for e in range(delta.size):
        old = delta[e]
        new = lo[e] - hi[e] + keep * old
        gap = new - old
        delta[e] = new
        change[e] += loss * old + extra[e]
        new_new += new * new
        gap_new += gap * new
        gap_gap += gap * gap
    return new_new, gap_new, gap_gap


@njit(**_INNER)
def _step(delta: Any, p: Any, following: Any, lo: Any, hi: Any, extra: Any, change: Any, s: Any, loss: Any) -> Any:
    """delta_p <- omega_lo - omega_hi + (1 - s) delta_p, and change += loss * (delta_p as it was) + extra.

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
        row, x, y = delta[p, first:last], lo[first:last], hi[first:last]
        products = _step_block(row, x, y, extra[first:last], change[first:last], keep, loss)
        a, b, c = a + products[0], b + products[1], c + products[2]
    return a, b, c


@njit(**_INNER)
def _spread(delta: Any, other: Any, mine: Any, change: Any, gain: Any) -> None:
    """Do mine += gain * delta + other and change -= gain * delta."""
    for e in range(delta.size):
        g = gain * delta[e]
        mine[e] += g + other[e]
        change[e] -= g


@njit(**_INNER)
def _hand_over(change: Any, total: Any) -> None:
    """Add a partner's collected change to its sum, and begin again."""
    for e in range(total.size):
        total[e] += change[e]
        change[e] = 0


@njit(**_INNER)
def _moved(a: Any, b: Any, products: Any) -> Any:
    """||a new - b old||^2 = ||(a - b) new + b gap||^2: no digits are lost where little has moved."""
    new_new, gap_new, gap_gap = products
    c = a - b
    return max(c * c * new_new + 2 * c * b * gap_new + b * b * gap_gap, 0.0)


@njit(**_INNER)
def _stays_far(pairs: Any, omega: Any, turn: Any, reach: float, p: Any, b: Any, j: Any) -> Any:
    """Say whether a far pair is still beyond the reach; its distance is taken only where it may not be."""
    way = turn.lengths[b]
    if turn.rank[j] >= 0:
        way += turn.lengths[turn.rank[j]]
    bound = pairs.r[p] - way
    if bound * CAUTION <= reach:
        bound = np.sqrt(_apart(omega[turn.active[b]], omega[j]))
    pairs.r[p] = bound * CAUTION
    return bound * CAUTION > reach


@njit(**_INNER)
def _sift(pairs: Any, omega: Any, turn: Any, reach: float, first: Any, c: Any, todo: Any) -> Any:
    """List this tile's meetings whose pairs are near; return how many, and the others' dual residuals."""
    active, rank, lengths, moved = turn.active, turn.rank, turn.lengths, turn.moved
    n, dual = 0, 0.0
    for j in range(turn.bounds[c], turn.bounds[c + 1]):
        other, last = rank[j], min(first + TILE, active.size)
        # two active devices meet once, at the higher one's turn
        for b in range(first, last if other < 0 else min(last, other)):
            p = _number(active[b], j)
            if pairs.far[p] and _stays_far(pairs, omega, turn, reach, p, b, j):
                # theta moves as its devices do
                dual += lengths[b] ** 2 if other < 0 else _apart(moved[b], moved[other])
            else:
                todo[0, n], todo[1, n] = b, j
                n += 1
    return n, dual


@njit(**_APART)
def _recall(row: Any, omega: Any, turn: Any, b: Any, j: Any) -> None:
    """Write down the row of a pair that is far no more, as it was before the round."""
    i, other = turn.active[b], turn.rank[j]
    mine, theirs = turn.before[b], omega[j] if other < 0 else turn.before[other]
    lo, hi = (mine, theirs) if i < j else (theirs, mine)
    for e in range(row.size):
        row[e] = lo[e] - hi[e]


@njit(**_INNER)
def _meet(pairs: Any, omega: Any, turn: Any, pieces: Any, b: Any, j: Any, following: Any, sums: Any) -> Any:
    """Update the pair of an active device and its partner j; return its squared residuals."""
    delta, s = pairs.delta, pairs.s
    one = delta.dtype.type(1)
    i, change = turn.active[b], sums[turn.active.size]
    p, sign = _number(i, j), one if i < j else -one
    if pairs.far[p]:
        _recall(delta[p], omega, turn, b, j)
    s_old = s[p]
    # to an inactive partner's sum comes the difference; an active one's is built anew, like i's
    loss = sign * (s_old + s_old - one) if turn.rank[j] < 0 else one - one
    extra = turn.moved[b] if turn.rank[j] < 0 else omega[i]
    products = _step(delta, p, following, omega[min(i, j)], omega[max(i, j)], extra, change, s_old, loss)
    norm = np.sqrt(products[0])
    s_new = delta.dtype.type(_shrink(norm, pieces))
    s[p], pairs.r[p], pairs.far[p] = s_new, norm, s_old == one and s_new == one
    _spread(delta[p], omega[j], sums[b], change, sign * (s_new + s_new - one))
    # omega_i - omega_j - theta is the change of v / rho = (1 - s) delta; theta is s delta
    primal = _moved(np.float64(one - s_new), np.float64(one - s_old), products)
    return primal, _moved(np.float64(s_new), np.float64(s_old), products)


@njit(**_INNER)
def _chunk(pairs: Any, omega: Any, turn: Any, pieces: Any, reach: float, c: Any, scratch: Any) -> None:
    """Update all pairs of active devices with the partners of this chunk."""
    active, rank, k = turn.active, turn.rank, turn.active.size
    sums, near, todo = scratch.sums[c], scratch.near[c], scratch.todo[c]
    primal, dual = 0.0, 0.0
    for first in range(0, k, TILE):
        n, moved = _sift(pairs, omega, turn, reach, first, c, todo)
        dual += moved
        for t in range(n):
            b, j = todo[0, t], todo[1, t]
            following = _number(active[todo[0, t + 1]], todo[1, t + 1]) if t + 1 < n else 0
            squares = _meet(pairs, omega, turn, pieces, b, j, following, sums)
            primal += squares[0]
            dual += squares[1]
            near[b] += 1
            if rank[j] >= 0:
                near[rank[j]] += 1
            if t + 1 == n or todo[1, t + 1] != j:
                if rank[j] < 0:
                    _hand_over(sums[k], pairs.sums[j])
                else:
                    _hand_over(sums[k], sums[rank[j]])
    scratch.squares[c, 0], scratch.squares[c, 1] = primal, dual


@njit(**_ENTRY)
def absorb(pairs: Any, omega: Any, turn: Any, pieces: Any, reach: float, scratch: Any, jobs: Any) -> None:
    """Update every pair with an active device, once.

    Sums of inactive devices are corrected by the difference; such a partner belongs to one chunk alone. Sums
    of active devices are built anew (all their pairs pass by): every chunk collects its part, and `gather`
    adds the parts in a fixed order, so that the result does not depend on how many threads there are.
    """
    delta, s, r, far, sums = pairs
    pairs = Pairs(_lend(delta), _lend(s), _lend(r), _lend(far), _lend(sums))
    active, rank, before, moved, lengths, bounds = turn
    turn = Round(_lend(active), _lend(rank), _lend(before), _lend(moved), _lend(lengths), _lend(bounds))
    own, near, todo, squares = scratch
    scratch = Scratch(_lend(own), _lend(near), _lend(todo), _lend(squares))
    pieces = (_lend(pieces.ends), _lend(pieces.c0), _lend(pieces.c1))
    for c in jobs:
        _chunk(pairs, _lend(omega), turn, pieces, reach, c, scratch)


@njit(**_ENTRY)
def gather(scratch: Any, active: Any, omega: Any, sums: Any) -> None:
    """Set the sums of active devices to what all chunks have collected."""
    for b in range(active.size):
        total, own = sums[active[b]], omega[active[b]]
        near = 0
        for c in range(scratch.near.shape[0]):
            near += scratch.near[c, b]
        for e in range(total.size):
            total[e] = -near * np.float64(own[e])
        for c in range(scratch.sums.shape[0]):
            part = scratch.sums[c, b]
            for e in range(total.size):
                total[e] += part[e]


@njit(**_ENTRY)
def place(omega: Any, new: Any, turn: Any) -> float:
    """Put in new parameters, note in ``turn`` what changes; return the squared length of all parameters."""
    for b in range(turn.active.size):
        row, mine, before, moved = omega[turn.active[b]], new[b], turn.before[b], turn.moved[b]
        square = 0.0
        for e in range(row.size):
            before[e] = row[e]
            moved[e] = mine[e] - row[e]
            row[e] = mine[e]
            square += np.float64(moved[e]) ** 2
        turn.lengths[b] = np.sqrt(square)
    size = 0.0
    for x in omega.flat:
        size += np.float64(x) ** 2
    return size


@njit(**_ENTRY)
def anchors(omega: Any, sums: Any, devices: Any) -> Any:
    """omega_i + sum_i / m for these devices."""
    zeta = np.empty((devices.size, omega.shape[1]), omega.dtype)
    share = 1 / omega.shape[0]
    for b in range(devices.size):
        row, own, total = zeta[b], omega[devices[b]], sums[devices[b]]
        for e in range(row.size):
            row[e] = own[e] + share * total[e]
    return zeta


@njit(**_ENTRY)
def total_sums(pairs: Any, omega: Any, jobs: Any) -> None:
    """Build the sums of these devices anew from the stored pairs."""
    delta, s, _, far, sums = pairs
    for i in jobs:
        total, mine = sums[i], omega[i]
        for e in range(total.size):
            total[e] = 0.0
        for j in range(sums.shape[0]):
            p = _number(i, j) if i != j else 0
            if i != j and not far[p]:
                gain = np.float64(s[p] + s[p] - 1) * (1 if i < j else -1)
                row, other = delta[p], omega[j]
                for e in range(total.size):
                    total[e] += gain * row[e] - (np.float64(mine[e]) - other[e])


@njit(**_ENTRY)
def rescale(delta: Any, s: Any, r: Any, ratio: float) -> None:
    """Keep theta and v when rho changes by rho_old / rho_new = ratio.

    theta = s delta and v / rho_new = ratio (1 - s) delta are again multiples of one vector, which is
    (s + ratio (1 - s)) delta.
    """
    for p in range(s.size):
        stretch = s[p] + ratio * (1 - s[p])
        if stretch > 0 and s[p] != 1:
            for e in range(delta.shape[1]):
                delta[p, e] *= stretch
            r[p] *= stretch
            s[p] /= stretch
