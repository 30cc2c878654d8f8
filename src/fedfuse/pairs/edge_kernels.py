"""Compiled passes over the edges of a neighbour graph, for `pairs.edge_state.EdgeState`.

Functions that take ``jobs`` do the parts of the work with these numbers; other threads do the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedfuse.pairs.pair_kernels import FASTMATH, shrink, square_change
from fedfuse.utils.jit import kernel


@kernel(fastmath=FASTMATH)
def update_edges(edges: Any, omega: Any, moved: Any, pieces: Any, bounds: Any, squares: Any, jobs: Any) -> None:
    """Update every edge with an end that has moved.

    delta <- omega_lo - omega_hi + (1 - s) delta, then s <- shrink(||delta||). ``squares`` gets each chunk's squared
    primal and dual residuals, and its number of edges.
    """
    lo, hi, delta, s = edges
    d, one = omega.shape[1], s.dtype.type(1)
    for c in jobs:
        primal = dual = 0.0
        touched = 0
        for e in range(bounds[c], bounds[c + 1]):
            i, j = lo[e], hi[e]
            if not (moved[i] or moved[j]):
                continue
            before, keep = s[e], one - s[e]
            new_new = gap_new = gap_gap = 0.0
            for q in range(d):
                old = delta[e, q]
                new = omega[i, q] - omega[j, q] + keep * old
                gap = new - old
                delta[e, q] = new
                new_new += new * new
                gap_new += gap * new
                gap_gap += gap * gap
            after = s.dtype.type(shrink(np.sqrt(new_new), pieces))
            s[e] = after
            products = new_new, gap_new, gap_gap
            primal += square_change(np.float64(one - after), np.float64(one - before), products)
            dual += square_change(np.float64(after), np.float64(before), products)
            touched += 1
        squares[c, 0], squares[c, 1], squares[c, 2] = primal, dual, touched


@kernel(fastmath=FASTMATH)
def pulls(
    edges: Any, omega: Any, weights: Any, forward: Any, back: Any, devices: Any, bounds: Any, out: Any, jobs: Any
) -> None:
    """Sum what the edges of some devices add to their anchors, by weights: (2 s - 1) delta - (omega_i - omega_j).

    ``forward`` says where the edges of each lower end begin; ``back`` does so for higher ends, in a list of edges.
    """
    lo, hi, delta, s = edges
    starts, incoming = back
    d = omega.shape[1]
    for c in jobs:
        for b in range(bounds[c], bounds[c + 1]):
            i = devices[b]
            for q in range(d):
                out[b, q] = 0
            for e in range(forward[i], forward[i + 1]):
                j, weight, gain = hi[e], weights[e], 2 * s[e] - 1
                for q in range(d):
                    out[b, q] += weight * (gain * delta[e, q] - (omega[i, q] - omega[j, q]))
            for k in range(starts[i], starts[i + 1]):
                e = incoming[k]
                j, weight, gain = lo[e], weights[e], 2 * s[e] - 1
                for q in range(d):
                    out[b, q] -= weight * (gain * delta[e, q] - (omega[j, q] - omega[i, q]))


@kernel(fastmath=FASTMATH)
def nearest(products: Any, squares: Any, start: int, chosen: Any, least: Any, jobs: Any) -> None:
    """Choose the k nearest others of some rows, from the inner products of these with all."""
    k = chosen.shape[1]
    for b in jobs:
        n = 0
        for j in range(products.shape[1]):
            apart = squares[j] - 2 * products[b, j]
            if (n == k and apart >= least[b, k - 1]) or j == start + b:
                continue
            place = min(n, k - 1)
            while place > 0 and least[b, place - 1] > apart:
                least[b, place], chosen[b, place] = least[b, place - 1], chosen[b, place - 1]
                place -= 1
            least[b, place], chosen[b, place] = apart, j
            n = min(n + 1, k)
