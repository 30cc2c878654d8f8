"""FedProx and SCAFFOLD: what they are at their limits, and what SCAFFOLD is for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.methods import FedProx, Scaffold
from support.common_checks import WORKS, assert_same
from support.planted import begun, descended, gradient, planted

OPTIONS = {"rounds": 12, "participation": 0.5, "tol": 0, "dtype": "float64"}


def unequal(seed, m=6, p=3):
    """Quadratics with other curvatures and other minima, so that local steps lead away from the pooled optimum."""
    rng = np.random.default_rng(seed)
    data = []
    for i in range(m):
        X = rng.normal(size=(60 + 20 * i, p)) * rng.uniform(0.3, 1.5, p)
        data.append((X, X @ rng.normal(0, 2, p) + rng.normal()))
    return ff.Federation.from_arrays(data, goal="regression", test=0.1, validation=0.0, seed=seed)


def pooled(federation):
    rows = federation.rows("train+validation")
    X, y = (np.concatenate(parts) for parts in zip(*(rows.of(i) for i in range(federation.m)), strict=True))
    return np.linalg.lstsq(np.column_stack([X, np.ones(len(X))]), y, rcond=None)[0]


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize(("goal", "seed"), [("regression", 0), ("classification", 1), ("regression", 2)])
def test_fedprox_without_its_term_is_fedavg(goal, work, seed):
    federation = planted(goal, seed=seed)
    plain, prox = (
        ff.fit(federation, m, **OPTIONS) for m in (ff.FedAvg(work=WORKS[work]), FedProx(mu=0.0, work=WORKS[work]))
    )
    np.testing.assert_array_equal(prox.models, plain.models)
    assert prox.cost_floats == plain.cost_floats  # the anchor is what was sent: it is not sent again


def test_fedprox_by_hand():
    federation, work = planted(m=3), ff.Work(steps=4, lr=0.05)
    result = ff.fit(federation, FedProx(mu=0.7, work=work), rounds=2, tol=0, dtype="float64")
    n, w = federation.rows("train+validation").counts, np.zeros(4)
    for _ in range(2):
        w = sum(n[i] * descended(federation, i, w, work, anchor=w, rho=0.7) for i in range(3)) / n.sum()
    np.testing.assert_allclose(result.models[0], w, atol=1e-12)


def test_fedprox_holds_all_of_a_network():
    """A large term holds the shared weights too, not only those that other methods fuse."""
    federation = planted("classification")
    options = {"rounds": 3, "tol": 0, "model": ff.MLP(hidden=(4,))}
    work = ff.Work(steps=4, lr=0.01)
    start = ff.fit(federation, ff.FedAvg(work=ff.Work(steps=1, lr=1e-9)), **options).models[0]
    free, held = (ff.fit(federation, FedProx(mu=mu, work=work), **options).models[0] for mu in (0.0, 50.0))
    cut = ff.MLP(hidden=(4,)).sized(3, 3).fused.start
    for part in (slice(0, cut), slice(cut, None)):
        assert np.linalg.norm((held - start)[part]) < 0.7 * np.linalg.norm((free - start)[part])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scaffold_reaches_the_pooled_optimum_and_fedavg_does_not(seed):
    federation, work = unequal(seed), ff.Work(steps=10, lr=0.1)
    options = {"rounds": 600, "tol": 0, "dtype": "float64", "seed": seed}
    aim = pooled(federation)
    plain, corrected = (ff.fit(federation, m(work=work), **options).models[0] for m in (ff.FedAvg, Scaffold))
    assert np.linalg.norm(corrected - aim) < 1e-6 * np.linalg.norm(aim)
    assert np.linalg.norm(plain - aim) > 1e-2 * np.linalg.norm(aim)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fedprox_drifts_less_than_fedavg(seed):
    """Devices that go to the end of their own problems: the term keeps the mean nearer the pooled optimum."""
    federation, work = unequal(seed), WORKS["exact"]
    options, aim = {"rounds": 200, "tol": 0, "dtype": "float64", "seed": seed}, pooled(federation)
    methods = (ff.FedAvg(work=work), FedProx(mu=1.0, work=work))
    free, held = (ff.fit(federation, method, **options).models[0] for method in methods)
    assert np.linalg.norm(held - aim) < 0.7 * np.linalg.norm(free - aim)


def test_scaffold_by_hand():
    """Option II, written out: two rounds with everybody, equal weights."""
    federation, work = planted(m=3), ff.Work(steps=3, lr=0.05)
    result = ff.fit(federation, Scaffold(work=work, weights="equal"), rounds=3, tol=0, dtype="float64")
    x, c = np.zeros(4), np.zeros((3, 4))
    for _ in range(3):
        mean, y = c.mean(axis=0), []
        for i in range(3):
            w = x.copy()
            for _ in range(3):
                w = w - 0.05 * (gradient(federation, i, w) - c[i] + mean)
            y.append(w)
        c = c - mean + (x - np.array(y)) / (3 * 0.05)
        x = np.mean(y, axis=0)
    np.testing.assert_allclose(result.models[0], x, atol=1e-12)


def test_controls_are_the_mean_gradients_of_the_steps_also_with_momentum():
    federation = planted("classification")
    work = ff.Work(steps=2, lr=1e-6, momentum=0.9, batch=1000)
    run = begun(federation, Scaffold(work=work), ff.MLP(hidden=(4,)), dtype="float64", rounds=1)
    run.round()
    data = run.model.load(federation.rows("train+validation"), np.float64)
    start = np.tile(run.rule.init(run.info).models[0], (6, 1))
    slopes = run.model.gradients(data, np.arange(6), start)
    np.testing.assert_allclose(run.state.controls, slopes, rtol=1e-3, atol=1e-4)


def test_steps_must_be_known():
    with pytest.raises(ff.FedfuseError, match="scaffold needs the same number of steps"):
        Scaffold(work=ff.Work(steps=ff.Uneven(5)))
    with pytest.raises(ff.FedfuseError, match="scaffold takes gradient steps: it needs solver='gd', got 'exact'"):
        Scaffold(work=ff.Work(solver="exact"))
    with pytest.raises(ff.FedfuseError, match="mu must be a number of at least 0 or auto, got -1"):
        FedProx(mu=-1)


@pytest.mark.parametrize("method", [FedProx(mu=0.1), Scaffold()], ids=lambda m: m.name)
def test_workers_compute_the_same(method):
    method, options = replace(method, work=WORKS["sgd"]), {**OPTIONS, "rounds": 4}
    assert_same(*(ff.fit(planted(), method, **options, **how) for how in ({}, {"engine": "workers", "workers": 2})))
