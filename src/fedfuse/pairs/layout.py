"""Memory layout of the pair state, and the arrays of one round; imports nothing compiled.

Each unordered pair lo < hi has two numbers, its shrink factor ``s`` and its norm ``r``, and one vector: the row of
``delta`` that ``where`` names. Pair (lo, hi) has number ``hi (hi - 1) / 2 + lo``, so a newcomer's pairs are appended.

A pair beyond the penalty's reach is far: s = 1, delta = omega_lo - omega_hi, it has no row, and ``r`` says nothing.

Each device has the sum over its pairs ``sum_j (2 s_ij - 1) delta_ij - (omega_i - omega_j)``; far pairs add nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedfuse.utils.typing import Floats, Ints

# Active devices near one partner that are processed together: their rows stay in the second-level cache.
TILE_DEVICES = 128
# Partners that are processed together, and the bytes of their parameters: they stay there too.
RUN_PARTNERS, RUN_BYTES = 128, 1 << 19
# Elements that are summed in the array's own type before float64 takes over.
SUM_BLOCK = 1024
# Values of `where` for a pair without a row: far, or far until this round. At LEAVING and below, its row is returned.
FAR, ENTERING, LEAVING = -1, -2, -3
# Factor that rounds bounds down by more than the error of a float32.
ROUND_DOWN = 1 - 1e-5


class Pairs(NamedTuple):
    """State of all pairs, and their sums per device."""

    delta: Floats  # d numbers in each row; zeros may follow, here and in other rows, to fill whole vectors
    s: Floats
    r: Floats
    where: npt.NDArray[np.int32]
    sums: Floats  # devices x d, float64


class Round(NamedTuple):
    """Devices that have moved, and the chunks of about equal work that a round's pairs are cut into."""

    rank: Ints  # place among the active devices, or -1
    bounds: Ints  # chunk c has the partners bounds[c] … bounds[c + 1] - 1
    active: Ints  # ascending
    lengths: Floats  # how far they have moved, float64
    now: Floats  # active x d: their parameters,
    before: Floats  # what they were before the round,
    moved: Floats  # and the difference


class Scratch(NamedTuple):
    """Results and working space of each chunk."""

    rows: Floats  # chunks x (active + 2 run) x d: active devices' sums; partners' parameters, changes of their sums
    todo: Ints  # chunks x 3 x (tile run + 1): near pairs to update: place of active device, partner, pair
    squares: Floats  # chunks x 2: squared primal and dual residuals
    left: Ints  # number of pairs of a chunk that leave their rows


def pair_count(m: int) -> int:
    """Return the number of pairs of m devices."""
    return m * (m - 1) // 2


def pair_numbers(lo: Ints, hi: Ints) -> Ints:
    """Return the numbers of the pairs of these devices."""
    return hi * (hi - 1) // 2 + lo


def row_squares(rows: Floats) -> Floats:
    """Return the squared lengths of rows."""
    return np.asarray(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))


def devices_of(pairs: Ints) -> tuple[Ints, Ints]:
    """Return the lower and the higher device of these pairs.

    >>> [each.tolist() for each in devices_of(np.arange(6))]
    [[0, 0, 1, 0, 1, 2], [1, 2, 2, 3, 3, 3]]
    """
    hi = ((1 + np.sqrt(1 + 8 * pairs.astype(np.float64))) / 2).astype(np.int64)
    hi -= hi * (hi - 1) // 2 > pairs  # where the root was rounded up
    return pairs - hi * (hi - 1) // 2, hi
