"""Pairwise fusion of points as a scikit-learn clusterer: convex clustering, and its nonconvex relatives."""

from __future__ import annotations

import warnings
from numbers import Real
from typing import Any, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import validate_data

from fedfuse.core.partitions import canonical, group_means
from fedfuse.core.penalties import PENALTIES
from fedfuse.errors import FedfuseError, check_choice
from fedfuse.pairs.collapsing_path import CollapsingPath
from fedfuse.pairs.neighbour_graph import Edges, LeafTree, check_graph, neighbour_edges
from fedfuse.pairs.numpy_state import row_squares
from fedfuse.utils.typing import Floats

FusionPenalty = Literal["l1", "scad", "mcp"]
EdgeWeights = Literal["uniform", "distance"]


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
        relative to the standard deviation of X, but at most so often.

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
        # In the order of a tree's leaves, neighbours are near in memory.
        order = LeafTree.of(X).order
        x = np.ascontiguousarray(X[order] - X.mean(axis=0))
        edges = neighbour_edges(x, k or len(x))
        solver = CollapsingPath(x, edges, self._edge_weights(x, edges), PENALTIES[self.penalty](1.0), order).run(lam)
        self.path_ = solver.found
        step = self.path_.longest_lived() if self.lam == "auto" else len(self.path_.lambdas) - 1
        state, self.kkt_ = solver.solve(step, self.tol, self.max_iter)
        back = np.argsort(order)
        # Before the solution is exact, edges may seem fused that are not.
        self.labels_ = canonical(state.labels()[back] if self.kkt_ <= self.tol else self.path_.labels(step))
        self.estimates_ = state.omega[back, : X.shape[1]] + X.mean(axis=0)
        self.cluster_centers_ = group_means(X, self.labels_, np.ones(len(X))).astype(X.dtype)
        self.lam_, self.objective_, self.n_iter_ = self.path_.lambdas[step], state.objective(), solver.n_iter
        if self.kkt_ > self.tol:
            message = (
                f"optimality is violated by {self.kkt_:.2g} after {self.max_iter} iterations: raise max_iter or tol"
            )
            warnings.warn(message, ConvergenceWarning, stacklevel=2)
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
            raw = np.exp(-squares / (2 * squares.mean())) if squares.any() else raw
        return np.asarray(raw * len(x) / (2 * raw.sum()))
