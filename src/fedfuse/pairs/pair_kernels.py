"""Compiled passes over the pair state; `pairs.state.FusionState` is the face of this module.

How pairs lie in memory is said in `pairs.layout`. A round first finds out which far pairs are no longer (`look`), gives them
rows (`claim`), and does the work (`settle`), which marks those that have become far.

Functions that take ``jobs`` do the parts of the work whose numbers it lists; other threads do the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fedfuse.pairs.layout import BLOCK, CAUTION, FAR, LEFT, RECKLESS, RUN, TILE, WANTED
from fedfuse.utils.alignment import LINE
from fedfuse.utils.compiler import COMMON
from fedfuse.utils.simd import load, prefetch, splat, store, total, width

# Reassociation lets sums be vectorised; nan and inf keep their meaning, since uploads may carry them.
_APART: dict[str, Any] = {**COMMON, "fastmath": {"reassoc", "contract", "nsz", "arcp"}}
_INNER = {**_APART, "forceinline": True}
_ENTRY = {**_APART, "inline": "always"}

# Active devices whose rows are given out partner by partner, so that those of a partner lie beside each other.
SPAN = 1024
# Bytes of the next pair's row that are asked for early; in longer rows the processor looks ahead by itself.
AHEAD = 8192


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
    w, square = width(a), 0.0
    for first in range(0, a.size, BLOCK):
        last = min(first + BLOCK, a.size)
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

    Meanwhile those of the row ahead come into the cache.
    """
    none, k = splat(row.dtype.type(0)), splat(keep)
    a0, a1, a2, a3, b0, b1, b2, b3 = none, none, none, none, none, none, none, none
    e, w = first, width(row)
    while e + 4 * w <= last:  # four at once: fewer would wait for their sums
        for q in range(0, 2 * w, LINE // row.itemsize):
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
def _spread(row: Any, mine: Any, theirs: Any, own: Any, other: Any, weights: Any, ahead: Any) -> None:
    """Put in the new row of a pair, and hand on what it means for the sums of its two devices.

    All as the active device sees it: new = apart + keep row, where apart = mine - theirs. Its sum is built anew and
    gets gain new - apart. So does its partner's, if that is active too (lift is 1, back 0), with the other sign. An
    inactive partner's sum gets the difference to what it had of this pair, - gain new - back row, and besides what the
    active device has moved by: the same for all partners that are near to the same devices, so that is not done here.
    """
    keep, sign, gain, lift, back = weights
    k, s, g, f, b = splat(keep), splat(sign), splat(gain), splat(lift), splat(back)
    e, w = 0, width(row)
    while e + w <= row.size:
        for line in range(0, 2 * w, LINE // row.itemsize):
            prefetch(ahead, (row.size + e) // 2 + line)
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
def _moved(a: Any, b: Any, products: Any) -> Any:
    """||a new - b old||^2 = ||(a - b) new + b gap||^2: no digits are lost where little has moved."""
    new_new, gap_new, gap_gap = products
    c = a - b
    return max(c * c * new_new + 2 * c * b * gap_new + b * b * gap_gap, 0.0)


@njit(**_ENTRY)
def look(pairs: Any, omega: Any, turn: Any, due: Any, way: Any, reach: float, found: Any, jobs: Any) -> None:
    """Look at the far pairs of active devices that are ``due`` (see `pairs.distance_bounds`); mark those that are near from now on.

    What is ``found`` of each chunk: how many these are, and how far the others of each active device at least are.
    """
    wanted, least = found
    _, _, r, where, _ = pairs
    rank, bounds, active, _, _, _, _ = turn
    for c in jobs:
        wanted[c] = 0
        for b in range(active.size):
            least[c, b] = np.inf
        for first in range(0, active.size, TILE):  # so that what is far apart in memory is met again soon
            last = min(first + TILE, active.size)
            for j in range(bounds[c], bounds[c + 1]):
                other = rank[j]
                # two active devices meet once, at the higher one's turn
                for b in range(first, last if other < 0 else min(last, other)):
                    if not due[b] and (other < 0 or not due[other]):
                        continue
                    p = _number(active[b], j)
                    if where[p] != FAR:
                        continue
                    ways = way[active[b]] + way[j]
                    bound = r[p] * CAUTION - ways * RECKLESS
                    if not bound > reach:  # the distance itself is taken only where it may matter
                        bound = np.sqrt(_apart(omega[active[b]], omega[j])) * CAUTION
                        if not bound > reach:
                            where[p] = WANTED
                            wanted[c] += 1
                            continue
                        r[p] = bound + ways
                    least[c, b] = min(least[c, b], bound)
                    if other >= 0:
                        least[c, other] = min(least[c, other], bound)


@njit(**_INNER)
def _tile(order: Any) -> Any:
    """How many active devices there is room for."""
    return order.shape[1] - RUN - 2


@njit(**_INNER)
def _lined_up(near: Any, turn: Any, first: Any, run: Any, order: Any) -> Any:
    """Put these partners in the order of the first active device of this tile that they are near to.

    Those of one cluster then follow each other, and meet the same few rows. Return how many have any.
    """
    active, rank = turn.active, turn.rank
    start, stop = run
    tile = _tile(order)
    last = min(first + tile, active.size)
    # order[1] has how many come before, then everybody's first
    for b in range(tile + 2):
        order[1, b] = 0
    for j in range(start, stop):
        b, end = first, last if rank[j] < 0 else min(last, rank[j])
        while b < end and near[j, active[b]] == 0:
            b += 1
        head = b - first if b < end else tile
        order[1, tile + 2 + j - start] = head
        order[1, head + 1] += 1
    for b in range(tile):
        order[1, b + 1] += order[1, b]
    n = order[1, tile]
    for j in range(start, stop):
        head = order[1, tile + 2 + j - start]
        if head < tile:
            order[0, order[1, head]] = j
            order[1, head] += 1
    return n


@njit(**_INNER)
def _near(near: Any, turn: Any, first: Any, run: Any, order: Any, todo: Any) -> Any:
    """List this tile's meetings with these partners whose pairs are near; return how many."""
    active, rank = turn.active, turn.rank
    n, last = 0, min(first + _tile(order), active.size)
    for t in range(_lined_up(near, turn, first, run, order)):
        j = order[0, t]
        for b in range(first, last if rank[j] < 0 else min(last, rank[j])):
            if near[j, active[b]]:
                todo[0, n], todo[1, n], todo[2, n] = b, j, _number(active[b], j)
                n += 1
    return n


@njit(**_INNER)
def _measure(pairs: Any, turn: Any, b: Any, j: Any, p: Any, theirs: Any, following: Any) -> Any:
    """Return ||new||^2, <gap, new> and ||gap||^2 of a pair's new row (see `_products`)."""
    delta, one = pairs.delta, pairs.delta.dtype.type(1)
    row, mine, was = delta[pairs.where[p]], turn.now[b], np.float64(pairs.r[p])
    lo, hi = (mine, theirs) if turn.active[b] < j else (theirs, mine)
    new, gap = 0.0, 0.0
    for first in range(0, row.size, BLOCK):
        last = min(first + BLOCK, row.size)
        ahead = delta[pairs.where[following]] if first * delta.itemsize < AHEAD else row
        part = _products(row, lo, hi, one - pairs.s[p], first, last, ahead)
        new, gap = new + part[0], gap + part[1]
    return new, (new + gap - was * was) / 2, gap  # the second: since row = new - gap


@njit(**_INNER)
def _settle(pairs: Any, pieces: Any, sign: Any, both: Any, p: Any, products: Any) -> Any:
    """Put in a pair's new numbers; return what `_spread` has to do, squared residuals, and whether it is far now."""
    s, one = pairs.s, sign * sign
    norm, s_old = np.sqrt(products[0]), s[p]
    s_new = s.dtype.type(_shrink(norm, pieces))
    s[p], pairs.r[p] = s_new, norm
    # omega_i - omega_j - theta is the change of v / rho = (1 - s) delta; theta is s delta
    primal = _moved(np.float64(one - s_new), np.float64(one - s_old), products)
    dual = _moved(np.float64(s_new), np.float64(s_old), products)
    keep, gain, back = sign * (one - s_old), s_new + s_new - one, sign * (one - s_old - s_old)
    weights = (keep, sign, gain, one, one - one) if both else (keep, sign, gain, one - one, back)
    return weights, primal, dual, s_old == one and s_new == one


@njit(**_APART)
def _step_together(todo: Any, t: Any, n: Any, crowd: Any, moved: Any, steps: Any) -> Any:
    """Sum up the moves of the devices that the partner of meeting t meets; return its first meeting and the one after.

    ``crowd`` are those of the partner before it that was not active: where they are with the same devices, so is the
    sum.
    """
    last = t
    while last < n and todo[1, last] == todo[1, t]:
        last += 1
    alike = last - t == crowd[1] - crowd[0]
    for k in range(last - t):
        alike = alike and todo[0, t + k] == todo[0, crowd[0] + k]
    if not alike:
        _clear(steps)
        for k in range(t, last):
            _add(moved[todo[0, k]], steps)
    return t, last


@njit(**_ENTRY)
def settle(pairs: Any, near: Any, omega: Any, turn: Any, pieces: Any, rest: bool, scratch: Any, c: int) -> None:
    """Update the near pairs of a chunk, each once.

    If there is a ``rest`` of far pairs, whose theta moves as their devices do, its dual residuals are what all pairs
    would have (see `place`) less what the near ones would.

    Sums of inactive devices are corrected by the difference; such a partner belongs to one chunk alone. Sums
    of active devices are built anew (all their pairs pass by): every chunk collects its part, and `gather`
    adds the parts in a fixed order, so that the result does not depend on how many threads there are.

    While the processor waits for a pair's norm, it goes through the next pair's row. All this is one function since
    compilers go through a function again for each that calls it.
    """
    active, rank, delta, one = turn.active, turn.rank, pairs.delta, pairs.delta.dtype.type(1)
    where = pairs.where
    rows, todo, bounds = scratch.rows[c], scratch.todo[c], turn.bounds
    partners, changes, steps = rows[active.size :], rows[active.size + 2 :], rows[active.size + 4]
    for b in range(active.size):
        _clear(rows[b])
    primal, dual, left = 0.0, 0.0, 0
    runs = (bounds[c + 1] - bounds[c] + RUN - 1) // RUN
    tile = _tile(scratch.order[c])
    for part in range((active.size + tile - 1) // tile * runs):
        start = bounds[c] + part % runs * RUN
        run = start, min(start + RUN, bounds[c + 1])
        n = _near(near, turn, part // runs * tile, run, scratch.order[c], todo)
        seat, products, crowd = 0, (0.0, 0.0, 0.0), (0, 0)
        for t in range(n + 1):
            known, chair = products, seat
            if t < n:
                b, j, p = todo[0, t], todo[1, t], todo[2, t]
                if rank[j] < 0 and (t == 0 or todo[1, t - 1] != j):
                    seat = 1 - seat
                    _copy(omega[j], partners[seat])
                    crowd = _step_together(todo, t, n, crowd, turn.moved, steps)
                    _copy(steps, changes[seat])
                theirs = partners[seat] if rank[j] < 0 else turn.now[rank[j]]
                products = _measure(pairs, turn, b, j, p, theirs, todo[2, t + 1] if t + 1 < n else p)
            if t > 0:
                b, j, p = todo[0, t - 1], todo[1, t - 1], todo[2, t - 1]
                other, row, mine = rank[j], delta[where[p]], turn.now[b]
                ahead = delta[where[todo[2, min(t + 1, n - 1)]]]
                weights, x, y, far = _settle(pairs, pieces, one if active[b] < j else -one, other >= 0, p, known)
                primal, dual = primal + x, dual + y
                if rest:
                    dual -= turn.lengths[b] * turn.lengths[b] if other < 0 else _apart(turn.moved[b], turn.moved[other])
                if far:
                    where[p] = LEFT - where[p]
                    left += 1
                theirs, change = (partners[chair], changes[chair]) if other < 0 else (turn.now[other], rows[other])
                _spread(row, mine, theirs, rows[b], change, weights, ahead)
                if other < 0 and (t == n or todo[1, t] != j):
                    _add(change, pairs.sums[j])
    scratch.squares[c, 0] = primal
    scratch.squares[c, 1] = dual
    scratch.left[c] = left


@njit(**_ENTRY)
def claim(pairs: Any, near: Any, omega: Any, turn: Any, due: Any, rows: Any, starts: Any, jobs: Any) -> None:
    """Give rows to the pairs that `look` has marked, in the order of its visits: what they stood for before the round.

    Those of chunk c begin at starts[c].
    """
    delta, _, r, where, _ = pairs
    rank, bounds, active, _, _, before, _ = turn
    for c in jobs:
        n = starts[c]
        for first in range(0, active.size, SPAN):
            last = min(first + SPAN, active.size)
            for j in range(bounds[c], bounds[c + 1]):
                for b in range(first, last if rank[j] < 0 else min(last, rank[j])):
                    if not due[b] and (rank[j] < 0 or not due[rank[j]]):
                        continue
                    p = _number(active[b], j)
                    if where[p] == WANTED:
                        mine, theirs = before[b], omega[j] if rank[j] < 0 else before[rank[j]]
                        lo, hi = (mine, theirs) if active[b] < j else (theirs, mine)
                        row, square = delta[rows[n]], 0.0
                        for e in range(omega.shape[1]):
                            row[e] = lo[e] - hi[e]
                            square += np.float64(row[e]) * row[e]
                        where[p], r[p] = rows[n], np.sqrt(square)
                        near[j, active[b]] = near[active[b], j] = 1
                        n += 1


@njit(**_ENTRY)
def gather(rows: Any, active: Any, sums: Any, jobs: Any) -> None:
    """Set the sums of active devices to what all chunks have collected."""
    for b in jobs:
        target, source = sums[active[b]], rows[0, b]
        for e in range(target.size):
            target[e] = source[e]
        for c in range(1, rows.shape[0]):
            _add(rows[c, b], target)


@njit(**_ENTRY)
def line_up(devices: Any, rank: Any, bounds: Any) -> None:
    """Fill in ``rank`` and ``bounds`` of a `Round`; unless all devices exist, each once: then bounds[0] is -1."""
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


@njit(**_ENTRY)
def place(omega: Any, devices: Any, new: Any, turn: Any, squares: Any, together: Any, found: Any) -> None:
    """Put in new parameters, note in ``turn`` what changes.

    ``squares`` has the squared lengths of all devices' parameters. What is ``found``: the squared length of what has
    changed, of all, and the sum of ||a - b||^2 over all pairs of which one has moved: of two moves, or of one and
    nothing. That of pairs of n vectors is n times that of their squares less that of their sum, for which ``together``
    is room; nothing is a vector, too.
    """
    rank, _, active, lengths, now, before, moved = turn
    way, size, scatter = 0.0, 0.0, 0.0
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
        way += lengths[b] * lengths[b]
    for i in range(squares.size):
        size += squares[i]
    for e in range(together.size):
        scatter += together[e] * together[e]
    found[0], found[1], found[2] = way, size, squares.size * way - scatter


@njit(**_ENTRY)
def anchors(omega: Any, sums: Any, devices: Any, zeta: Any) -> None:
    """Set zeta to omega_i + sum_i / m for these devices."""
    share = 1 / omega.shape[0]
    for b in range(devices.size):
        row, own, total = zeta[b], omega[devices[b]], sums[devices[b]]
        for e in range(row.size):
            row[e] = own[e] + share * total[e]


@njit(**_ENTRY)
def total_sums(pairs: Any, omega: Any, jobs: Any) -> None:
    """Build the sums of these devices anew from the stored pairs."""
    delta, s, _, where, sums = pairs
    for i in jobs:
        total, mine = sums[i], omega[i]
        for e in range(total.size):
            total[e] = 0.0
        for j in range(sums.shape[0]):
            p = _number(i, j) if i != j else 0
            if i != j and where[p] >= 0:
                gain = np.float64(s[p] + s[p] - 1) * (1 if i < j else -1)
                row, other = delta[where[p]], omega[j]
                for e in range(total.size):
                    total[e] += gain * row[e] - (np.float64(mine[e]) - other[e])


@njit(**_ENTRY)
def rescale(delta: Any, s: Any, r: Any, where: Any, ratio: float) -> None:
    """Keep theta and v when rho changes by rho_old / rho_new = ratio.

    theta = s delta and v / rho_new = ratio (1 - s) delta are again multiples of one vector, which is
    (s + ratio (1 - s)) delta.
    """
    for p in range(s.size):
        stretch = s[p] + ratio * (1 - s[p])
        if stretch > 0 and s[p] != 1:  # so it is near
            for e in range(delta.shape[1]):
                delta[where[p], e] *= stretch
            r[p] *= stretch
            s[p] /= stretch


@njit(**{**COMMON, "inline": "always"})  # sums as they are written: what they may be wrong by is counted
def bound(products: Any, first: int, squares: Any, d: int, reach: float, r: Any, within: Any) -> None:
    """Write lower bounds of the distances of some devices to those before them (see `pairs.screening`).

    ``products`` are scalar products of devices from ``first`` on with all up to the last of them. How many pairs may be
    ``within`` reach, is added.
    """
    eps, most = np.finfo(products.dtype).eps, np.float64(np.finfo(r.dtype).max)
    # n eps / 2 is the most that a sum of n products can be wrong, relative to ||x|| ||y||
    slack = 2 * (d + 2) * eps
    for row in range(products.shape[0]):
        hi = first + row
        start = hi * (hi - 1) // 2
        for lo in range(hi):
            x, y = squares[hi], squares[lo]
            square = x + y - 2 * products[row, lo] - slack * np.sqrt(x * y)
            least = 0.0
            if 0 < square < most:  # of what is not a number, or too large for the products, nothing is known
                least = max(np.sqrt(square) * CAUTION - eps * (np.sqrt(x) + np.sqrt(y)), 0.0)  # rows were rounded, too
            r[start + lo] = least * CAUTION
            within[0] += 0 if least * CAUTION * CAUTION > reach else 1
