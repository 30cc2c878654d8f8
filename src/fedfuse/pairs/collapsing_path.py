"""Pairwise fusion of points along a path of lambdas on which fused points collapse.

With f_i(w) = |w - x_i|^2 / 2 and weights c on the edges of a graph of neighbours, this minimises

    sum_i n_i/2 |w_i - x_i|^2 + sum_edges c_ij g(|w_i - w_j|)

by the iteration of `pairs.edge_state`, with the anchors' sums divided by 1.5 times the weighted degree: that bounds the
Laplacian from above as far as ADMM needs (it may be indefinite by a quarter). From one lambda to the next, points that
are fused become one of their total mass at their mean, and edges between two such points become one. Later lambdas then
cost next to nothing. The last solution is found on the whole graph again, from the duals that edges had when they
collapsed, and says by how much it violates the optimality conditions.

References
----------
E. Chi, K. Lange. Splitting methods for convex clustering. JCGS 2015 (ADMM; l1 on a graph of neighbours).
D. Touw, P. Groenen, Y. Terada. Convex clustering through MM. arXiv 2211.01877 (fusions along the path; CCMM).
R. Campello, D. Moulavi, J. Sander. Density-based clustering based on hierarchical density estimates. PAKDD 2013
    (lives of groups, counted in the reciprocal of the threshold).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from fedfuse.core.penalties import Penalty
from fedfuse.pairs.edge_parts import JOB_SIZE, WORK_PER_NUMBER
from fedfuse.pairs.layout import row_squares
from fedfuse.pairs.neighbour_graph import Edges
from fedfuse.utils import threads
from fedfuse.utils.jit import Kernels
from fedfuse.utils.typing import Bools, Floats, Ints

# From one lambda to the next, and how many at most.
LAMBDA_RATIO, MAX_LAMBDAS = 1.6, 100
# The first lambda is so many times this quantile of the lengths of the edges.
FIRST_LAMBDA_RATIO, FIRST_LAMBDA_QUANTILE = 4.0, 0.1
# Iterations for each lambda, up to the second number where few edges are left, and the violation of the optimality
# conditions at which fewer are enough.
MAX_PATH_ITERATIONS, MAX_ITERATIONS_OF_FEW, PATH_TOLERANCE = 30, 500, 1e-4
# Updates of edges on which iterations may be spent in any case.
MIN_PATH_UPDATES = 1 << 21
# Points with theta = 0 collapse when they are as near as this, relative to their distance in the data, or as this
# relative to the spread of all: groups may be far apart and have one mean.
COLLAPSE_RATIO, COLLAPSE_TOLERANCE = 0.05, 1e-5
# Bound of a weighted Laplacian by its diagonal is 2, and ADMM needs three quarters of it.
DEGREE_RATIO = 1.5
# Ratio of lambdas that a partition must live through to be more than chance, and beyond which lives are equally long.
MIN_LIFE_RATIO, MAX_LIFE_RATIO = 2.5, 10.0
# Points, and share of all points, that a group needs to count as one; share of the points in such groups that a
# partition needs.
MIN_GROUP_POINTS, MIN_GROUP_SHARE, MIN_GROUPED_SHARE = 5, 0.001, 0.5
# With more points left, the path ends when it is known which partition lives longest.
MAX_LONE_POINTS = 1000
# Violation of the optimality conditions that single precision can still tell from its own errors.
MIN_SINGLE_TOLERANCE = 1e-5

_kernels = Kernels("fedfuse.pairs.edge_kernels")


class PointState:
    """Points ``x`` with masses ``sizes``, their estimates ``omega``, and weighted edges between them.

    An edge is kept at both ends. So an iteration is one pass over memory, from point to point, which threads may share.
    ``duals`` are those of the edges (per weight); by default edges are taken for parted, which determines them.
    """

    def __init__(
        self, x: Floats, omega: Floats, sizes: Floats, edges: Edges, weights: Floats, penalty: Penalty,
        least_rho: float = 1.0, duals: Floats | None = None,
    ) -> None:  # fmt: skip
        self.x, self.omega, self.sizes, self.edges, self.weights = padded(x), padded(omega), sizes, edges, weights
        masses = np.maximum(sum(np.bincount(ends, weights, len(x)) for ends in edges), 1e-300)
        # Heavy points on few edges move little, whatever pulls: their duals must grow faster.
        self.penalty, self.rho = penalty, max(1.0, least_rho, float(np.median(sizes / masses)))
        penalty.check(self.rho)
        self._masses, rho = DEGREE_RATIO * masses, self.rho
        degrees = [np.bincount(ends, minlength=self.m) for ends in edges]
        starts = np.append(0, np.cumsum(degrees[0] + degrees[1]))
        others, numbers = np.empty((2, starts[-1]), np.int32)
        self._slots = np.empty(edges.lo.size, np.int32)  # of each edge, at its lower end
        _kernels.list_both_ways(*edges, starts[:-1].copy(), others, numbers, self._slots)
        self._graph = starts, others, weights[numbers].astype(x.dtype)
        lengths = np.sqrt(row_squares(self.omega[edges.lo] - self.omega[edges.hi]))
        slopes = (penalty.derivative(lengths) / np.maximum(rho * lengths, 1e-12)).astype(x.dtype)
        self._duals: Floats = np.empty((starts[-1], self.x.shape[1]), x.dtype)  # v / rho
        _kernels.set_parted(self._graph, numbers, self.omega, slopes, self._duals)
        if duals is not None:
            fused = np.flatnonzero(np.asarray(duals.any(axis=1))[numbers])
            numbers = numbers[fused]
            signs = np.where(self._slots[numbers] == fused, 1 / rho, -1 / rho)
            self._duals[fused] = signs[:, None] * duals[numbers]
        self._fused = np.zeros(starts[-1], np.bool_)

    @property
    def m(self) -> int:
        """Number of points."""
        return len(self.x)

    def duals(self, edges: Ints) -> Floats:
        """Return v of these edges."""
        return np.asarray(self.rho * self._duals[self._slots[edges]])

    @property
    def fused(self) -> Ints:
        """Numbers of the edges with theta = 0."""
        return np.flatnonzero(self._fused[self._slots])

    def labels(self) -> Ints:
        """Return the groups of points that fused edges join."""
        return Edges(*(ends[self.fused] for ends in self.edges)).components(self.m)

    def in_precision_of(self, x: Floats) -> None:
        """Take these points in place of the same ones in another precision."""
        self.x, self.omega, self._duals = padded(x), self.omega.astype(x.dtype), self._duals.astype(x.dtype)
        self._graph = *self._graph[:2], self._graph[2].astype(x.dtype)

    def iterate(self, spread: float, tol: float, most: int) -> tuple[int, float]:
        """Iterate until optimality is violated by at most ``tol``, in units of ``spread``; return how often, and that.

        The violation is the larger root mean square of the gradients (per mass) and of omega_i - omega_j - theta_ij.
        """
        bounds = np.append(np.arange(0, self.m, JOB_SIZE), self.m)
        squares, pieces, new = np.empty((bounds.size - 1, 2)), self.penalty.pieces(self.rho), np.empty_like(self.omega)
        mass, edges, n, violation = self.sizes.sum(), max(len(self._duals), 1), 0, np.inf
        work = WORK_PER_NUMBER * self._duals.size / self.m * np.diff(bounds)

        def run(jobs: Ints) -> None:
            points = self.x, self.omega, new, self.sizes, self._masses
            _kernels.fuse_points(points, self._graph, self._duals, self._fused, pieces, self.rho, bounds, squares, jobs)

        while n < most and violation > tol:
            if n:
                self.omega, new = new, self.omega
            threads.spread(run, work)
            gradients, primal = squares.sum(axis=0).tolist()
            n, violation = n + 1, float(np.sqrt(max(gradients / mass, primal / edges))) / spread
        return n, violation

    def objective(self) -> float:
        """Return what is minimised."""
        lengths = np.sqrt(row_squares(self.omega[self.edges.lo] - self.omega[self.edges.hi]))
        return float(self.sizes @ row_squares(self.omega - self.x) / 2 + self.weights @ self.penalty.value(lengths))


def padded(rows: Floats) -> Floats:
    """Return rows with zeros behind, so that kernels can take eight numbers at a time."""
    return np.ascontiguousarray(np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8))))


@dataclass
class PartitionPath:
    """Partitions along a path of lambdas; groups of one are parts of groups of the next."""

    places: Ints  # the number of each of the caller's points in the computation
    lambdas: list[float] = field(default_factory=list)
    n_clusters: list[int] = field(default_factory=list)
    counts: list[Bools] = field(default_factory=list, repr=False)  # whether each group counts,
    grouped: list[float] = field(default_factory=list)  # and the share of the points in those that do
    maps: list[Ints] = field(default_factory=list, repr=False)  # from the groups of one step to those of the next

    def add(self, lam: float, sizes: Floats, group: Ints) -> None:
        """Add a lambda, and the groups that those of the step before have become."""
        self.lambdas.append(lam)
        self.n_clusters.append(len(sizes))
        self.counts.append(sizes >= max(MIN_GROUP_POINTS, MIN_GROUP_SHARE * sizes.sum()))
        self.grouped.append(float(sizes[self.counts[-1]].sum() / sizes.sum()))
        self.maps.append(group)

    def labels(self, step: int) -> Ints:
        """Return the group of each of the caller's points at a lambda."""
        return self.labels_of_places(step)[self.places]

    def labels_of_places(self, step: int) -> Ints:
        """Return the same for the points of the computation."""
        labels = np.arange(len(self.maps[0]))
        for group in self.maps[: step + 1]:
            labels = group[labels]
        return labels

    def _lives(self) -> list[tuple[float, int, int]]:
        """Return for partitions how long they live, their first step, and the step after their last."""
        changes = [step for step in range(1, len(self.counts)) if self._changed(step)]
        bounds, lambdas = [0, *changes, len(self.counts)], [*self.lambdas, self.lambdas[-1]]
        return [
            (min(lambdas[end] / lambdas[start], MAX_LIFE_RATIO), start, end)
            for start, end in pairwise(bounds)
            if self.counts[start].sum() > 1 and self.grouped[end - 1] >= MIN_GROUPED_SHARE
        ]

    def _changed(self, step: int) -> bool:
        """Whether groups that count have merged since the step before, or new ones have formed."""
        before, now = self.counts[step - 1], self.counts[step]
        return bool((np.bincount(self.maps[step][before], minlength=now.size) != now).any())

    @property
    def settled(self) -> bool:
        """Whether a partition has lived so long that no later one can be preferred."""
        return any(ratio == MAX_LIFE_RATIO for ratio, _, _ in self._lives())

    def longest_lived(self) -> int:
        """Return a step of the partition that lives longest, counted as a ratio of lambdas; the finest of equals.

        A partition is the same as long as the groups that count neither merge nor become more, and most points must be
        in these. All points are one group if no other partition lives long enough.
        """
        lives = [(MIN_LIFE_RATIO, len(self.lambdas) - 1, len(self.lambdas)), *self._lives()]
        _, start, end = max(lives, key=lambda life: life[0])
        # Until lambda has doubled lone points join; from then on the solution only gets harder to find.
        return min(int(np.searchsorted(self.lambdas, 2 * self.lambdas[start], "right")), end) - 1


