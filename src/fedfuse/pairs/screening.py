"""Lower bounds of the distances of all pairs, by matrix products.

||x - y||^2 = ||x||^2 + ||y||^2 - 2 <x, y>, so a block of devices against all others is one product, which is many times
as fast as a loop over pairs. Digits get lost in it: the bounds are lower by as much as can be lost at worst.
"""

from __future__ import annotations

import numpy as np

from fedfuse.utils.jit import Kernels
from fedfuse.utils.threads import one_blas_thread, spread
from fedfuse.utils.typing import Floats, Ints

# Devices whose products with all others are formed at once.
BLOCK = 250
# Rows that say where the middle is.
SAMPLE = 101

_pairs = Kernels("fedfuse.pairs.pair_kernels")


def lower_bounds(omega: Floats, r: Floats, reach: float) -> int:
    """Write a lower bound of ||omega_i - omega_j|| into ``r`` for all pairs; return how many are within ``reach``.

    The bits do not depend on the number of threads: blocks are cut by sizes alone.
    """
    m, d = omega.shape
    with np.errstate(invalid="ignore", over="ignore"):  # uploads may carry anything
        centred = (omega - _middle(omega)).astype(omega.dtype, order="C")
        squares = np.einsum("ij,ij->i", centred, centred, dtype=np.float64)
    cuts = np.append(np.arange(0, m, BLOCK), m)
    counts = np.zeros(len(cuts) - 1, np.int64)

    def screen(blocks: Ints) -> None:
        for b in blocks:
            first, last = int(cuts[b]), int(cuts[b + 1])
            with np.errstate(invalid="ignore", over="ignore"):  # every thread has its own
                products = centred[first:last] @ centred[:last].T
            _pairs.bound(products, first, squares, d, reach, r, counts[b : b + 1])

    with one_blas_thread():
        spread(screen, np.diff(cuts).astype(np.float64) * cuts[1:] * d)
    return int(counts.sum())


def _middle(omega: Floats) -> Floats:
    """Return what is taken from all rows, so that little is lost where they share a large part.

    A median, since one device that lies moves a mean as far as it likes; of a few rows, since more tell no more.
    """
    middle = np.median(omega[:: -(-len(omega) // SAMPLE)], axis=0)
    return np.asarray(np.where(np.isfinite(middle), middle, 0.0))
