"""Solution paths: optimality, and the three findings of the paper's Figure 1."""

import numpy as np
import pytest

from fedfuse.core import penalties
from fedfuse.paper.solution_path import Quadratics, figure_1, solution_path, toy

POINTS = np.array([[-1.2, 0.0], [-1.0, 0.2], [1.0, 0.1], [1.1, -0.1], [1.3, 0.0]])
ONES = Quadratics(POINTS, np.ones(5))


@pytest.mark.parametrize("name", ["l1", "l2"])
def test_convex_paths_minimise_the_objective(name):
    """Against the objective itself: no small step from the estimates makes it less."""
    grid = [0.0, 0.05, 0.2, 0.6]
    path = solution_path(ONES, name, grid, tol=1e-8)
    rng = np.random.default_rng(0)
    for lam, omega in zip(grid, path.estimates, strict=True):

        def objective(w, lam=lam):
            distances = np.linalg.norm(w[:, None] - w[None], axis=2)
            pairs = penalties.PENALTIES[name](lam).value(distances).sum() / (2 * len(w))
            return 0.5 * np.square(w - POINTS).sum() + pairs

        least = objective(omega)
        for scale in (1e-1, 1e-2, 1e-3):
            assert all(objective(omega + scale * rng.normal(size=omega.shape)) >= least - 1e-7 for _ in range(50))


def test_squared_l2_has_a_closed_form():
    lam = 0.3
    path = solution_path(ONES, "l2", [lam], tol=1e-9)
    mean = POINTS.mean(axis=0)  # (w - e) + 2 lam (w - mean) = 0
    np.testing.assert_allclose(path.estimates[0], mean + (POINTS - mean) / (1 + 2 * lam), atol=1e-6)


@pytest.mark.parametrize("name", ["scad", "smoothed-scad", "mcp"])
def test_folded_concave_penalties_find_the_groups_without_bias(name):
    path = solution_path(Quadratics(POINTS, np.full(5, 0.2)), name, [0, 0.2, 0.4], tol=1e-7)
    assert path.labels[-1].tolist() == [0, 0, 1, 1, 1]
    np.testing.assert_allclose(path.estimates[-1][0], POINTS[:2].mean(axis=0), atol=2e-3)
    np.testing.assert_allclose(path.estimates[-1][4], POINTS[2:].mean(axis=0), atol=2e-3)


def test_lambda_zero_is_every_device_alone():
    path = solution_path(ONES, "scad", [0.0])
    np.testing.assert_array_equal(path.estimates[0], POINTS)
    assert path.n_clusters.tolist() == [5]


def test_curvature_is_the_weight_of_a_device():
    heavy = Quadratics(np.array([[0.0], [1.0]]), np.array([9.0, 1.0]))
    path = solution_path(heavy, "l1", [5.0], tol=1e-9)
    np.testing.assert_allclose(path.estimates[0], 0.1, atol=1e-5)


@pytest.fixture(scope="module")
def figure():
    return {path.penalty: path for path in figure_1(points=21)}


def test_figure_1_squared_l2_never_fuses(figure):
    path = figure["l2"]
    assert (path.n_clusters == 50).all()
    spread = np.ptp(path.estimates[:, :, 0], axis=1)
    assert (np.diff(spread) < 0).all()  # they come nearer and nearer


def test_figure_1_l1_merges_everything_before_it_finds_groups(figure):
    path = figure["l1"]
    merged = path.grid[path.n_clusters == 1]
    assert 0.07 < merged[0] < 0.1
    assert not (path.ari == 1).any()


@pytest.mark.parametrize("name", ["scad", "smoothed-scad"])
def test_figure_1_scad_separates_from_about_04_on(figure, name):
    path = figure[name]
    right = path.grid[path.ari == 1]
    assert 0.3 < right[0] < 0.45
    assert right[-1] > 0.5
    at = path.estimates[np.flatnonzero(path.ari == 1)[0], :, 0]
    assert at[path.truth == 0].mean() == pytest.approx(-1, abs=0.2)
    assert at[path.truth == 1].mean() == pytest.approx(1, abs=0.2)
    assert np.ptp(at[path.truth == 0]) < 1e-3


def test_toy_has_two_groups():
    data = toy(m=10)
    assert data.truth.tolist() == [0] * 5 + [1] * 5
    assert data.curvature.mean() == pytest.approx(2 / 10, rel=0.2)
