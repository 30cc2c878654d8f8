"""How the pair state lies in memory, and what a round works in; here, as it needs nothing compiled.

Per unordered pair lo < hi there are two numbers, its shrink factor ``s`` and its norm ``r``, and one vector, the row
of ``delta`` that ``where`` says. Pair (lo, hi) has number ``hi (hi - 1) / 2 + lo``, so that a newcomer's pairs are
appended at the end.

A pair that has come to lie beyond the penalty's reach is far: s = 1, delta = omega_lo - omega_hi, there is no row, and
``r`` is at most the true norm, plus the ways that its devices have gone (see `pairs.distance_bounds`).

Per device there is a sum over its pairs, ``sum_j (2 s_ij - 1) delta_ij - (omega_i - omega_j)``, to which far
pairs add nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedfuse.utils.typing import Floats, Ints

# Active devices near to a partner, of those that partners go by at once: their rows stay in the second-level cache.
# Partners are put in order for that.
TILE = 128
# Partners that are put in order together.
RUN = 256
# Elements that are summed in the array's own type before float64 takes over.
BLOCK = 1024
# What `where` says of a pair without a row: far, or far until this round. Below that: its row is to be given back.
FAR, WANTED, LEFT = -1, -2, -3
# Lower bounds are rounded down by more than a float32 can be wrong.
CAUTION = 1 - 1e-5
RECKLESS = 1 / CAUTION


class Pairs(NamedTuple):
    """What is known of all pairs, and their sums per device."""

    delta: Floats  # d numbers in each row; zeros may follow, here and in other rows, for the sake of whole vectors
    s: Floats
    r: Floats
    where: npt.NDArray[np.int32]
    sums: Floats  # devices x d, float64


class Round(NamedTuple):
    """Who has moved, and how the meetings of a round are cut into chunks of about the same work."""

    rank: Ints  # place among the active devices, or -1
    bounds: Ints  # chunk c has the partners bounds[c] … bounds[c + 1] - 1
    active: Ints  # ascending
    lengths: Floats  # how far they have moved, float64
    now: Floats  # active x d: their parameters,
    before: Floats  # what they were before the round,
    moved: Floats  # and the difference


class Scratch(NamedTuple):
    """What each chunk collects, and its space to work in."""

    rows: Floats  # chunks x (active + 5) x d: active devices' sums; two partners' parameters, sums' changes; steps
    todo: Ints  # chunks x 3 x (tile RUN + 1): meetings of near pairs: place of active device, partner, pair
    order: Ints  # chunks x 2 x (RUN + tile + 2): partners in order, and how many come before
    squares: Floats  # chunks x 2: squared primal and dual residuals
    left: Ints  # how many pairs of a chunk leave their rows


def devices_of(pairs: Ints) -> tuple[Ints, Ints]:
    """Return the lower and the higher device of these pairs.

    >>> [each.tolist() for each in devices_of(np.arange(6))]
    [[0, 0, 1, 0, 1, 2], [1, 2, 2, 3, 3, 3]]
    """
    hi = ((1 + np.sqrt(1 + 8 * pairs.astype(np.float64))) / 2).astype(np.int64)
    hi -= hi * (hi - 1) // 2 > pairs  # where the root was rounded up
    return pairs - hi * (hi - 1) // 2, hi
