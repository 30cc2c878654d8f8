"""The server's step: against the textbook, against the memory's bandwidth, and its size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import numpy as np

from fedfuse.bench import machine
from fedfuse.bench.figure import Figure
from fedfuse.bench.sizes import BenchSizes
from fedfuse.bench.textbook import TextbookServer
from fedfuse.bench.timing import race
from fedfuse.core.penalties import SmoothedSCAD
from fedfuse.pairs.state import FusionState
from fedfuse.utils.typing import Floats, Ints

PENALTY = SmoothedSCAD(0.6)
# Distances of four groups: three quarters of all pairs beyond the penalty's reach, or none.
APART, TOGETHER = 6 * PENALTY.reach, 0.0


def figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Measure everything about the server."""
    yield _against_textbook("server step", "groups apart", APART, sizes, goal=300)
    yield _against_textbook("server step, at first", "all pairs near", TOGETHER, sizes)
    yield _against_bandwidth(sizes)
    yield _memory(sizes)


def _against_textbook(
    name: str, state_of: str, distance: float, sizes: BenchSizes, goal: float | None = None
) -> Figure:
    """One server step, from uploads to the zeta of all devices."""
    start = grouped(sizes.m, sizes.d, distance)
    state, book = FusionState(start, PENALTY, warm=True), TextbookServer(start, PENALTY, warm=True)
    rounds = some_rounds(start, sizes.share)
    ours, theirs = cycle(rounds), cycle(rounds)
    everyone = np.arange(sizes.m)

    def step() -> None:
        state.update(*next(ours))
        state.anchors(everyone)

    fast, slow = race(step, lambda: book.step(*next(theirs)), seconds=sizes.seconds, burst=len(rounds))
    what = f"m = {sizes.m}, d = {sizes.d}, {_count(sizes.m, sizes.share)} active, {state_of}"
    return Figure(name, what, "textbook loops", fast, slow, "s", slow / fast, goal)


def _against_bandwidth(sizes: BenchSizes) -> Figure:
    """One server step as bytes per second: the vectors of all touched pairs are read and written once.

    Those of far pairs are not, so there should be none; if there are, they are not counted.
    """
    start = grouped(sizes.large, sizes.d, TOGETHER)
    state, rounds = FusionState(start, PENALTY, warm=True), cycle(some_rounds(start, sizes.share))
    k, triad = _count(sizes.large, sizes.share), machine.Triad(sizes.triad)
    # longer than others: bandwidth is what a machine's other users take away first
    took, its = race(lambda: state.update(*next(rounds)), triad.run, seconds=3 * sizes.seconds)
    pairs = (k * (sizes.large - k) + k * (k - 1) // 2) * (1 - state.far.mean())
    rate, limit = 2 * pairs * sizes.d * state.omega.itemsize / took, triad.bytes / its
    what = f"server step, m = {sizes.large}, d = {sizes.d}, {k} active, all pairs near"
    return Figure("memory bandwidth", what, "triad", rate / 1e9, limit / 1e9, "GB/s", rate / limit, 0.6)


def _memory(sizes: BenchSizes) -> Figure:
    """Bytes of the pair state, against two vectors for every ordered pair."""
    state = FusionState(grouped(sizes.m, sizes.d, APART), PENALTY)
    book = 2 * sizes.m * (sizes.m - 1) * sizes.d * state.omega.itemsize
    what = f"pair state, m = {sizes.m}, d = {sizes.d}, float32"
    against = "theta and v of every ordered pair, float32"
    return Figure("memory", what, against, state.nbytes, book, "bytes", state.nbytes / book, 0.26, "at most")


def grouped(m: int, d: int, distance: float, width: float = 0.5) -> Floats:
    """Return parameters of devices in four groups, so far from each other and each about so wide."""
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(4, d)) * distance / np.sqrt(2 * d)
    noise = width * rng.normal(size=(m, d)) / np.sqrt(d)
    return np.asarray(groups[np.arange(m) % 4] + noise, np.float32)


def some_rounds(start: Floats, share: float) -> list[tuple[Ints, Floats]]:
    """Return a few rounds: active devices and their uploads."""
    steps = np.random.default_rng(2).normal(size=start.shape) / 10 / np.sqrt(start.shape[1])
    return [(active, np.asarray(start[active] + steps[active], np.float32)) for active in draws(len(start), share, 8)]


def draws(m: int, share: float, rounds: int) -> list[Ints]:
    """Return the active devices of some rounds."""
    rng = np.random.default_rng(1)
    return [np.sort(rng.choice(m, _count(m, share), replace=False)) for _ in range(rounds)]


def _count(m: int, share: float) -> int:
    return max(1, int(share * m))
