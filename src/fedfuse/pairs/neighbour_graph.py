"""Graphs of nearest neighbours, connected: which pairs of devices or points are fused where there are too many for all.

Neighbours are exact: by a k-d tree for short vectors, by blocks of a matrix product for long ones. Components that no
edge joins are linked by a spanning tree of their means, so that any two devices may end up in one group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from fedfuse.errors import FedfuseError
from fedfuse.utils import threads
from fedfuse.utils.alignment import whole
from fedfuse.utils.jit import Kernels
from fedfuse.utils.typing import Floats, Ints

# Beyond so many dimensions a k-d tree looks at most points anyway.
MAX_TREE_DIMENSIONS = 12
# Points of a leaf of such a tree, at most, and about what the search for neighbours of one costs.
LEAF_POINTS, WORK_PER_QUERY = 64, 1e4
# Distances that are held at a time where a product gives them.
DISTANCES_PER_BLOCK = 1 << 25
# Nearest points of two components are looked for in turn, from either side, so often.
LINK_STEPS = 3

_kernels = Kernels("fedfuse.pairs.edge_kernels")


class Edges(NamedTuple):
    """Edges of a graph, ordered by their lower and then by their higher end."""

    lo: Ints
    hi: Ints

    @classmethod
    def of(cls, i: Ints, j: Ints, m: int) -> Edges:
        """Order edges between different ones of m ends, each once."""
        lo, hi = np.minimum(i, j).astype(np.int64), np.maximum(i, j).astype(np.int64)
        code = np.sort((lo * m + hi)[lo < hi])  # NumPy's `unique` hashes, which takes longer
        return cls(*np.divmod(code[np.append(True, np.diff(code) > 0)[: code.size]], max(m, 1)))

    def components(self, m: int) -> Ints:
        """Return the number of each end's connected component."""
        links = scipy.sparse.coo_array((np.ones(self.lo.size, np.int8), self), (m, m))
        return np.asarray(scipy.sparse.csgraph.connected_components(links, directed=False)[1], np.int64)

    def spanning(self, lengths: Floats, m: int) -> Ints:
        """Return the numbers of the edges of a minimum spanning tree (of each component)."""
        # By rank: SciPy takes a length of zero for no edge.
        rank = np.empty(lengths.size)
        rank[np.argsort(lengths, kind="stable")] = np.arange(1, lengths.size + 1)
        tree = scipy.sparse.csgraph.minimum_spanning_tree(scipy.sparse.csr_array((rank, self), (m, m)))
        return np.argsort(rank, kind="stable")[np.sort(tree.data).astype(np.int64) - 1]


def check_graph(graph: str | None) -> int | None:
    """Return the number of neighbours that ``"knn:10"`` asks for; None stands for all pairs.

    >>> check_graph("knn:10")
    10
    """
    if graph is None:
        return None
    kind, _, k = str(graph).partition(":")
    if kind != "knn" or not k.isdigit() or not int(k):
        raise FedfuseError(
            f"graph must be 'knn:k' with k neighbours, as 'knn:10', or None for all pairs, got {graph!r}"
        )
    return int(k)


def neighbour_edges(points: Floats, k: int) -> Edges:
    """Return the edges from each point (row) to its k nearest, and what links their components."""
    m = len(points)
    if k >= m - 1:
        return Edges(*(each.astype(np.int64) for each in np.triu_indices(m, 1)))
    near = nearest_neighbours(points, k)
    edges = Edges.of(np.repeat(np.arange(m), k), near.ravel(), m)
    return _connected(points, edges, k)


def nearest_neighbours(points: Floats, k: int) -> Ints:
    """Return the k nearest others of every point, in no order."""
    if points.shape[1] > MAX_TREE_DIMENSIONS:
        return _nearest_by_products(points, k)
    tree = LeafTree.of(points)
    near = np.empty((len(points), k), np.int64)
    near[tree.order] = tree.order[tree.nearest(k)]
    return near


