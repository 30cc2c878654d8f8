"""Graphs of nearest neighbours, connected: which pairs of devices or points are fused where there are too many for all.

Neighbours are exact: by a k-d tree for short vectors, by matrix products for long ones. Components that no
edge joins are linked by a spanning tree of their means, so that any two devices may end up in one group.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy

from fedfuse.errors import FedfuseError
from fedfuse.utils import threads
from fedfuse.utils.typing import Floats, Ints

# Beyond so many dimensions a k-d tree looks at most points anyway.
MAX_TREE_DIMENSIONS = 12
# Points of a leaf: with SciPy's own 16 the search for neighbours takes half as long again.
LEAF_POINTS = 64
# Nearest points of two components are looked for in turn, from either side, so often.
LINK_STEPS = 3


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
        links = self._matrix(np.ones(self.lo.size, np.int8), m)
        return np.asarray(scipy.sparse.csgraph.connected_components(links, directed=False)[1], np.int64)

    def spanning(self, lengths: Floats, m: int) -> Ints:
        """Return the numbers of the edges of a minimum spanning tree (of each component)."""
        # By rank: SciPy takes a length of zero for no edge.
        rank = np.empty(lengths.size)
        rank[np.argsort(lengths, kind="stable")] = np.arange(1, lengths.size + 1)
        tree = scipy.sparse.csgraph.minimum_spanning_tree(self._matrix(rank, m))
        return np.argsort(rank, kind="stable")[np.sort(tree.data).astype(np.int64) - 1]

    def _matrix(self, weights: np.ndarray, m: int) -> scipy.sparse.coo_array:
        # Graph routines of older SciPy versions take 32-bit indices only.
        return scipy.sparse.coo_array((weights, (self.lo.astype(np.int32), self.hi.astype(np.int32))), (m, m))


def check_graph(graph: str | None) -> int | None:
    """Return the number of neighbours that ``"knn:10"`` asks for; None stands for all pairs.

    >>> check_graph("knn:10")
    10
    """
    if graph is None:
        return None
    kind, _, k = str(graph).partition(":")
    if kind != "knn" or not k.isdigit() or not int(k):
        raise FedfuseError(f"graph must be 'knn:10', for ten neighbours, or None for all pairs, got {graph!r}")
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
        from sklearn.neighbors import NearestNeighbors  # takes most of a second to import

        return np.asarray(NearestNeighbors(n_neighbors=k, algorithm="brute").fit(points).kneighbors()[1], np.int64)
    tree = scipy.spatial.cKDTree(points, LEAF_POINTS, balanced_tree=False)
    # Queries in the order of the leaves find the same nodes in the caches.
    near = np.asarray(tree.query(points[tree.indices], k + 1, workers=threads.allowed())[1])
    others = near != tree.indices[:, None]
    others[others.all(axis=1), -1] = False  # of more than k points in one place
    found = np.empty((len(points), k), np.int64)
    found[tree.indices] = near[others].reshape(-1, k)
    return found


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