class CollapsingPath:
    """Solutions for one set of points: `run` goes along the path, `solve` returns one on the whole graph.

    Points have masses ``sizes``; ``places`` are the numbers of the caller's points among them. The path is in single
    precision, which its tolerance allows.
    """

    def __init__(
        self, x: Floats, sizes: Floats, edges: Edges, weights: Floats, penalty: Penalty, places: Ints
    ) -> None:  # fmt: skip
        self.exact, self.sizes, self.edges, self.weights, self.penalty = x, sizes, edges, weights, penalty
        self.x = padded(x.astype(np.float32))
        self.found = PartitionPath(places)
        self.n_iter = 0
        self._spread = float(np.sqrt(np.median(row_squares(x)))) or 1.0
        self._estimates: list[Floats] = []
        self._duals: Floats = np.zeros((edges.lo.size, self.x.shape[1]), self.x.dtype)

    def run(self, last: float = np.inf) -> CollapsingPath:
        """Raise lambda until all points are fused, or to the last one."""
        lengths = np.sqrt(row_squares(self.x[self.edges.lo] - self.x[self.edges.hi]))
        shortest = np.quantile(lengths[lengths > 0], FIRST_LAMBDA_QUANTILE) if lengths.any() else self._spread
        lam = min(FIRST_LAMBDA_RATIO * float(shortest), last)
        x, omega, sizes, edges, weights = self.x, self.x, self.sizes, self.edges, self.weights
        labels = np.arange(len(x))
        while True:
            state = PointState(x, omega, sizes, edges, weights, replace(self.penalty, lam=lam))
            most = int(np.clip(MIN_PATH_UPDATES // max(len(weights), 1), MAX_PATH_ITERATIONS, MAX_ITERATIONS_OF_FEW))
            self.n_iter += state.iterate(self._spread, PATH_TOLERANCE, most)[0]
            omega, group = state.omega, self._collapsing(state)
            if group.max() + 1 < len(x):
                self._keep_duals(state, labels, group)
                x, omega = _means(x, group, sizes), _means(omega, group, sizes)
                labels, sizes = group[labels], np.bincount(group, sizes).astype(np.float64)
                edges, weights = _merged(edges, weights, group)
            self.found.add(lam, sizes, group)
            self._estimates.append(omega)
            # Lone points that never join would cost as much for as long as lambda rises.
            settled = last == np.inf and len(x) > MAX_LONE_POINTS and self.found.settled
            if len(x) == 1 or lam >= last or len(self._estimates) == MAX_LAMBDAS or settled:
                return self
            lam = min(lam * LAMBDA_RATIO, last)

    def _collapsing(self, state: PointState) -> Ints:
        """Return the groups of points that are fused and have met."""
        lo, hi = (ends[state.fused] for ends in state.edges)
        near, apart = (row_squares(rows[lo] - rows[hi]) for rows in (state.omega, state.x))
        met = near <= np.maximum(COLLAPSE_RATIO**2 * apart, (COLLAPSE_TOLERANCE * self._spread) ** 2)
        return Edges(lo[met], hi[met]).components(state.m)

    def _keep_duals(self, state: PointState, labels: Ints, group: Ints) -> None:
        """Keep the duals of edges that collapse; ``labels``: which points of this state stand for those of all."""
        a, b = labels[self.edges.lo], labels[self.edges.hi]
        inner = np.flatnonzero((a != b) & (group[a] == group[b]))
        a, b, (lo, hi) = a[inner], b[inner], state.edges
        where = np.searchsorted(lo * state.m + hi, np.minimum(a, b) * state.m + np.maximum(a, b))
        self._duals[inner] = np.where(a < b, 1, -1)[:, None] * state.duals(where)

    def solve(self, step: int, tol: float, max_iter: int) -> tuple[PointState, float]:
        """Return the solution for a lambda of the path on the whole graph, and its violation of optimality."""
        labels, omega, lam = self.found.labels_of_places(step), self._estimates[step], self.found.lambdas[step]
        inner = labels[self.edges.lo] == labels[self.edges.hi]
        state = PointState(
            self.x, omega[labels], self.sizes, self.edges, self.weights, replace(self.penalty, lam=lam),
            float(np.sqrt(lam / self._spread)), self._duals * inner[:, None],
        )  # fmt: skip
        n, violation = state.iterate(self._spread, max(tol, MIN_SINGLE_TOLERANCE), max_iter)
        if tol < MIN_SINGLE_TOLERANCE and self.exact.dtype != self.x.dtype:
            state.in_precision_of(self.exact)
            more, violation = state.iterate(self._spread, tol, max(max_iter - n, 1))
            n += more
        self.n_iter += n
        return state, violation


def _means(rows: Floats, group: Ints, sizes: Floats) -> Floats:
    """Return the mean of every group, by sizes."""
    sums = np.stack([np.bincount(group, sizes * column) for column in rows.T], axis=1)
    return np.asarray((sums / np.bincount(group, sizes)[:, None]).astype(rows.dtype))


def _merged(edges: Edges, weights: Floats, group: Ints) -> tuple[Edges, Floats]:
    """Return the edges between groups, with the sums of their weights."""
    a, b, n = group[edges.lo], group[edges.hi], int(group.max()) + 1
    apart = a != b
    code, place = np.unique((np.minimum(a, b) * n + np.maximum(a, b))[apart], return_inverse=True)
    lo, hi = np.divmod(code, n)
    return Edges(lo, hi), np.bincount(place, weights[apart], code.size).astype(np.float64)
