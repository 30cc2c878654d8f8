"""The server's step: against the textbook, against the memory's bandwidth, and its size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import numpy as np

from fedfuse.bench import machine
from fedfuse.bench.figure import Figure
from fedfuse.bench.sizes import Sizes
from fedfuse.bench.textbook import TextbookServer
from fedfuse.bench.timing import race
from fedfuse.fusion import FusionState
from fedfuse.penalties import SmoothedSCAD
from fedfuse.types import Floats, Ints

PENALTY = SmoothedSCAD(0.6)


def figures(sizes: Sizes) -> Iterator[Figure]:
    """Measure everything about the server."""
    yield _against_textbook(sizes)
    yield _against_bandwidth(sizes)
    yield _memory(sizes)


def _against_textbook(sizes: Sizes) -> Figure:
    """One server step, from uploads to the zeta of all devices."""
    start = _devices(sizes.m, sizes.d)
    state, book = FusionState(start, PENALTY, warm=True), TextbookServer(start, PENALTY, warm=True)
    rounds = _rounds(start, sizes.share)
    ours, theirs = cycle(rounds), cycle(rounds)
    everyone = np.arange(sizes.m)

    def step() -> None:
        state.absorb(*next(ours))
        state.anchors(everyone)

    fast, slow = race(step, lambda: book.step(*next(theirs)), seconds=sizes.seconds)
    what = f"m = {sizes.m}, d = {sizes.d}, {_count(sizes.m, sizes.share)} active, float32"
    return Figure("server step", what, "textbook loops", fast, slow, "s", slow / fast, 300)


def _against_bandwidth(sizes: Sizes) -> Figure:
    """One server step as bytes per second: every touched pair's vector is read and written once."""
    start = _devices(sizes.large, sizes.d)
    state, rounds = FusionState(start, PENALTY, warm=True), cycle(_rounds(start, sizes.share))
    k = _count(sizes.large, sizes.share)
    pairs = k * (sizes.large - k) + k * (k - 1) // 2
    triad = machine.Triad(sizes.triad)
    took, its = race(lambda: state.absorb(*next(rounds)), triad.run, seconds=sizes.seconds)
    rate, limit = 2 * pairs * sizes.d * state.delta.itemsize / took, triad.bytes / its
    what = f"server step, m = {sizes.large}, d = {sizes.d}, {k} active, float32"
    return Figure("memory bandwidth", what, "triad", rate / 1e9, limit / 1e9, "GB/s", rate / limit, 0.6)


def _memory(sizes: Sizes) -> Figure:
    """Bytes of the pair state, against two vectors for every ordered pair."""
    state = FusionState(_devices(sizes.m, sizes.d), PENALTY)
    book = 2 * sizes.m * (sizes.m - 1) * sizes.d * state.delta.itemsize
    what = f"pair state, m = {sizes.m}, d = {sizes.d}, float32"
    against = "theta and v of every ordered pair, float32"
    return Figure("memory", what, against, state.nbytes, book, "bytes", state.nbytes / book, 0.26, "at most")


def _devices(m: int, d: int) -> Floats:
    """Return parameters of devices in four groups: pairs near and far."""
    rng = np.random.default_rng(0)
    groups = rng.normal(size=(4, d)) * 10 / np.sqrt(d)
    noise = rng.normal(size=(m, d)) / 2 / np.sqrt(d)
    return np.asarray(groups[np.arange(m) % 4] + noise, np.float32)


def _rounds(start: Floats, share: float) -> list[tuple[Ints, Floats]]:
    """Return a few rounds: active devices and their uploads."""
    rng, m = np.random.default_rng(1), len(start)
    draws = [np.sort(rng.choice(m, _count(m, share), replace=False)) for _ in range(8)]
    noise = 0.1 / np.sqrt(start.shape[1])
    return [(a, start[a] + noise * rng.normal(size=start[a].shape).astype(np.float32)) for a in draws]


def _count(m: int, share: float) -> int:
    return max(1, int(share * m))
