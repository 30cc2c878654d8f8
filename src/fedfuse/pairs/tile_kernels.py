"""Compiled passes over one block of coordinates; `pairs.coordinate_block.CoordinateBlock` is the face of this module.

What couples coordinates is the norm of a pair's vector alone. Once it is known, a pass may go through the coordinates
in tiles: a tile of all devices' parameters and sums stays in the cache while the vectors of pairs stream by, however
long they are.

``lo``, ``hi`` and ``place`` are lists of the same length: the devices of each pair, and the row of its vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from fedfuse.pairs.pair_kernels import _ENTRY, _add, _apart, _products, _spread


@njit(**_ENTRY)
def apart(omega: Any, lo: Any, hi: Any, squares: Any, width: int) -> None:
    """Add each pair's ||omega_lo - omega_hi||^2 to ``squares``."""
    for first in range(0, omega.shape[1], width):
        last = min(first + width, omega.shape[1])
        for t in range(lo.size):
            squares[t] += _apart(omega[lo[t]][first:last], omega[hi[t]][first:last])


@njit(**_ENTRY)
def fill(rows: Any, omega: Any, before: Any, rank: Any, lo: Any, hi: Any, place: Any) -> None:
    """Set the rows of pairs that were far until now to what they stood for: the differences before the round."""
    for t in range(lo.size):
        row, i, j = rows[place[t]], lo[t], hi[t]
        a = omega[i] if rank[i] < 0 else before[rank[i]]
        b = omega[j] if rank[j] < 0 else before[rank[j]]
        for e in range(row.size):
            row[e] = a[e] - b[e]


@njit(**_ENTRY)
def lengths(rows: Any, place: Any, squares: Any, width: int) -> None:
    """Add each row's squared length to ``squares``."""
    for t in range(place.size):
        row = rows[place[t]]
        for first in range(0, row.size, width):
            part = row.dtype.type(0)
            for e in range(first, min(first + width, row.size)):
                part += row[e] * row[e]
            squares[t] += np.float64(part)


@njit(**_ENTRY)
def measure(rows: Any, omega: Any, lo: Any, hi: Any, place: Any, keep: Any, squares: Any, width: int) -> None:
    """Add ||new||^2 and ||new - row||^2 of each pair to ``squares``: new = omega_lo - omega_hi + keep row."""
    for first in range(0, omega.shape[1], width):
        last = min(first + width, omega.shape[1])
        for t in range(lo.size):
            ahead = rows[place[min(t + 1, lo.size - 1)]]
            part = _products(rows[place[t]], omega[lo[t]], omega[hi[t]], keep[t], first, last, ahead)
            squares[t, 0] += part[0]
            squares[t, 1] += part[1]


@njit(**_ENTRY)
def spread(
    rows: Any, omega: Any, before: Any, sums: Any, active: Any, rank: Any, todo: Any, factors: Any, space: Any
) -> None:
    """Put in the new rows of pairs, and what they mean for the sums of their devices (see `pairs.pair_kernels._spread`).

    Sums of active devices, all of whose pairs pass by, are built anew; the others' are corrected by the difference.
    """
    lo, hi, place = todo
    s_old, s_new = factors
    parts, moved = space  # a tile for each device, and for each active one
    one = rows.dtype.type(1)
    width = parts.shape[1]
    for first in range(0, omega.shape[1], width):
        last = min(first + width, omega.shape[1])
        n = last - first
        parts[:] = 0
        for b in range(active.size):
            for e in range(n):
                moved[b, e] = omega[active[b], first + e] - before[b, first + e]
        for t in range(lo.size):
            sign, i, j = (one, lo[t], hi[t]) if rank[lo[t]] >= 0 else (-one, hi[t], lo[t])  # i is active
            row, ahead = rows[place[t]][first:last], rows[place[min(t + 1, lo.size - 1)]][first:last]
            keep, gain, both = sign * (one - s_old[t]), s_new[t] + s_new[t] - one, rank[j] >= 0
            lift, back = (one, one - one) if both else (one - one, sign * (one - s_old[t] - s_old[t]))
            mine, theirs = omega[i][first:last], omega[j][first:last]
            _spread(row, mine, theirs, parts[i][:n], parts[j][:n], (keep, sign, gain, lift, back), ahead)
            if not both:
                _add(moved[rank[i]][:n], parts[j][:n])
        for i in range(sums.shape[0]):
            for e in range(n):
                had = 0.0 if rank[i] >= 0 else sums[i, first + e]
                sums[i, first + e] = had + parts[i, e]
