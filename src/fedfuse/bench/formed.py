"""The server's step when clusters have formed, against a state that keeps the vectors of all pairs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import numpy as np
from numba import njit

from fedfuse.bench.figure import Figure
from fedfuse.bench.server import APART, PENALTY, draws, grouped, some_rounds
from fedfuse.bench.sizes import BenchSizes
from fedfuse.bench.timing import race
from fedfuse.errors import FedfuseError
from fedfuse.pairs.layout import LEAVING
from fedfuse.pairs.state import FusionState
from fedfuse.utils.typing import Floats

# Devices of a group are further apart than NU at first, and pulled together by a quarter of all with lambda / 4.
ROUNDS, WIDTH, NU = 12, 0.1, 0.05


class DenseState(FusionState):
    """A `FusionState` by the same kernels in which no pair ever counts as far: the yardstick for those that do.

    Every pair that a round touches gets a row and keeps it.
    """

    @property
    def _reach(self) -> float:
        return np.inf

    def _release_far(self) -> None:
        _keep(self._where)


@njit(cache=True)
def _keep(where: Any) -> None:
    """Undo what marks rows as to be given back: in a fraction of a millisecond, so that the race is a fair one."""
    for p in range(where.size):
        if where[p] <= LEAVING:
            where[p] = LEAVING - where[p]


def figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Bring both states to where clusters have formed; compare what they are, how large, and how fast."""
    start = grouped(sizes.large, sizes.d, APART, WIDTH)
    state, dense = FusionState(start, PENALTY, warm=True), DenseState(start, PENALTY, warm=True)
    for each in (state, dense):
        form(each, start, sizes.share)
    what = f"m = {sizes.large}, d = {sizes.d}, 4 clusters formed"
    against = "a vector for every pair, the same kernels"
    apart, size = np.abs(state.omega - dense.omega).max(), np.abs(dense.omega).max()
    if not np.array_equal(labels := state.labels(NU), dense.labels(NU)) or np.unique(labels).size != 4:
        raise FedfuseError("with and without the vectors of far pairs there should be the same four clusters")
    yield Figure("iterates, clusters formed", f"{what}: largest difference", "largest parameter of " + against,
                 apart, size, "", apart / size, 1e-6, "at most")  # fmt: skip
    yield Figure("memory, clusters formed", what, against, state.nbytes, dense.nbytes, "bytes",
                 state.nbytes / dense.nbytes, 0.3, "at most")  # fmt: skip
    rounds = some_rounds(state.omega, sizes.share)
    ours, theirs = cycle(rounds), cycle(rounds)
    fast, slow = race(
        lambda: state.update(*next(ours)),
        lambda: dense.update(*next(theirs)),
        seconds=5 * sizes.seconds,  # long, so that both find an undisturbed moment
        burst=len(rounds),
    )
    yield Figure("server step, clusters formed", what, against, fast, slow, "s", slow / fast, 3)


def form(state: FusionState, optima: Floats, share: float, rounds: int = ROUNDS) -> None:
    """Let devices with quadratic losses go to the mean of optimum and anchor: all once, then those of some rounds."""
    state.update(np.arange(len(optima)), (optima + state.anchors(np.arange(len(optima)))) / 2)
    for active in draws(len(optima), share, rounds):
        state.update(active, (optima[active] + state.anchors(active)) / 2)
