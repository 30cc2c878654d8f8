"""Clustered methods that are made of others: HypCluster against FedAvg."""

from __future__ import annotations

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.methods import HypCluster
from support.common_checks import WORKS
from support.planted import many_sites, planted


def test_hypcluster_with_one_hypothesis_is_fedavg():
    federation = planted("classification")
    methods = (ff.FedAvg(start="normal", work=WORKS["gd"]), HypCluster(n_models=1, work=WORKS["gd"]))
    options = {"rounds": 12, "participation": 0.5, "tol": 0, "dtype": "float64"}
    one, clustered = (ff.fit(federation, m, **options) for m in methods)
    np.testing.assert_allclose(clustered.models, one.models, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_hypcluster_finds_planted_groups(seed):
    federation = many_sites(12, 2, rows=120, seed=seed)
    result = ff.fit(federation, HypCluster(n_models=2, restarts=5, work=WORKS["exact"]), rounds=400, seed=seed)
    assert result.ari == 1


def test_cost_of_hypcluster():
    result = ff.fit(planted(m=10, n=20), HypCluster(n_models=2), rounds=7, participation=0.3, tol=0)
    d = 4
    assert result.cost_floats == 3 * 2 * d + 6 * 3 * (2 * d + d + 2)
