"""Clustered methods: HypCluster, ODCL, FL+HC, StoCFL and Network Lasso against solvers, FedAvg and FPFC-l1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy

import fedfuse as ff
from fedfuse.methods import FLHC, ODCLCC, ODCLKM, HypCluster, NetworkLasso, StoCFL
from fedfuse.methods.clustered.odcl import convex_clusters
from support.common_checks import WORKS, assert_same
from support.planted import Keep, many_sites, planted

OPTIONS = {"tol": 0, "dtype": "float64"}
CLUSTERED = [
    HypCluster(n_models=2), ODCLCC(lam=0.5), ODCLKM(n_models=2), FLHC(threshold=0.5, before=1), StoCFL(tau=0.5),
    NetworkLasso(lam=0.2),
]  # fmt: skip
# Settings are given where validation rows, which ask for predictions, choose too many groups (docs/methods.md).
FINDERS = [
    HypCluster(n_models=2, restarts=5), ODCLCC(), ODCLKM(n_models=2), FLHC(), StoCFL(tau=0.7), NetworkLasso(lam=5.0),
]  # fmt: skip


# -- against solvers


@pytest.mark.parametrize(("lam", "seed"), [(0.01, 0), (0.05, 1), (0.2, 2)])
def test_convex_clustering_equals_a_solver(lam, seed):
    """30 points; the dual is a least-squares problem over balls, whose projected gradient is run to high precision."""
    rng = np.random.default_rng(seed)
    a = np.concatenate([rng.normal(c, 0.3, size=(10, 2)) for c in ((0, 0), (3, 0), (0, 3))])
    i, j = np.triu_indices(30, 1)
    D = np.zeros((len(i), 30))
    D[np.arange(len(i)), i], D[np.arange(len(i)), j] = 1, -1
    # x = a - D'y with ||y_e|| <= lam maximises the dual; accelerated by restarts
    y = v = np.zeros((len(i), 2))
    t = 1.0
    for _ in range(20000):
        new = v + D @ (a - D.T @ v) / 30
        new *= np.minimum(1, lam / np.maximum(np.linalg.norm(new, axis=1, keepdims=True), 1e-300))
        if ((v - new) * (new - y)).sum() > 0:
            t, v = 1.0, y
            continue
        s = (1 + np.sqrt(1 + 4 * t * t)) / 2
        v, y, t = new + (t - 1) / s * (new - y), new, s
    exact = a - D.T @ y
    met = scipy.spatial.distance.cdist(exact, exact) < 1e-6
    labels = convex_clusters(a, lam)
    np.testing.assert_array_equal(met, labels[:, None] == labels)


def test_convex_clustering_of_points_that_coincide_and_of_one():
    assert convex_clusters(np.array([[1.0], [2.0], [1.0]]), 0.0).tolist() == [0, 1, 0]
    assert convex_clusters(np.ones((3, 2)), 0.1).tolist() == [0, 0, 0]
    assert convex_clusters(np.ones((1, 2)), 0.1).tolist() == [0]


@pytest.mark.parametrize(("goal", "seed"), [("regression", 0), ("classification", 1), ("regression", 2)])
def test_network_lasso_on_the_complete_graph_has_the_optimum_of_fpfc_l1(goal, seed):
    federation, lam, options = planted(goal, n=60, noise=1.0, seed=seed), 2.0, {**OPTIONS, "rounds": 800}
    methods = (NetworkLasso(lam=lam, work=WORKS["exact"]), ff.FPFCL1(lam=lam, work=WORKS["exact"]))
    found = []
    for method in methods:
        keep = Keep()
        ff.fit(federation, method, callbacks=[keep], **options)
        found.append(keep.run.state.models)  # before groups are formed, which both do in ways of their own
    values = [objective(federation, keep.run.model, models, lam) for models in found]
    assert values[0] == pytest.approx(values[1], rel=1e-6)
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def objective(federation, model, models, lam):
    losses = model.losses(model.load(federation.rows("train+validation"), np.float64), np.arange(federation.m), models)
    return losses.sum() + lam / federation.m * scipy.spatial.distance.pdist(models).sum()


def test_a_graph_keeps_its_parts_apart():
    """Two triangles without an edge between them, under a large penalty: two groups, each with its pooled fit."""
    federation = planted(m=6)
    triangles = ((0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5))
    result = ff.fit(federation, NetworkLasso(lam=500.0, edges=triangles, work=WORKS["exact"]), rounds=300, **OPTIONS)
    assert result.labels.tolist() == [0, 0, 0, 1, 1, 1]
    d = result.model.d
    assert result.cost_floats == 6 * d + 300 * 6 * (2 + 1 + 1) * d
    with pytest.raises(ff.FedfuseError, match="edges must be pairs of device numbers from 0 to 5"):
        ff.fit(federation, NetworkLasso(lam=1.0, edges=((0, 9),)), rounds=2)


# -- limits


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_hypcluster_with_one_hypothesis_is_fedavg(seed):
    federation = planted("classification", seed=seed)
    methods = (ff.FedAvg(start="normal", work=WORKS["gd"]), HypCluster(n_models=1, work=WORKS["gd"]))
    one, clustered = (ff.fit(federation, m, rounds=12, participation=0.5, **OPTIONS) for m in methods)
    np.testing.assert_allclose(clustered.models, one.models, atol=1e-12)


def test_fl_hc_that_merges_all_is_fedavg():
    federation = planted()
    methods = (FLHC(threshold=1.0, work=WORKS["gd"]), ff.FedAvg(work=WORKS["gd"]))
    whole, one = (ff.fit(federation, method, rounds=12, **OPTIONS) for method in methods)
    np.testing.assert_allclose(whole.models, one.models, atol=1e-12)


def test_odcl_is_the_mean_of_local_fits():
    federation = planted()
    alone = ff.fit(federation, ff.Local(work=WORKS["exact"]), rounds=1, **OPTIONS)
    result = ff.fit(federation, ODCLKM(n_models=1, work=WORKS["exact"]), rounds=9, **OPTIONS)
    n = federation.rows("train+validation").counts
    np.testing.assert_allclose(result.models[0], np.average(alone.models, axis=0, weights=n), atol=1e-12)
    assert result.rounds == 1


# -- what each is for


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("method", FINDERS, ids=lambda m: m.name)
def test_planted_groups_are_found(method, seed):
    federation = many_sites(12, 2, rows=120, seed=seed)
    work = WORKS["gd"] if method.needs_steps else WORKS["exact"]
    result = ff.fit(federation, replace(method, work=work), rounds=400, seed=seed)
    assert result.ari == 1


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_newcomers_of_stocfl_join_the_group_of_their_gradient(seed):
    federation = many_sites(12, 2, rows=120, seed=seed)
    result = ff.fit(federation.only(range(10)), StoCFL(tau=0.7, work=WORKS["exact"]), rounds=30, seed=seed)
    came = result.admit(federation.only([10, 11]))
    assert came.clusters == tuple(result.labels[:2])  # sites take turns
    np.testing.assert_array_equal(came.models, result.models[:2])


# -- elsewhere


@pytest.mark.parametrize("method", CLUSTERED, ids=lambda m: m.name)
def test_workers_compute_the_same(method):
    method = replace(method, work=WORKS["sgd"])
    options, engines = {"rounds": 4, "participation": 0.5, "tol": 0}, ({}, {"engine": "workers", "workers": 2})
    assert_same(*(ff.fit(planted("classification"), method, **options, **how) for how in engines))


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (StoCFL, {"tau": -2.0}, "tau must be a number of at least -1 or auto, got -2"),
        (FLHC, {"threshold": -1.0}, "threshold must be a number of at least 0 or auto, got -1"),
        (ODCLKM, {"n_models": "many"}, "n_models must be a whole number of at least 1 or auto, got 'many'"),
        (NetworkLasso, {"rho": 0.0}, "rho must be a number above 0, got 0"),
    ],
)
def test_settings_out_of_range(kind, settings, words):
    with pytest.raises(ff.FedfuseError, match=words):
        kind(**settings)
