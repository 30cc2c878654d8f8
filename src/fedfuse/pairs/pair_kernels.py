"""Compiled passes over the pair state, for `pairs.state.FusionState`.

The layout of pairs in memory is in `pairs.layout`. A round finds far pairs that come within reach (`find_entering`)
and updates all near pairs (`update_pairs`), marking those that have become far.

Functions that take ``jobs`` do the parts of the work with these numbers; other threads do the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fedfuse.pairs.layout import ENTERING, FAR, LEAVING, ROUND_DOWN, SUM_BLOCK, TILE_DEVICES
from fedfuse.utils.jit import COMMON, kernel
from fedfuse.utils.simd import line, load, prefetch, splat, store, total, width

# Reassociation lets sums be vectorised; nan and inf keep their meaning, since uploads may carry them.
FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
_APART: dict[str, Any] = {**COMMON, "fastmath": FASTMATH}
_INNER = {**_APART, "forceinline": True}

# Rows that a pair's own is prefetched ahead, so that its second half is there in time too; bytes of a row that are: in
# longer ones the processor does so by itself.
AHEAD, PREFETCH_BYTES = 2, 8192


@njit(**_INNER)
def _pair(i: Any, j: Any) -> Any:
    lo, hi = min(i, j), max(i, j)
    return hi * (hi - 1) // 2 + lo


@njit(**_INNER)
def shrink(r: Any, pieces: Any) -> Any:
    ends, c0, c1 = pieces
    k = 0
    while r > ends[k]:
        k += 1
    return c0[k] if c1[k] == 0.0 else c0[k] + c1[k] / r


@njit(**_APART)
def apart(a: Any, b: Any) -> Any:
    """||a - b||^2."""
    w, square = width(a), 0.0
    for first in range(0, a.size, SUM_BLOCK):
        last = min(first + SUM_BLOCK, a.size)
        x, e = splat(a.dtype.type(0)), first
        y, z, u = x, x, x
        while e + 4 * w <= last:  # four at once: fewer would wait for their sums
            f, g = load(a, e) - load(b, e), load(a, e + w) - load(b, e + w)
            h, i = load(a, e + 2 * w) - load(b, e + 2 * w), load(a, e + 3 * w) - load(b, e + 3 * w)
            x, y, z, u = x + f * f, y + g * g, z + h * h, u + i * i
            e += 4 * w
        while e + w <= last:
            f = load(a, e) - load(b, e)
            x, e = x + f * f, e + w
        square += total((x + y) + (z + u))
        while e < last:
            gap = np.float64(a[e] - b[e])
            square, e = square + gap * gap, e + 1
    return square


@njit(**_INNER)
def _products(row: Any, lo: Any, hi: Any, keep: Any, first: Any, last: Any, ahead: Any) -> Any:
    """||new||^2 and ||gap||^2 of some elements: new = lo - hi + keep row, gap = new - row.

    Meanwhile those of the row ahead are prefetched.
    """
    none, k = splat(row.dtype.type(0)), splat(keep)
    a0, a1, a2, a3, b0, b1, b2, b3 = none, none, none, none, none, none, none, none
    e, w = first, width(row)
    while e + 4 * w <= last:  # four at once: fewer would wait for their sums
        for q in range(0, 2 * w, line(row)):
            prefetch(ahead, first + (e - first) // 2 + q)
        x, y, z, u = load(row, e), load(row, e + w), load(row, e + 2 * w), load(row, e + 3 * w)
        new = load(lo, e) - load(hi, e) + k * x
        a0, b0 = a0 + new * new, b0 + (new - x) * (new - x)
        new = load(lo, e + w) - load(hi, e + w) + k * y
        a1, b1 = a1 + new * new, b1 + (new - y) * (new - y)
        new = load(lo, e + 2 * w) - load(hi, e + 2 * w) + k * z
        a2, b2 = a2 + new * new, b2 + (new - z) * (new - z)
        new = load(lo, e + 3 * w) - load(hi, e + 3 * w) + k * u
        a3, b3 = a3 + new * new, b3 + (new - u) * (new - u)
        e += 4 * w
    while e + w <= last:
        x = load(row, e)
        new = load(lo, e) - load(hi, e) + k * x
        a0, b0, e = a0 + new * new, b0 + (new - x) * (new - x), e + w
    a, b = total((a0 + a1) + (a2 + a3)), total((b0 + b1) + (b2 + b3))
    while e < last:
        v = lo[e] - hi[e] + keep * row[e]
        gap = v - row[e]
        a, b, e = a + v * v, b + gap * gap, e + 1
    return a, b


@njit(**_INNER)
def _write_row(row: Any, mine: Any, theirs: Any, own: Any, other: Any, weights: Any, ahead: Any) -> None:
    """Write the new row of a pair, and add it to the sums of its two devices.

    As the active device sees it, new = apart + keep row with apart = mine - theirs. Its sum is built anew and gets
    gain new - apart. So does its partner's, if that is active too (lift is 1, back 0), with the other sign. An inactive
    partner's sum gets the difference to what it had of this pair, - gain new - back row, and the active device's move,
    which is the same for all partners near to the same devices and therefore added elsewhere (`_sum_moves`).
    """
    keep, sign, gain, lift, back = weights
    k, s, g, f, b = splat(keep), splat(sign), splat(gain), splat(lift), splat(back)
    e, w = 0, width(row)
    while e + w <= row.size:
        for q in range(0, 2 * w, line(row)):
            prefetch(ahead, (row.size + e) // 2 + q)
        for _ in range(min(4, (row.size - e) // w)):
            old, apart = load(row, e), load(mine, e) - load(theirs, e)
            new = apart + k * old
            store(row, e, s * new)
            store(own, e, load(own, e) - apart + g * new)
            store(other, e, load(other, e) + f * apart - g * new - b * old)
            e += w
    while e < row.size:
        was, gap = row[e], mine[e] - theirs[e]
        now = gap + keep * was
        row[e] = sign * now
        own[e] += gain * now - gap
        other[e] += lift * gap - gain * now - back * was
        e += 1


@njit(**_INNER)
def _copy(source: Any, target: Any) -> None:
    for e in range(source.size):
        target[e] = source[e]


@njit(**_INNER)
def _clear(target: Any) -> None:
    for e in range(target.size):
        target[e] = 0


@njit(**_INNER)
def _add(source: Any, target: Any) -> None:
    for e in range(target.size):
        target[e] += source[e]


@njit(**_INNER)
def square_change(a: Any, b: Any, products: Any) -> Any:
    """||a new - b old||^2 = ||(a - b) new + b gap||^2: no digits are lost where little has moved."""
    new_new, gap_new, gap_gap = products
    c = a - b
    return max(c * c * new_new + 2 * c * b * gap_new + b * b * gap_gap, 0.0)


@kernel(fastmath=FASTMATH)
def find_entering(
    where: Any, omega: Any, turn: Any, due: Any, reach: float, entering: Any, least: Any, jobs: Any
) -> None:
    """Mark the far pairs of active devices that are within reach now; only those that are ``due`` may have any.

    ``entering`` says whether a chunk has some, and ``least`` gets the lower bounds of the distances of its other far
    pairs, for each active device.
    """
    rank, bounds, active, _, _, _, _ = turn
    for c in jobs:
        for b in range(active.size):
            least[c, b] = np.inf
        for first in range(0, active.size, TILE_DEVICES):  # so that what is far apart in memory is met again soon
            last = min(first + TILE_DEVICES, active.size)
            for j in range(bounds[c], bounds[c + 1]):
                other = rank[j]
                # two active devices meet once, at the higher one's turn
                for b in range(first, last if other < 0 else min(last, other)):
                    if not due[b] and (other < 0 or not due[other]):
                        continue
                    p = _pair(active[b], j)
                    if where[p] != FAR:
                        continue
                    bound = np.sqrt(apart(omega[active[b]], omega[j])) * ROUND_DOWN
                    if not bound > reach:
                        where[p] = ENTERING
                        entering[c] = True
                        continue
                    least[c, b] = min(least[c, b], bound)
                    if other >= 0:
                        least[c, other] = min(least[c, other], bound)


@njit(**_INNER)
def _list_near(near: Any, turn: Any, tile: Any, run: Any, todo: Any) -> Any:
    """List the near pairs of these active devices with these partners, in the order of memory; return how many.

    Rows of pairs with the same higher device follow each other: the partner's first, then each active device's.
    """
    active, rank, n = turn.active, turn.rank, 0
    for j in range(run[0], run[1]):
        for b in range(tile[0], tile[1]):
            if active[b] >= j:
                break
            if near[j, active[b]]:
                todo[0, n], todo[1, n], todo[2, n] = b, j, _pair(active[b], j)
                n += 1
    for b in range(tile[0], tile[1]):
        for j in range(run[0], min(run[1], active[b])):
            if near[active[b], j] and rank[j] < 0:  # two active devices meet once, at the higher one's turn
                todo[0, n], todo[1, n], todo[2, n] = b, j, _pair(active[b], j)
                n += 1
    return n


@njit(**_INNER)
def _pair_products(pairs: Any, turn: Any, b: Any, j: Any, p: Any, theirs: Any, following: Any) -> Any:
    """Return ||new||^2, <gap, new> and ||gap||^2 of a pair's new row (see `_products`)."""
    delta, one = pairs.delta, pairs.delta.dtype.type(1)
    row, mine, was = delta[pairs.where[p]], turn.now[b], np.float64(pairs.r[p])
    lo, hi = (mine, theirs) if turn.active[b] < j else (theirs, mine)
    new, gap = 0.0, 0.0
    for first in range(0, row.size, SUM_BLOCK):
        last = min(first + SUM_BLOCK, row.size)
        ahead = delta[pairs.where[following]] if first * delta.itemsize < PREFETCH_BYTES else row
        part = _products(row, lo, hi, one - pairs.s[p], first, last, ahead)
        new, gap = new + part[0], gap + part[1]
    return new, (new + gap - was * was) / 2, gap  # the second: since row = new - gap


