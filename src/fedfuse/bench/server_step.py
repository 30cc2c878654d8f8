"""The server's step: against the textbook, the memory's bandwidth and a dense state; its size and its growth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import numpy as np
from numba import njit

from fedfuse import FedfuseError, FusionState, SmoothedSCAD
from fedfuse.bench.local_training import textbook
from fedfuse.bench.measurement import BenchSizes, Curve, Figure, Triad, race, speedup
from fedfuse.pairs.layout import LEAVING
from fedfuse.utils.typing import Floats, Ints

PENALTY = SmoothedSCAD(0.6)
# Distances of four groups: three quarters of all pairs beyond the penalty's reach, or none.
APART, TOGETHER = 6 * PENALTY.reach, 0.0
# Devices of a group are further apart than NU at first, and pulled together by a quarter of all with lambda / 4.
FORMING_ROUNDS, WIDTH, NU = 12, 0.1, 0.05


def figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Measure speed and size."""
    yield _against_textbook("server step", "groups apart", APART, sizes, goal=300)
    yield _against_textbook("server step, at first", "all pairs near", TOGETHER, sizes)
    yield _against_bandwidth(sizes)
    state = FusionState(grouped(sizes.m, sizes.d, APART), PENALTY)
    book = 2 * sizes.m * (sizes.m - 1) * sizes.d * state.omega.itemsize
    what, against = f"pair state, m = {sizes.m}, d = {sizes.d}, float32", "theta and v of every ordered pair, float32"
    yield Figure("memory", what, against, state.nbytes, book, "bytes", state.nbytes / book, 0.26, "at most")


def _against_textbook(
    name: str, state_of: str, distance: float, sizes: BenchSizes, goal: float | None = None
) -> Figure:
    """One server step, from uploads to the zeta of all devices."""
    start = grouped(sizes.m, sizes.d, distance)
    state, book = FusionState(start, PENALTY, warm=True), textbook().Textbook(start, PENALTY, warm=True)
    rounds, everyone = some_rounds(start, sizes.share), np.arange(sizes.m)
    ours, theirs = cycle(rounds), cycle(rounds)

    fast, slow = race(
        lambda: (state.update(*next(ours)), state.anchors(everyone)),
        lambda: (book.update(*next(theirs)), [book.anchor(i) for i in everyone]),
        seconds=sizes.seconds,
        burst=len(rounds),
    )
    what = f"m = {sizes.m}, d = {sizes.d}, {_count(sizes.m, sizes.share)} active, {state_of}"
    return speedup(name, what, "textbook loops", fast, slow, goal)


def _against_bandwidth(sizes: BenchSizes) -> Figure:
    """One server step as bytes per second: the vectors of all touched pairs are read and written once.

    Those of far pairs are not, so there should be none; if there are, they are not counted.
    """
    start = grouped(sizes.large, sizes.d, TOGETHER)
    state, rounds = FusionState(start, PENALTY, warm=True), cycle(some_rounds(start, sizes.share))
    k, triad = _count(sizes.large, sizes.share), Triad(sizes.triad)
    # Longer than others: bandwidth is what a machine's other users take away first.
    took, its = race(lambda: state.update(*next(rounds)), triad.run, seconds=3 * sizes.seconds)
    pairs = (k * (sizes.large - k) + k * (k - 1) // 2) * (1 - state.far.mean())
    rate, limit = 2 * pairs * sizes.d * state.omega.itemsize / took, triad.bytes / its
    what = f"server step, m = {sizes.large}, d = {sizes.d}, {k} active, all pairs near"
    return Figure("memory bandwidth", what, "triad", rate / 1e9, limit / 1e9, "GB/s", rate / limit, 0.6)


class DenseState(FusionState):
    """A `FusionState` by the same kernels in which no pair ever counts as far: every pair touched keeps its row."""

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


def formed_figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Compare a state whose groups have formed with a dense one: iterates, memory and speed."""
    start = grouped(sizes.large, sizes.d, APART, WIDTH)
    state, dense = FusionState(start, PENALTY, warm=True), DenseState(start, PENALTY, warm=True)
    for each in (state, dense):
        form(each, start, sizes.share)
    what, against = f"m = {sizes.large}, d = {sizes.d}, 4 groups formed", "a vector for every pair, the same kernels"
    apart, size = np.abs(state.omega - dense.omega).max(), np.abs(dense.omega).max()
    if not np.array_equal(labels := state.labels(NU), dense.labels(NU)) or np.unique(labels).size != 4:
        raise FedfuseError("with and without the vectors of far pairs there should be the same four groups")
    yield Figure("iterates, groups formed", f"{what}: largest difference", "largest parameter of " + against,
                 apart, size, "", apart / size, 1e-6, "at most")  # fmt: skip
    yield Figure("memory, groups formed", what, against, state.nbytes, dense.nbytes, "bytes",
                 state.nbytes / dense.nbytes, 0.3, "at most")  # fmt: skip
    rounds = some_rounds(state.omega, sizes.share)
    ours, theirs = cycle(rounds), cycle(rounds)
    fast, slow = race(
        lambda: state.update(*next(ours)),
        lambda: dense.update(*next(theirs)),
        seconds=5 * sizes.seconds,  # long, so that both find an undisturbed moment
        burst=len(rounds),
    )
    yield speedup("server step, groups formed", what, against, fast, slow, 3)


def form(state: FusionState, optima: Floats, share: float, rounds: int = FORMING_ROUNDS) -> None:
    """Let devices with quadratic losses go to the mean of optimum and anchor: all once, then those of some rounds."""
    for active in (np.arange(len(optima)), *draws(len(optima), share, rounds)):
        state.update(active, (optima[active] + state.anchors(active)) / 2)


def growth_curves(sizes: BenchSizes) -> Iterator[Curve]:
    """Measure growth with devices and with parameters."""

    def step(m: int, d: int) -> Callable[[], object]:
        start = grouped(m, d, APART)
        state, rounds = FusionState(start, PENALTY, warm=True), cycle(some_rounds(start, sizes.share))
        return lambda: state.update(*next(rounds))

    what, seconds = f"4 groups, {sizes.share:.0%} active", sizes.seconds / 4
    for over, kept, values, case in (
        ("devices", f"d = {sizes.d}", sizes.over_m, lambda m: step(m, sizes.d)),
        ("parameters", f"m = {sizes.m}", sizes.over_d, lambda d: step(sizes.m, d)),
    ):
        yield Curve.measured(f"server step, {kept}, {what}", over, values, case, seconds)


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
