"""Compiled passes over the edges of a neighbour graph (`pairs.edge_parts`, `pairs.collapsing_path`).

Functions that take ``jobs`` do the parts of the work with these numbers; other threads do the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fedfuse.pairs.layout import SUM_BLOCK
from fedfuse.pairs.pair_kernels import FASTMATH, apart, shrink, square_change
from fedfuse.utils.jit import COMMON, kernel
from fedfuse.utils.simd import load, load_short, prefetch, short, splat, splat_short, store, total, width

# Rows of points have a multiple of so many numbers.
PADDED = 8
# The model at the other end of an edge is prefetched so many edges ahead: it may be anywhere in memory. Those of points
# are short, those of devices long.
EDGES_AHEAD, LONG_AHEAD = 16, 2
_INNER: dict[str, Any] = {**COMMON, "fastmath": FASTMATH, "forceinline": True}


@njit(**_INNER)
def _renew(row: Any, mine: Any, theirs: Any, keep: Any, ahead: Any) -> Any:
    """Set row to new = mine - theirs + keep row; return ||new||^2, <gap, new> and ||gap||^2, gap = new - row.

    Meanwhile another model is prefetched.
    """
    new_new = gap_new = gap_gap = 0.0
    w, none, k = width(row), splat(row.dtype.type(0)), splat(keep)
    for first in range(0, row.size, SUM_BLOCK):
        last, e, a, b, c = min(first + SUM_BLOCK, row.size), first, none, none, none
        while e + w <= last:
            prefetch(ahead, e)
            old = load(row, e)
            new = load(mine, e) - load(theirs, e) + k * old
            store(row, e, new)
            a, b, c, e = a + new * new, b + (new - old) * new, c + (new - old) * (new - old), e + w
        new_new, gap_new, gap_gap = new_new + total(a), gap_new + total(b), gap_gap + total(c)
        while e < last:
            was = row[e]
            row[e] = now = mine[e] - theirs[e] + keep * was
            new_new, gap_new, gap_gap = new_new + now * now, gap_new + (now - was) * now, gap_gap + (now - was) ** 2
            e += 1
    return new_new, gap_new, gap_gap


@kernel(fastmath=FASTMATH)
def update_edges(edges: Any, omega: Any, moved: Any, pieces: Any, bounds: Any, squares: Any, jobs: Any) -> None:
    """Update every edge with an end that has moved.

    delta <- omega_lo - omega_hi + (1 - s) delta, then s <- shrink(||delta||). ``squares`` gets each chunk's squared
    primal and dual residuals, and its number of edges.
    """
    lo, hi, delta, s = edges
    one = s.dtype.type(1)
    for c in jobs:
        primal = dual = 0.0
        touched = 0
        for e in range(bounds[c], bounds[c + 1]):
            if not (moved[lo[e]] or moved[hi[e]]):
                continue
            before, ahead = s[e], omega[hi[min(e + LONG_AHEAD, hi.size - 1)]]
            products = _renew(delta[e], omega[lo[e]], omega[hi[e]], one - before, ahead)
            after = s.dtype.type(shrink(np.sqrt(products[0]), pieces))
            s[e] = after
            primal += square_change(np.float64(one - after), np.float64(one - before), products)
            dual += square_change(np.float64(after), np.float64(before), products)
            touched += 1
        squares[c, 0], squares[c, 1], squares[c, 2] = primal, dual, touched


@kernel(fastmath=FASTMATH)
def count_stretched(
    edges: Any, omega: Any, built: Any, ratio: float, least: float, bounds: Any, counts: Any, jobs: Any
) -> None:
    """Count the edges whose ends are further apart than ``ratio`` times ``built``, and than ``least``."""
    lo, hi, _, _ = edges
    for c in jobs:
        counts[c] = 0
        for e in range(bounds[c], bounds[c + 1]):
            counts[c] += np.sqrt(apart(omega[lo[e]], omega[hi[e]])) > max(ratio * built[e], least)


@njit(**_INNER)
def _pull(row: Any, mine: Any, theirs: Any, gain: Any, out: Any, ahead: Any) -> None:
    """Add gain row - (mine - theirs) to out; meanwhile prefetch another row."""
    e, w, g = 0, width(row), splat(gain)
    while e + w <= row.size:
        prefetch(ahead, e)
        store(out, e, load(out, e) + g * load(row, e) - (load(mine, e) - load(theirs, e)))
        e += w
    while e < row.size:
        out[e] += gain * row[e] - (mine[e] - theirs[e])
        e += 1


@kernel(fastmath=FASTMATH)
def pulls(edges: Any, omega: Any, forward: Any, back: Any, devices: Any, bounds: Any, out: Any, jobs: Any) -> None:
    """Sum what the edges of devices add to their anchors: share ((2 s - 1) delta - (omega_i - omega_j)).

    ``forward`` says where the edges of each lower end begin; ``back`` does so for higher ends, in a list of edges.
    """
    lo, hi, delta, s = edges
    starts, incoming = back
    places, shares = devices
    one = s.dtype.type(1)
    for c in jobs:
        for b in range(bounds[c], bounds[c + 1]):
            i, own, share = places[b], out[b], shares[b]
            for q in range(own.size):
                own[q] = 0
            # Edges from lower ends are anywhere in memory, the others follow each other.
            for k in range(starts[i], starts[i + 1]):
                e, ahead = incoming[k], delta[incoming[min(k + 1, incoming.size - 1)]]
                _pull(delta[e], omega[i], omega[lo[e]], one - s[e] - s[e], own, ahead)
            for e in range(forward[i], forward[i + 1]):
                _pull(delta[e], omega[i], omega[hi[e]], s[e] + s[e] - one, own, omega[hi[min(e + 1, hi.size - 1)]])
            for q in range(own.size):
                own[q] *= share


@kernel(fastmath=FASTMATH)
def list_both_ways(lo: Any, hi: Any, places: Any, others: Any, numbers: Any, slots: Any) -> None:
    """List the edges of every point: the other end and the number of each; ``places`` has where a point's begin.

    ``slots`` gets the place of each edge at its lower end.
    """
    for e in range(lo.size):
        i, j = lo[e], hi[e]
        slots[e] = places[i]
        others[places[i]], numbers[places[i]] = j, e
        others[places[j]], numbers[places[j]] = i, e
        places[i] += 1
        places[j] += 1


@kernel(fastmath=FASTMATH)
def set_parted(graph: Any, numbers: Any, omega: Any, slopes: Any, duals: Any) -> None:
    """Set duals to those of edges that have parted: a slope for each number times omega_i - omega_j."""
    starts, others, _ = graph
    for i in range(omega.shape[0]):
        for e in range(starts[i], starts[i + 1]):
            for q in range(omega.shape[1]):
                duals[e, q] = slopes[numbers[e]] * (omega[i, q] - omega[others[e], q])


@njit(**_INNER)
def _fuse_edge(mine: Any, theirs: Any, dual: Any, weight: Any, pieces: Any, pull: Any) -> Any:
    """Update a dual, and add to the pull on its first end: return s, and lanes of |omega_i - omega_j - theta|^2."""
    one = mine.dtype.type(1)
    norm = rest = splat_short(one - one)
    for q in range(0, mine.size, PADDED):
        for r in range(q, q + PADDED, short(mine)):
            new = load_short(mine, r) - load_short(theirs, r) + load_short(dual, r)
            norm = norm + new * new
    s = mine.dtype.type(shrink(np.sqrt(total(norm)), pieces))
    theta, keep, gain, c = splat_short(s), splat_short(one - s), splat_short(s + s - one), splat_short(weight)
    for q in range(0, mine.size, PADDED):
        for r in range(q, q + PADDED, short(mine)):
            gap = load_short(mine, r) - load_short(theirs, r)
            new = gap + load_short(dual, r)
            store(dual, r, keep * new)
            store(pull, r, load_short(pull, r) + c * (gain * new - gap))
            rest = rest + (gap - theta * new) * (gap - theta * new)
    return s, rest


@kernel(fastmath=FASTMATH)
def fuse_points(
    points: Any, graph: Any, duals: Any, fused: Any, pieces: Any, rho: float, bounds: Any, squares: Any, jobs: Any
) -> None:
    """One iteration over some points: update the duals of their edges, and then their estimates.

    delta = omega_i - omega_j + dual, theta = s delta, dual <- (1 - s) delta for every edge, at both ends; a point goes
    from its anchor, omega_i + sum c (2 theta - delta - (omega_i - omega_j)) / mass, towards x. ``new`` gets estimates,
    ``squares`` the squared gradients by size, and the sum of |omega_i - omega_j - theta|^2.
    """
    x, omega, new, sizes, masses = points
    starts, others, weights = graph
    for c in jobs:
        gradients = primal = 0.0
        for i in range(bounds[c], bounds[c + 1]):
            mine, pull, size, parted = omega[i], new[i], sizes[i], splat_short(omega.dtype.type(0))
            for q in range(mine.size):
                pull[q] = 0
            for e in range(starts[i], starts[i + 1]):
                ahead = others[min(e + EDGES_AHEAD, others.size - 1)]
                prefetch(omega, np.int64(ahead) * mine.size)
                s, rest = _fuse_edge(mine, omega[others[e]], duals[e], weights[e], pieces, pull)
                fused[e] = s == 0
                parted = parted + rest
            primal += total(parted)
            share, gradient = size / (size + rho * masses[i]), 0.0
            for q in range(mine.size):
                # the gradient of size / 2 |omega - x|^2 and of what edges pull with, per size
                step = mine[q] - x[i, q] - rho / size * pull[q]
                gradient += step * step
                pull[q] = mine[q] - share * step
            gradients += size * gradient
        squares[c, 0], squares[c, 1] = gradients, primal
