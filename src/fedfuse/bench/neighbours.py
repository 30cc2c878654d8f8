"""Fusion on a graph of neighbours: against all pairs, the memory's bandwidth and SciPy's linkage; growth to a million.

Curves end where the next size would take longer than is allowed. Clustering is measured in processor time: it takes
long enough for other processes to get in its way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import cycle

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from fedfuse import FusionState
from fedfuse.bench.measurement import BenchSizes, Curve, Figure, Triad, race
from fedfuse.bench.server_step import APART, PENALTY, TOGETHER, draws, grouped, some_rounds
from fedfuse.clustering import FusionClustering
from fedfuse.core.partitions import adjusted_rand
from fedfuse.utils.typing import Floats, Ints

NEIGHBOURS, GRAPH = 10, "knn:10"
# Of points: groups and dimensions. Of devices: parameters, few enough for a tree.
GROUPS, DIMENSIONS, PARAMETERS = 20, 7, 10


def figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Measure steps on a graph, and clustering of points."""
    start = grouped(sizes.large, sizes.d, TOGETHER)
    rounds = some_rounds(start, sizes.share)
    dense, graph = (FusionState(start, PENALTY, warm=True, graph=each) for each in (None, GRAPH))
    ours, theirs = (cycle(rounds) for _ in range(2))
    fast, slow = race(lambda: step(graph, *next(ours)), lambda: step(dense, *next(theirs)), seconds=sizes.seconds)
    what = f"m = {sizes.large}, d = {sizes.d}, {len(rounds[0][0])} active, {NEIGHBOURS} neighbours"
    yield Figure("graph step", what, "all pairs, all near", fast, slow, "s")
    yield Figure("memory, graph", what, "all pairs, all near", graph.nbytes, dense.nbytes, "bytes", 0.1, "at most")
    yield all_neighbours(sizes)
    yield bandwidth(sizes)
    points, truth = blobs(sizes.linked)
    found: list[Ints] = []
    fast, slow = race(
        lambda: found.append(FusionClustering(GRAPH).fit_predict(points)),
        lambda: fcluster(linkage(points, "average"), GROUPS, "maxclust"),
        seconds=0.0,
    )
    what = f"{sizes.linked:,} points, d = {DIMENSIONS}, {GROUPS} groups, ARI {adjusted_rand(truth, found[-1]):.3f}"
    yield Figure("clustering", what, "SciPy's average linkage", fast, slow, "s")


def step(state: FusionState, active: Ints, omegas: Floats) -> Floats:
    """One server step: from uploads to the anchors of the same devices."""
    state.update(active, omegas)
    return state.anchors(active)


def all_neighbours(sizes: BenchSizes) -> Figure:
    """Compare the models of 50 rounds with all pairs and with all neighbours, in double precision."""
    optima = grouped(sizes.m, PARAMETERS, APART).astype(np.float64)
    states = [FusionState(optima, PENALTY, warm=True, dtype=np.float64, graph=g) for g in (None, f"knn:{sizes.m - 1}")]
    for active in draws(sizes.m, sizes.share, 50):
        for state in states:
            state.update(active, (optima[active] + state.anchors(active)) / 2)
    what = f"m = {sizes.m}, {sizes.m - 1} neighbours, 50 rounds, float64: largest difference"
    apart, size = (float(np.abs(each).max()) for each in (states[0].omega - states[1].omega, states[0].omega))
    return Figure("iterates, all neighbours", what, "largest parameter of all pairs", apart, size, "", 1e-10, "at most")


def bandwidth(sizes: BenchSizes) -> Figure:
    """One server step with everyone active as bytes per second.

    The vectors of all edges are read and written once, and read again at either end for the anchors, which other
    devices may ask for.
    """
    m, d = sizes.over_points[-3], sizes.d
    start = grouped(m, d, TOGETHER)
    state, triad = FusionState(start, PENALTY, warm=True, graph=GRAPH), Triad(sizes.triad)
    everyone = np.arange(m)
    took, its = race(lambda: step(state, everyone, start), triad.run, seconds=sizes.seconds)
    edges: int = state.s.size
    rate, limit = 4 * edges * d * 4 / took, triad.bytes / its
    what = f"graph step, m = {m:,}, d = {d}, all active, {edges:,} edges"
    return Figure("memory bandwidth, graph", what, "triad", rate / 1e9, limit / 1e9, "GB/s")


def growth_curves(sizes: BenchSizes) -> Iterator[Curve]:
    """Measure growth with points and with devices."""

    def cluster(m: int) -> float:
        points, _ = blobs(m)
        began = time.process_time()
        FusionClustering(GRAPH).fit(points)
        return time.process_time() - began

    def server(m: int) -> float:
        start = grouped(m, PARAMETERS, APART)
        state, rounds = FusionState(start, PENALTY, warm=True, graph=GRAPH), cycle(some_rounds(start, sizes.share))
        return race(lambda: step(state, *next(rounds)), seconds=sizes.seconds / 8)[0]

    cluster(sizes.over_points[0])  # compiles
    for what, over, case in (
        (f"clustering in processor time, d = {DIMENSIONS}, {GROUPS} groups", "points", cluster),
        (f"server step on a graph, d = {PARAMETERS}, {sizes.share:.0%} active", "devices", server),
    ):
        yield Curve.measured(what, over, sizes.over_points, case, sizes.budget)


def blobs(m: int) -> tuple[Floats, Ints]:
    """Return points in clouds of equal width, and their groups."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, GROUPS, m)
    return rng.uniform(-10, 10, (GROUPS, DIMENSIONS))[truth] + rng.normal(size=(m, DIMENSIONS)), truth