@njit(**_INNER)
def _new_numbers(pairs: Any, pieces: Any, sign: Any, both: Any, p: Any, products: Any) -> Any:
    """Write a pair's new numbers; return the weights for `_write_row`, squared residuals, and whether it is far now."""
    s, one = pairs.s, sign * sign
    norm, s_old = np.sqrt(products[0]), s[p]
    s_new = s.dtype.type(shrink(norm, pieces))
    s[p], pairs.r[p] = s_new, norm
    # omega_i - omega_j - theta is the change of v / rho = (1 - s) delta; theta is s delta
    primal = square_change(np.float64(one - s_new), np.float64(one - s_old), products)
    dual = square_change(np.float64(s_new), np.float64(s_old), products)
    keep, gain, back = sign * (one - s_old), s_new + s_new - one, sign * (one - s_old - s_old)
    weights = (keep, sign, gain, one, one - one) if both else (keep, sign, gain, one - one, back)
    return weights, primal, dual, s_old == one and s_new == one


@njit(**_APART)
def _meet(near: Any, omega: Any, turn: Any, tile: Any, run: Any, partners: Any, changes: Any) -> None:
    """Copy the parameters of inactive partners; their sums change by the moves of the devices they are near to."""
    active, last = turn.active, -1
    for j in range(run[0], run[1]):
        if turn.rank[j] >= 0:
            continue
        _copy(omega[j], partners[j - run[0]])
        alike = last >= 0
        for b in range(tile[0], tile[1]):
            alike = alike and near[j, active[b]] == near[last, active[b]]
        change = changes[j - run[0]]
        if alike:  # as of most partners in one group
            _copy(changes[last - run[0]], change)
        else:
            _clear(change)
            for b in range(tile[0], tile[1]):
                if near[j, active[b]]:
                    _add(turn.moved[b], change)
        last = j