@dataclass
class LeafTree:
    """Balanced k-d tree whose points are all in its leaves, and searched leaf by leaf.

    Points of a leaf are near in memory, and look at the same other leaves: their queries are one loop over both.
    """

    order: Ints  # points as the leaves have them, one leaf after another
    bounds: Ints  # leaf l has the points order[bounds[l]] … order[bounds[l + 1] - 1]
    columns: Floats  # leaves x (dimensions x places): coordinates, inf where there is no point
    low: Floats  # corners of boxes: that of node n is around those of 2 n and 2 n + 1, and leaf l is node l + leaves
    high: Floats

    @classmethod
    def of(cls, points: Floats) -> LeafTree:
        """Cut the points in halves along the widest side, until a leaf has few."""
        m, d = points.shape
        leaves = 1 << max(int(m - 1).bit_length() - LEAF_POINTS.bit_length() + 1, 0)
        order, rows, bounds = np.arange(m), points.copy(), np.array([0, m])
        while bounds.size <= leaves:
            middles = (bounds[:-1] + bounds[1:]) // 2
            for first, middle, last in zip(bounds.tolist(), middles.tolist(), bounds[1:].tolist(), strict=False):
                part = rows[first:last]
                side = np.argmax(part.max(axis=0) - part.min(axis=0))
                places = np.argpartition(part[:, side], middle - first)
                rows[first:last], order[first:last] = part[places], order[first:last][places]
            bounds = np.sort(np.concatenate([bounds, middles]))
        places = np.arange(m) - np.repeat(bounds[:-1], np.diff(bounds))
        columns = np.full((leaves, d, whole(int(np.diff(bounds).max()), points.dtype)), np.inf, points.dtype)
        columns[np.repeat(np.arange(leaves), np.diff(bounds)), :, places] = rows
        low, high = np.empty((2, 2 * leaves, d), points.dtype)
        low[leaves:] = np.minimum.reduceat(rows, bounds[:-1])
        high[leaves:] = np.maximum.reduceat(rows, bounds[:-1])
        for node in range(leaves - 1, 0, -1):
            low[node] = np.minimum(low[2 * node], low[2 * node + 1])
            high[node] = np.maximum(high[2 * node], high[2 * node + 1])
        return cls(order, bounds, columns.reshape(leaves, -1), low, high)

    def nearest(self, k: int) -> Ints:
        """Return the k nearest others of every point, both by their places in `order`."""
        chosen = np.empty((len(self.order), k), np.int64)
        least = np.full(chosen.shape, np.inf, self.columns.dtype)
        leaves, places = len(self.columns), self.columns.shape[1] // self.low.shape[1]

        def run(jobs: Ints) -> None:
            # A search puts off at most one node of each level.
            space = (*np.empty((2, places), least.dtype), np.empty(64, np.int64), np.empty(64, least.dtype))
            _kernels.nearest_in_leaves(self.columns, self.bounds, self.low, self.high, chosen, least, space, jobs)

        threads.spread(run, np.full(leaves, WORK_PER_QUERY * places))
        return chosen


def _nearest_by_products(points: Floats, k: int) -> Ints:
    m = len(points)
    centred = np.ascontiguousarray(points - points.mean(axis=0))
    squares = np.einsum("ij,ij->i", centred, centred)
    near, rows = np.empty((m, k), np.int64), max(DISTANCES_PER_BLOCK // m, 1)
    least = np.empty((rows, k), centred.dtype)
    for first in range(0, m, rows):
        products = centred[first : first + rows] @ centred.T
        chosen = near[first : first + rows]

        def run(jobs: Ints, start: int = first, found: Floats = products, chosen: Ints = chosen) -> None:
            _kernels.nearest(found, squares, start, chosen, least, jobs)

        threads.spread(run, np.full(len(chosen), 4.0 * m))
    return near


def _connected(points: Floats, edges: Edges, k: int) -> Edges:
    """Add the links of a spanning tree over the components' means."""
    m, component = len(points), edges.components(len(points))
    sizes = np.bincount(component)
    if sizes.size == 1:
        return edges
    means = np.stack([np.bincount(component, column) for column in points.T], axis=1) / sizes[:, None]
    between = neighbour_edges(means, k)
    apart = np.linalg.norm(means[between.lo] - means[between.hi], axis=1)
    members = np.split(np.argsort(component, kind="stable"), np.cumsum(sizes)[:-1])
    links = [
        _link(points, members[between.lo[e]], members[between.hi[e]], means[between.hi[e]])
        for e in between.spanning(apart, sizes.size)
    ]
    i, j = np.array(links, np.int64).T
    return Edges.of(np.concatenate([edges.lo, i]), np.concatenate([edges.hi, j]), m)


def _link(points: Floats, mine: Ints, theirs: Ints, towards: Floats) -> tuple[int, int]:
    """Return two near points of two components."""
    i = j = 0
    for _ in range(LINK_STEPS):
        i = mine[np.square(points[mine] - towards).sum(axis=1).argmin()]
        j = theirs[np.square(points[theirs] - points[i]).sum(axis=1).argmin()]
        towards = points[j]
    return int(i), int(j)
