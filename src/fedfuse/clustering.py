"""Pairwise fusion of points as a scikit-learn clusterer: convex clustering, and its nonconvex relatives."""

from __future__ import annotations

import warnings
from numbers import Real
from typing import Any, Literal

import numpy as np
from scipy.spatial import cKDTree
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import validate_data

from fedfuse.core.partitions import canonical, group_means
from fedfuse.core.penalties import PENALTIES
from fedfuse.errors import FedfuseError, check_choice
from fedfuse.pairs.collapsing_path import CollapsingPath
from fedfuse.pairs.layout import row_squares
from fedfuse.pairs.neighbour_graph import LEAF_POINTS, Edges, check_graph, neighbour_edges
from fedfuse.utils.typing import Floats, Ints

FusionPenalty = Literal["l1", "scad", "mcp"]
EdgeWeights = Literal["uniform", "distance"]


# Of the heaviest edge's weight: what links far groups must not vanish.
MIN_EDGE_WEIGHT = 1e-6


class FusionClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Cluster points by fusing neighbours: minimise sum |w_i - x_i|^2 / 2 + sum c_ij g(|w_i - w_j|) over edges.

    Points with the same w are a group. The number of groups need not be known.

    Parameters
    ----------
    graph
        ``"knn:10"``: edges from each point to its ten nearest, and what connects the graph. None: all pairs.
    penalty
        g: ``"l1"`` (convex clustering), ``"scad"`` or ``"mcp"``, which leave distant points alone.
    lam
        Strength of the penalty, in units of X: how far its neighbours together can pull a point. ``"auto"``: along a
        path of lambdas, that of the partition that lives longest (counted in 1 / lambda, as HDBSCAN counts).
    weights
        c: ``"uniform"``, or ``"distance"`` for exp(-|x_i - x_j|^2 / (2 h^2)) with h the root mean square length of the
        edges. They are scaled so that those of a point's edges add up to 1 on average.
    tol, max_iter
        The solution on the whole graph is iterated until it violates the optimality conditions by at most ``tol``,
        relative to the median distance of points from their median, but at most so often.

    Attributes
    ----------
    labels_ : ndarray of shape (n_samples,)
    cluster_centers_ : ndarray of shape (n_clusters, n_features)
        Means of the groups' points.
    estimates_ : ndarray of shape (n_samples, n_features)
        w of every point.
    lam_, objective_, kkt_, n_iter_
        Lambda, what was minimised, by how much the solution violates the optimality conditions, and all iterations.
    path_ : PartitionPath
        ``lambdas``, ``n_clusters``, and ``labels(step)`` for each.

    Examples
    --------
    >>> points = np.concatenate([np.random.default_rng(0).normal(c, 0.1, (50, 2)) for c in (0, 1, 2)])
    >>> np.bincount(FusionClustering().fit_predict(points)).tolist()
    [50, 50, 50]
    """

    def __init__(
        self,
        graph: str | None = "knn:10",
        penalty: FusionPenalty = "l1",
        lam: float | Literal["auto"] = "auto",
        *,
        weights: EdgeWeights = "uniform",
        tol: float = 1e-5,
        max_iter: int = 1000,
    ) -> None:
        self.graph = graph
        self.penalty = penalty
        self.lam = lam
        self.weights = weights
        self.tol = tol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any = None) -> FusionClustering:
        """Find the groups of the rows of X."""
        X = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
        k, lam = self._checked()
        x, places, sizes = _distinct(X)
        edges = neighbour_edges(x, k or len(x))
        weights, penalty = self._edge_weights(x, edges) * sizes.sum(), PENALTIES[self.penalty](1.0)
        solver = CollapsingPath(x, sizes, edges, weights, penalty, places).run(lam)
        self.path_ = solver.found
        step = self.path_.longest_lived() if self.lam == "auto" else len(self.path_.lambdas) - 1
        state, self.kkt_ = solver.solve(step, self.tol, self.max_iter)
        # Before the solution is exact, edges may seem fused that are not.
        self.labels_ = canonical(state.labels()[places] if self.kkt_ <= self.tol else self.path_.labels(step))
        self.estimates_ = (state.omega[places, : X.shape[1]] + np.median(X, axis=0)).astype(X.dtype)
        self.cluster_centers_ = group_means(X, self.labels_, np.ones(len(X))).astype(X.dtype)
        self.lam_, self.objective_, self.n_iter_ = self.path_.lambdas[step], state.objective(), solver.n_iter
        if self.kkt_ > self.tol:
            message = f"optimality is violated by {self.kkt_:.2g} after {self.max_iter} iterations"
            warnings.warn(f"{message}: raise max_iter or tol", ConvergenceWarning, stacklevel=2)
        return self

    def _checked(self) -> tuple[int | None, float]:
        """Check the parameters; return the number of neighbours and the last lambda."""
        check_choice("penalty", self.penalty, FusionPenalty)
        check_choice("weights", self.weights, EdgeWeights)
        if self.lam == "auto":
            return check_graph(self.graph), np.inf
        if not isinstance(self.lam, Real) or not 0 < self.lam < np.inf:
            raise FedfuseError(f"lam must be a positive number or 'auto', got {self.lam!r}")
        return check_graph(self.graph), float(self.lam)

    def _edge_weights(self, x: Floats, edges: Edges) -> Floats:
        squares = row_squares(x[edges.lo] - x[edges.hi])
        raw = np.ones(squares.size)
        if self.weights == "distance":
            raw = np.exp(-squares / (2 * squares.mean())).clip(MIN_EDGE_WEIGHT) if squares.any() else raw
        return np.asarray(raw / (2 * raw.sum()))


def _distinct(X: Floats) -> tuple[Floats, Ints, Floats]:
    """Return centred places, the place of each point, and how many points are there: in one place they are one.

    Places are in the order of a tree's leaves, so that neighbours are near in memory.
    """
    x, places, sizes = X, np.arange(len(X)), np.ones(len(X), np.int64)
    # Numbers sort much faster than rows do, and equal rows have equal numbers.
    numbers = np.sort(np.einsum("ij,j->i", X, np.random.default_rng(0).random(X.shape[1])))
    if (numbers[1:] == numbers[:-1]).any():
        x, places, sizes = np.unique(X, axis=0, return_inverse=True, return_counts=True)
    order = cKDTree(x, LEAF_POINTS, balanced_tree=False).indices
    # Far from the origin, and from the median if single points lie far out, single precision would not do.
    return x[order] - np.median(X, axis=0), np.argsort(order)[places.ravel()], sizes[order].astype(np.float64)
