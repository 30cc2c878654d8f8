"""The server's step: against the textbook, the memory's bandwidth and a dense state; its size and its growth."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import numpy as np

from fedfuse import FusionState, SmoothedSCAD
from fedfuse.bench.local_training import textbook
from fedfuse.bench.measurement import BenchSizes, Curve, Figure, Triad, race
from fedfuse.core.partitions import adjusted_rand
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
    yield Figure("memory", what, against, state.nbytes, book, "bytes", 0.26, "at most")


def _against_textbook(
    name: str, state_of: str, distance: float, sizes: BenchSizes, goal: float | None = None
) -> Figure:
    """One server step, from uploads to the anchors of all devices."""
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
    what = f"m = {sizes.m}, d = {sizes.d}, {len(rounds[0][0])} active, {state_of}"
    return Figure(name, what, "textbook loops", fast, slow, "s", goal)


def _against_bandwidth(sizes: BenchSizes) -> Figure:
    """One server step as bytes per second: the vectors of all touched pairs are read and written once.

    Those of far pairs are not, so there should be none; if there are, they are not counted.
    """
    start = grouped(sizes.large, sizes.d, TOGETHER)
    state, rounds = FusionState(start, PENALTY, warm=True), some_rounds(start, sizes.share)
    turns, k, triad = cycle(rounds), len(rounds[0][0]), Triad(sizes.triad)
    # Longer than others: bandwidth is what a machine's other users take away first.
    took, its = race(lambda: state.update(*next(turns)), triad.run, seconds=3 * sizes.seconds)
    pairs = (k * (sizes.large - k) + k * (k - 1) // 2) * (1 - state.far.mean())
    rate, limit = 2 * pairs * sizes.d * state.omega.itemsize / took, triad.bytes / its
    what = f"server step, m = {sizes.large}, d = {sizes.d}, {k} active, all pairs near"
    return Figure("memory bandwidth", what, "triad", rate / 1e9, limit / 1e9, "GB/s", 0.9)


def formed_figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Compare a state whose groups have formed with one of as many devices in which all pairs are near."""
    start, alike = (grouped(sizes.large, sizes.d, distance, WIDTH) for distance in (APART, TOGETHER))
    state, dense = FusionState(start, PENALTY, warm=True), FusionState(alike, PENALTY, warm=True)
    form(state, start, sizes.share)
    form(dense, alike, sizes.share, rounds=0)
    ari = adjusted_rand(np.arange(sizes.large) % 4, state.labels(NU))
    ours, theirs = cycle(some_rounds(state.omega, sizes.share)), cycle(some_rounds(dense.omega, sizes.share))
    fast, slow = race(
        lambda: state.update(*next(ours)),
        lambda: dense.update(*next(theirs)),
        seconds=5 * sizes.seconds,  # long, so that both find an undisturbed moment
        burst=8,
    )
    what, against = (
        f"m = {sizes.large}, d = {sizes.d}, 4 groups formed, ARI {ari:.3f}",
        "one group: a vector for all pairs",
    )
    yield Figure("memory, groups formed", what, against, state.nbytes, dense.nbytes, "bytes", 0.3, "at most")
    yield Figure("server step, groups formed", what, against, fast, slow, "s", 3)


def form(state: FusionState, optima: Floats, share: float, rounds: int = FORMING_ROUNDS) -> None:
    """Let devices with quadratic losses go to the mean of optimum and anchor: all once, then those of some rounds."""
    for active in (np.arange(len(optima)), *draws(len(optima), share, rounds)):
        state.update(active, (optima[active] + state.anchors(active)) / 2)


def growth_curves(sizes: BenchSizes) -> Iterator[Curve]:
    """Measure growth with devices and with parameters."""

    def step(m: int, d: int) -> float:
        start = grouped(m, d, APART)
        state, rounds = FusionState(start, PENALTY, warm=True), cycle(some_rounds(start, sizes.share))
        return race(lambda: state.update(*next(rounds)), seconds=sizes.seconds / 4, burst=8)[0]

    what = f"4 groups, {sizes.share:.0%} active"
    for over, kept, values, case in (
        ("devices", f"d = {sizes.d}", sizes.over_m, lambda m: step(m, sizes.d)),
        ("parameters", f"m = {sizes.m}", sizes.over_d, lambda d: step(sizes.m, d)),
    ):
        yield Curve.measured(f"server step, {kept}, {what}", over, values, case)


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
    return [np.sort(rng.choice(m, max(1, int(share * m)), replace=False)) for _ in range(rounds)]
