import time
import warnings

import numpy as np
import pytest
import scipy
from sklearn.datasets import load_wine, make_blobs, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedfuse as ff
from fedfuse.core.partitions import adjusted_rand
from fedfuse.core.penalties import L1, MCP, SCAD
from fedfuse.errors import FedfuseError
from fedfuse.pairs.collapsing_path import PointState
from fedfuse.pairs.neighbour_graph import Edges, neighbour_edges


@parametrize_with_checks([ff.FusionClustering()])
def test_contract_of_scikit_learn(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


def convex_clustering(x, edges, weights, lam, rho=1.0, tol=1e-8, most=3000):
    """The textbook's ADMM (Chi and Lange, 2015) with exact solves, to convergence; returns the objective."""
    lo, hi = edges
    n, e = len(x), np.arange(lo.size)
    ones, sizes = np.ones(lo.size), (lo.size, n)
    D = scipy.sparse.csr_array((ones, (e, lo)), sizes) - scipy.sparse.csr_array((ones, (e, hi)), sizes)
    C = scipy.sparse.dia_array((weights[None], [0]), (lo.size, lo.size))
    solve = scipy.sparse.linalg.factorized((scipy.sparse.eye_array(n) + rho * D.T @ C @ D).tocsc())
    theta, v = D @ x, np.zeros((lo.size, x.shape[1]))
    for _ in range(most):
        w = np.column_stack([solve(column) for column in (x + D.T @ (weights[:, None] * (rho * theta - v))).T])
        delta = D @ w + v / rho
        norms = np.maximum(np.linalg.norm(delta, axis=1, keepdims=True), 1e-300)
        new = np.maximum(1 - lam / (rho * norms), 0) * delta
        v = rho * (delta - new)
        change = max(np.abs(new - theta).max(), np.abs(D @ w - new).max())
        theta = new
        if change < tol:
            break
    return np.square(w - x).sum() / 2 + lam * weights @ np.linalg.norm(D @ w, axis=1)


def problem(m, d=7, groups=20, seed=0):
    x, y = make_blobs(m, d, centers=groups, random_state=seed)
    return x, y


@pytest.mark.parametrize(("m", "lam"), [(1000, 4.0), (1000, 20.0), pytest.param(10_000, 4.0, marks=pytest.mark.slow)])
def test_objective_is_that_of_a_reference_solver(m, lam):
    x, _ = problem(m)
    began = time.perf_counter()
    found = ff.FusionClustering(lam=lam, tol=1e-6).fit(x)
    own = time.perf_counter() - began
    edges = neighbour_edges(x, 10)
    weights = np.full(edges.lo.size, m / (2 * edges.lo.size))
    began = time.perf_counter()
    reference = convex_clustering(x, edges, weights, lam, tol=1e-6)
    print(f"{m} points, lambda {lam:g}: {found.objective_:.6f} in {own:.1f} s, reference {reference:.6f} in "
          f"{time.perf_counter() - began:.1f} s")  # fmt: skip
    assert abs(found.objective_ / reference - 1) < 1e-4
    assert found.kkt_ <= 1e-6


@pytest.mark.parametrize("penalty", [L1(0.5), SCAD(0.5), MCP(0.5)], ids=lambda p: p.name)
def test_solution_is_stationary(penalty):
    """No step of any point lowers the objective (of parted points the gradient is zero)."""
    x, _ = problem(60, 2, 3)
    edges = neighbour_edges(x, 4)
    state = PointState(x, x, np.ones(60), edges, np.full(edges.lo.size, 0.3), penalty)
    _, violation = state.iterate(1.0, 1e-8, 5000)
    assert violation <= 1e-8
    best, rng, omega = state.objective(), np.random.default_rng(0), state.omega.copy()
    for _ in range(200):
        state.omega = omega + 1e-4 * rng.normal(size=omega.shape)
        assert state.objective() >= best - 1e-9


@pytest.mark.parametrize("penalty", ["l1", "scad", "mcp"])
def test_groups_are_found_without_a_parameter(penalty):
    x, y = problem(2000)
    found = ff.FusionClustering(penalty=penalty).fit(x)
    assert adjusted_rand(y, found.labels_) > 0.98
    assert found.kkt_ <= found.tol
    for c in range(3):
        np.testing.assert_allclose(found.cluster_centers_[c], x[found.labels_ == c].mean(axis=0))


def test_groups_may_have_any_shape_and_size():
    x, y = make_moons(600, noise=0.05, random_state=0)
    assert adjusted_rand(y, ff.FusionClustering().fit_predict(x)) == 1
    x, y = make_blobs([1000, 100, 30], 3, random_state=1)
    assert adjusted_rand(y, ff.FusionClustering(weights="distance").fit_predict(x)) > 0.98


@pytest.mark.parametrize("weights", ["uniform", "distance"])
@pytest.mark.parametrize(("sizes", "d"), [([5000, 200, 20, 3], 3), ([10_000, 1000, 100, 10], 5)], ids=str)
def test_groups_may_have_very_unequal_sizes(sizes, d, weights):
    x, y = make_blobs(sizes, d, random_state={3: 1, 5: 3}[d])
    assert adjusted_rand(y, ff.FusionClustering(weights=weights).fit_predict(x)) > 0.97


@pytest.mark.parametrize("graph", ["knn:10", None], ids=str)
def test_points_in_one_place_are_one_of_their_mass(graph):
    x, _ = problem(200, 3, 4)
    rng = np.random.default_rng(0)
    copies = rng.permutation(np.repeat(np.arange(200), 20))
    once, many = ff.FusionClustering(graph).fit(x), ff.FusionClustering(graph).fit(x[copies])
    assert many.kkt_ <= many.tol
    assert adjusted_rand(once.labels_[copies], many.labels_) == 1
    assert many.path_.n_clusters == once.path_.n_clusters
    assert (ff.FusionClustering(graph).fit_predict(np.full((50, 4), 2.5)) == 0).all()


def test_a_point_far_away_does_not_hide_the_groups():
    x, y = problem(1000, 3, 4)
    far = np.vstack([x, [[1e6, 0, 0]]])
    found = ff.FusionClustering(max_iter=5000).fit_predict(far)
    assert adjusted_rand(y, found[:-1]) > 0.95
    assert (found == found[-1]).sum() == 1


@pytest.mark.parametrize("n", range(2, 8))
def test_few_points_are_one_group(n):
    assert not ff.FusionClustering().fit_predict(np.random.default_rng(n).normal(size=(n, 2))).any()


def test_a_path_that_ends_early_has_the_same_groups(monkeypatch):
    x, _ = problem(1000)
    whole = ff.FusionClustering().fit(x)
    monkeypatch.setattr("fedfuse.pairs.collapsing_path.MAX_LONE_POINTS", 0)
    short = ff.FusionClustering().fit(x)
    assert len(short.path_.lambdas) < len(whole.path_.lambdas)
    np.testing.assert_array_equal(short.labels_, whole.labels_)


@pytest.mark.parametrize(("n", "d"), [(500, 3), (1000, 2), (1000, 8), (100, 3)])
@pytest.mark.parametrize("draw", ["normal", "uniform"])
def test_one_cloud_is_one_group(n, d, draw):
    """Groups by chance merge from lambda to lambda, even where as many others form: none of them lives long."""
    x = getattr(np.random.default_rng(0), draw)(size=(n, d))
    assert ff.FusionClustering().fit(x).labels_.max() == 0


def test_wines():
    """Three groups that overlap, in 13 columns."""
    x, y = load_wine(return_X_y=True)
    labels = ff.FusionClustering().fit_predict(StandardScaler().fit_transform(x))
    assert adjusted_rand(labels, y) > 0.8


def test_a_path_has_partitions_inside_each_other_in_the_order_of_the_points():
    x, y = problem(500, groups=5)
    path = ff.FusionClustering().fit(x).path_
    assert path.n_clusters == sorted(path.n_clusters, reverse=True)
    assert path.n_clusters[-1] == 1
    for step in range(1, len(path.lambdas)):
        fine, coarse = path.labels(step - 1), path.labels(step)
        assert len(np.unique(fine * 1000 + coarse)) == fine.max() + 1
    assert adjusted_rand(y, path.labels(path.n_clusters.index(5))) == 1


def test_a_collapsed_point_stands_for_its_points():
    """Two points at one place are one of twice the mass, with the sum of its edges' weights."""
    x = np.array([[0.0, 0.0], [0.0, 0.0], [1.0, 2.0], [3.0, 1.0]])
    twice = Edges(np.array([0, 0, 1, 1, 2]), np.array([1, 2, 2, 3, 3]))
    both = PointState(x, x, np.ones(4), twice, np.ones(5), L1(0.3))
    once, sizes = Edges(np.array([0, 0, 1]), np.array([1, 2, 2])), np.array([2.0, 1, 1])
    one = PointState(x[1:], x[1:], sizes, once, np.array([2.0, 1, 1]), L1(0.3))
    for state in (both, one):
        state.iterate(1.0, 1e-12, 5000)
    np.testing.assert_allclose(both.omega[1:], one.omega, atol=1e-6)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"penalty": "l2"}, "penalty must be"),
        ({"lam": -1.0}, "positive number or 'auto'"),
        ({"lam": "most"}, "positive number or 'auto'"),
        ({"graph": "knn"}, "'knn:10'"),
        ({"weights": "none"}, "weights must be"),
    ],
)
def test_wrong_parameters_are_refused(how, words):
    with pytest.raises(FedfuseError, match=words):
        ff.FusionClustering(**how).fit(np.zeros((3, 2)))


def test_too_few_iterations_are_said():
    with pytest.warns(ConvergenceWarning, match="raise max_iter"):
        ff.FusionClustering(max_iter=1, tol=1e-9).fit(problem(100)[0])