@kernel(fastmath=FASTMATH)
def update_pairs(pairs: Any, near: Any, omega: Any, turn: Any, pieces: Any, rest: bool, scratch: Any, c: int) -> None:
    """Update the near pairs of a chunk, each once.

    The ``rest`` of far pairs, if there is one, has a theta that moves as their devices do: its dual residuals are what
    all pairs would have (see `set_parameters`) less what the near ones would.

    Sums of inactive devices are corrected by the difference; such a partner belongs to one chunk alone. Sums
    of active devices are built anew (all their pairs pass by): every chunk collects its part, and `gather_sums`
    adds the parts in a fixed order, so that the result does not depend on how many threads there are.

    Rows are visited in the order of memory, for a tile of active devices and a run of partners at a time. While the
    processor waits for a pair's norm, it goes through the next pair's row. It is one function because compilers compile
    a function again for each caller.
    """
    active, rank, delta, one = turn.active, turn.rank, pairs.delta, pairs.delta.dtype.type(1)
    where = pairs.where
    rows, todo, bounds = scratch.rows[c], scratch.todo[c], turn.bounds
    width = (rows.shape[0] - active.size) // 2  # of a run
    partners, changes, size = rows[active.size :], rows[active.size + width :], (todo.shape[1] - 1) // width
    for b in range(active.size):
        _clear(rows[b])
    primal, dual, left = 0.0, 0.0, 0
    runs = (bounds[c + 1] - bounds[c] + width - 1) // width
    for part in range((active.size + size - 1) // size * runs):
        start, first = bounds[c] + part % runs * width, part // runs * size
        run, tile = (start, min(start + width, bounds[c + 1])), (first, min(first + size, active.size))
        n = _list_near(near, turn, tile, run, todo)
        _meet(near, omega, turn, tile, run, partners, changes)
        products = 0.0, 0.0, 0.0
        for t in range(n + 1):
            known = products
            if t < n:
                b, j, p = todo[0, t], todo[1, t], todo[2, t]
                theirs = partners[j - start] if rank[j] < 0 else turn.now[rank[j]]
                products = _pair_products(pairs, turn, b, j, p, theirs, todo[2, min(t + AHEAD, n - 1)])
            if t > 0:
                b, j, p = todo[0, t - 1], todo[1, t - 1], todo[2, t - 1]
                other, row, mine = rank[j], delta[where[p]], turn.now[b]
                ahead = delta[where[todo[2, min(t + AHEAD, n - 1)]]]
                weights, x, y, far = _new_numbers(pairs, pieces, one if active[b] < j else -one, other >= 0, p, known)
                primal, dual = primal + x, dual + y
                if rest:
                    dual -= turn.lengths[b] * turn.lengths[b] if other < 0 else apart(turn.moved[b], turn.moved[other])
                if far:
                    where[p] = LEAVING - where[p]
                    left += 1
                place = j - start
                theirs, change = (partners[place], changes[place]) if other < 0 else (turn.now[other], rows[other])
                _write_row(row, mine, theirs, rows[b], change, weights, ahead)
        for j in range(run[0], run[1]):
            if rank[j] < 0:
                _add(changes[j - start], pairs.sums[j])
    scratch.squares[c, 0] = primal
    scratch.squares[c, 1] = dual
    scratch.left[c] = left


@kernel(fastmath=FASTMATH)
def gather_sums(rows: Any, active: Any, sums: Any, jobs: Any) -> None:
    """Set the sums of active devices to what all chunks have collected."""
    for b in jobs:
        target = sums[active[b]]
        _clear(target)
        for c in range(rows.shape[0]):
            _add(rows[c, b], target)


@kernel(fastmath=FASTMATH)
def cut_chunks(devices: Any, rank: Any, bounds: Any) -> None:
    """Fill in ``rank`` and ``bounds`` of a `Round`; bounds[0] is -1 if a device is unknown or occurs twice."""
    for j in range(rank.size):
        rank[j] = -1
    bounds[0] = -1
    for i in devices:
        if not 0 <= i < rank.size or rank[i] == 0:
            return
        rank[i] = 0
    k, work = 0, 0
    for j in range(rank.size):
        if rank[j] == 0:
            rank[j] = k
            work += k
            k += 1
        else:
            work += devices.size
    bounds[0], c, done = 0, 1, 0
    for j in range(rank.size):
        done += devices.size if rank[j] < 0 else rank[j]
        while c < bounds.size - 1 and done * (bounds.size - 1) >= c * work:
            bounds[c] = j
            c += 1
    bounds[bounds.size - 1] = rank.size


@kernel(fastmath=FASTMATH)
def set_parameters(omega: Any, devices: Any, new: Any, turn: Any, squares: Any, together: Any, found: Any) -> None:
    """Write new parameters, and record in ``turn`` what changes.

    ``squares`` has the squared lengths of all devices' parameters. ``found`` gets the squared length of all moves, of
    all parameters, and the sum of ||a - b||^2 over all pairs of moves with at least one active device (an inactive one
    moves by 0). Over all pairs of n vectors that is n times the sum of their squares less the square of their sum, for
    which ``together`` is room.
    """
    rank, _, active, lengths, now, before, moved = turn
    moves, size, scatter = 0.0, 0.0, 0.0
    _clear(together)
    for q in range(devices.size):
        i, own = devices[q], new[q]
        b, step, square = rank[i], 0.0, 0.0
        active[b] = i
        _copy(omega[i], before[b])
        _copy(own, omega[i])
        _copy(own, now[b])
        for e in range(own.size):
            moved[b, e] = own[e] - before[b, e]
            step += np.float64(moved[b, e]) * moved[b, e]
            square += np.float64(own[e]) * own[e]
        lengths[b], squares[i] = np.sqrt(step), square
    for b in range(active.size):  # in an order that is not the caller's
        _add(moved[b], together)
        moves += lengths[b] * lengths[b]
    for i in range(squares.size):
        size += squares[i]
    for e in range(together.size):
        scatter += together[e] * together[e]
    found[0], found[1], found[2] = moves, size, squares.size * moves - scatter


@kernel(fastmath=FASTMATH)
def anchors(omega: Any, sums: Any, devices: Any, zeta: Any) -> None:
    """Set zeta to omega_i + sum_i / m for these devices."""
    share = 1 / omega.shape[0]
    for b in range(devices.size):
        row, own, total = zeta[b], omega[devices[b]], sums[devices[b]]
        for e in range(row.size):
            row[e] = own[e] + share * total[e]
