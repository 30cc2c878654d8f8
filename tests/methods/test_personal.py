"""Personal methods: what they are at their limits, what they send, and what each is for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.methods import L2GD, MOCHA, Ditto, FedAMP, FedAvgFT, FedEM, FedPer, FedRep, PFedMe
from fedfuse.methods.personal.mocha import relations
from fedfuse.utils.random import generator
from support.common_checks import WORKS, assert_same
from support.planted import begun, descended, many_sites, planted

# The second and third seed of what takes many seconds.
SEEDS = [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
OPTIONS = {"rounds": 12, "tol": 0, "dtype": "float64"}


def continuous(seed, m=20, p=5, spread=0.5, n=16):
    """Devices whose models differ a little from a common one, by N(0, spread^2): no groups, few rows, noise."""
    rng = np.random.default_rng(seed)
    common, data = 2 * rng.normal(size=p), []
    for _ in range(m):
        X = rng.normal(size=(n + 200, p))
        y = X @ (common + spread * rng.normal(size=p)) + rng.normal(size=n + 200)
        data.append((X, y))
    return ff.Federation.from_arrays(data, goal="regression", seed=seed, test=200 / (n + 200), validation=0.25)


def score(federation, method, **options):
    return float(np.mean(ff.fit(federation, method, tol=0, dtype="float64", **options).scores["test"]))


# -- limits


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize(("goal", "seed"), [("regression", 0), ("classification", 1), ("regression", 2)])
def test_ditto_without_its_term_is_local(goal, work, seed):
    federation = planted(goal, seed=seed)
    alone, ditto = (
        ff.fit(federation, m, **OPTIONS) for m in (ff.Local(work=WORKS[work]), Ditto(lam=0.0, work=WORKS[work]))
    )
    np.testing.assert_array_equal(ditto.models, alone.models)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ditto_with_a_very_large_term_is_fedavg(seed):
    """Personal models are then the model that was sent: one round behind the mean, which is at rest."""
    federation = planted(seed=seed)
    one, ditto = (
        ff.fit(federation, m, rounds=60, tol=0, dtype="float64")
        for m in (ff.FedAvg(work=WORKS["exact"]), Ditto(lam=1e9, work=WORKS["exact"]))
    )
    np.testing.assert_allclose(ditto.models, one.models, atol=1e-6)


class SharesAll(FedPer):
    """FedPer without heads."""

    into = "all"


@pytest.mark.parametrize(("work", "seed"), [("gd", 0), ("sgd", 1), ("gd", 2)])
def test_fedper_with_everything_shared_is_fedavg(work, seed):
    federation, model = planted("classification", seed=seed), ff.MLP(hidden=(4,))
    methods = (ff.FedAvg(work=WORKS[work]), SharesAll(work=WORKS[work]))
    one, per = (ff.fit(federation, m, model=model, participation=0.5, **OPTIONS) for m in methods)
    np.testing.assert_allclose(per.models, one.models, atol=1e-12)


def test_without_a_base_devices_of_fedper_train_alone():
    alone, per = (ff.fit(planted(), m(work=WORKS["gd"]), **OPTIONS) for m in (ff.Local, FedPer))
    np.testing.assert_array_equal(per.models, alone.models)
    assert per.cost_floats == 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pfedme_without_its_term_is_fedavg(seed):
    """With lam = 0 and rate = 1 a step on the envelope is the local work itself."""
    federation = planted(seed=seed)
    methods = (ff.FedAvg(work=WORKS["gd"]), PFedMe(lam=0.0, rate=1.0, local_rounds=1, work=WORKS["gd"]))
    runs = [ff.fit(federation, m, participation=0.5, **OPTIONS) for m in methods]
    np.testing.assert_allclose(runs[1].kept["model"], runs[0].models[0], atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pfedme_with_a_very_large_term_leaves_all_at_one_model(seed):
    result = ff.fit(planted(seed=seed), PFedMe(lam=1e9, work=WORKS["exact"]), **OPTIONS)
    assert np.abs(result.models - result.kept["model"]).max() < 1e-6


def test_personal_models_of_pfedme_are_proximal_points():
    """theta_i(w) minimises f_i + lam/2 ||theta - w||^2, so that theta = w - grad f_i(theta) / lam."""
    federation, lam = planted(), 2.0
    result = ff.fit(federation, PFedMe(lam=lam, work=WORKS["exact"]), **OPTIONS)
    rows = federation.rows("train+validation")
    data = result.model.load(rows, np.float64)
    slopes = result.model.gradients(data, np.arange(6), result.models)
    np.testing.assert_allclose(result.models, result.kept["model"] - slopes / lam, atol=1e-6)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_l2gd_without_its_term_is_training_alone(seed):
    """T steps in each round, the same for all devices; none of them feels another."""
    federation, work = planted(seed=seed), WORKS["gd"]
    result = ff.fit(federation, L2GD(lam=0.0, work=work), **OPTIONS)
    steps = sum(int(generator_of(k)) for k in range(OPTIONS["rounds"]))
    for i in range(federation.m):
        alone = descended(federation, i, np.zeros(4), replace(work, steps=steps))
        np.testing.assert_allclose(result.models[i], alone, atol=1e-9)


def generator_of(k):
    return generator(0, "l2gd", k).geometric([0.1, 0.9])[0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_l2gd_with_a_large_term_is_fedavg_with_the_steps_it_draws(seed):
    federation, work = planted(seed=seed), WORKS["gd"]
    result = ff.fit(federation, L2GD(lam=100.0, work=work), **OPTIONS)
    n, w = federation.rows("train+validation").counts, np.zeros(4)
    for k in range(OPTIONS["rounds"]):
        own = replace(work, steps=int(generator_of(k)))
        w = sum(n[i] * descended(federation, i, w, own) for i in range(6)) / n.sum()
    np.testing.assert_allclose(result.models, np.tile(w, (6, 1)), atol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
def test_l2gd_goes_to_the_penalised_optimum(seed):
    """Of mean f_i(x_i) + lam/2 mean ||x_i - mean x||^2, within the noise of its coin."""
    rng = np.random.default_rng(seed)
    data = [((X := rng.normal(size=(50, 2))), X @ rng.normal(size=2)) for _ in range(4)]
    federation = ff.Federation.from_arrays(data, goal="regression", seed=seed, test=0.1, validation=0.0)
    lam, m, d = 1.0, 4, 3
    result = ff.fit(
        federation,
        L2GD(lam=lam, p=0.3, work=ff.Work(steps=1, lr=0.002)),
        rounds=3000,
        tol=0,
        dtype="float64",
        seed=seed,
    )
    A, b = np.zeros((m * d, m * d)), np.zeros(m * d)
    for i in range(m):
        X, y = federation.rows("train+validation").of(i)
        Z, own = np.column_stack([X, np.ones(len(X))]), slice(i * d, (i + 1) * d)
        A[own, own] += 2 * Z.T @ Z / len(y)
        b[own] += 2 * Z.T @ y / len(y)
    A += lam * np.kron(np.eye(m) - 1 / m, np.eye(d))
    best = np.linalg.solve(A, b).reshape(m, d)
    assert np.abs(result.models - best).max() < 0.06 * np.abs(best).max()


def test_fine_tuning_is_local_steps_from_the_model_of_fedavg():
    federation, work = planted(), WORKS["gd"]
    plain, tuned = (ff.fit(federation, m, **OPTIONS) for m in (ff.FedAvg(work=work), FedAvgFT(tune_steps=3, work=work)))
    for i in range(6):
        w = descended(federation, i, plain.models[i], replace(work, steps=3))
        np.testing.assert_allclose(tuned.models[i], w, atol=1e-12)
    assert tuned.cost_floats == plain.cost_floats


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fedem_with_one_component_is_fedavg(seed):
    federation = planted("classification", seed=seed)
    methods = (ff.FedAvg(start="normal", work=WORKS["gd"]), FedEM(n_models=1, work=WORKS["gd"]))
    one, mixture = (ff.fit(federation, m, participation=0.5, **OPTIONS) for m in methods)
    np.testing.assert_allclose(mixture.models, one.models, atol=1e-10)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("form", ["attentive", "heuristic"])
def test_fedamp_of_one_device_is_local(form, seed):
    federation = planted(m=1, groups=1, seed=seed)
    alone = ff.fit(federation, ff.Local(work=WORKS["exact"]), rounds=2, tol=0, dtype="float64")
    amp = ff.fit(federation, FedAMP(sigma=1.0, form=form, work=WORKS["exact"]), rounds=60, tol=0, dtype="float64")
    np.testing.assert_allclose(amp.models, alone.models, atol=1e-9)


def test_attention_by_hand():
    models = np.array([[0.0, 1.0], [0.0, 2.0], [3.0, 0.0]])
    xi = FedAMP(sigma=2.0).attention(models)
    assert xi[0, 1] == pytest.approx(np.exp(-0.5) / 3)
    np.testing.assert_allclose(xi.sum(axis=1), 1)
    xi = FedAMP(sigma=2.0, form="heuristic", self_weight=0.4).attention(models)
    assert xi[0] == pytest.approx([0.4, 0.6 * np.e**2 / (np.e**2 + 1), 0.6 / (np.e**2 + 1)])


# -- what each is for


@pytest.mark.parametrize("seed", SEEDS)
def test_ditto_beats_local_and_fedavg_where_differences_are_continuous(seed):
    federation, work = continuous(seed), WORKS["exact"]
    ours = score(federation, Ditto(work=work), rounds=400, seed=seed)
    assert ours < score(federation, ff.Local(work=work), rounds=5)
    assert ours < score(federation, ff.FedAvg(work=work), rounds=50)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("method", [PFedMe(work=WORKS["exact"]), L2GD(), FedAvgFT()], ids=lambda m: m.name)
def test_others_beat_fedavg_where_differences_are_continuous(method, seed):
    federation = continuous(seed)
    assert score(federation, method, rounds=600) < score(federation, ff.FedAvg(work=WORKS["exact"]), rounds=50)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fedem_recovers_the_weights_of_a_mixture(seed):
    """Rows of every device come from two lines, in shares of its own.

    The start is the same for all: EM has local optima, and of six starts two end in one.
    """
    rng = np.random.default_rng(seed)
    lines, shares, data = np.array([[3.0, -2.0], [-3.0, 1.0]]), rng.uniform(0.1, 0.9, 10), []
    for share in shares:
        X = rng.normal(size=(300, 2))
        which = rng.random(300) > share
        data.append((X, np.einsum("np,np->n", X, lines[which.astype(int)]) + 0.5 * rng.normal(size=300)))
    federation = ff.Federation.from_arrays(data, goal="regression", seed=seed)
    result = ff.fit(federation, FedEM(n_models=2), rounds=100, tol=0)
    components, weights = result.kept["all"], result.kept["weights"]
    first = int(np.argmin(np.linalg.norm(components[:, :2] - lines[0], axis=1)))
    assert np.linalg.norm(components[first, :2] - lines[0]) < 0.2
    assert np.linalg.norm(components[1 - first, :2] - lines[1]) < 0.2
    assert np.abs(weights[:, first] - shares).max() < 0.15


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_mocha_learns_how_tasks_are_related(seed):
    """Tasks of one half are the other half's with the sign changed: correlations have these signs, and help."""
    rng = np.random.default_rng(seed)
    common, data = 2 * rng.normal(size=6), []
    for i in range(12):
        X = rng.normal(size=(212, 6))
        w = (1 if i < 6 else -1) * common + 0.3 * rng.normal(size=6)
        data.append((X, X @ w + rng.normal(size=212)))
    federation = ff.Federation.from_arrays(data, goal="regression", seed=seed, test=200 / 212, validation=0.0)
    work, options = WORKS["exact"], {"tol": 0, "dtype": "float64"}
    result = ff.fit(federation, MOCHA(lam=1.0, work=work), rounds=200, **options)
    sigma = result.kept["relations"]
    half = np.where(np.arange(12) < 6, 1, -1)
    signs = np.outer(half, half)
    assert (np.sign(sigma) == signs).all()
    assert np.trace(sigma) == pytest.approx(1)
    ours = result.scores["test"].mean()
    for other in (ff.Local(work=work), ff.FedAvg(work=work)):
        assert ours < ff.fit(federation, other, rounds=30, **options).scores["test"].mean()


def test_mocha_does_not_end_before_its_relations_rest():
    """Exact local work rests within a few rounds; relations are learned in every tenth."""
    result = ff.fit(planted(), MOCHA(lam=0.3, work=WORKS["exact"]), rounds=300, dtype="float64")
    assert result.converged
    assert result.rounds >= 20
    assert np.abs(result.kept["relations"] - relations(result.models)).max() < 1e-3


def test_mocha_lowers_its_objective_in_every_round():
    federation, lam = planted(), 0.3
    method = MOCHA(lam=lam, every=10**6, work=WORKS["exact"])
    run = begun(federation, method, participation=0.5, rounds=15)
    data = run.model.load(federation.rows("train+validation"), np.float64)
    values = []
    for _ in range(15):
        run.round()
        w = run.state.models
        values.append(run.model.losses(data, np.arange(6), w).sum() + lam / 2 * np.square(w).sum())
    assert (np.diff(values) <= 1e-12).all()
    best = run.model.train(data, np.arange(6), np.zeros((6, 4)), np.zeros((6, 4)), lam, WORKS["exact"])
    least = run.model.losses(data, np.arange(6), best).sum() + lam / 2 * np.square(best).sum()
    assert values[-1] == pytest.approx(least, rel=1e-3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_fedamp_beats_local_and_fedavg_where_there_are_groups(seed):
    federation = many_sites(24, 3, rows=20, seed=seed)
    ours = score(federation, FedAMP(sigma=10.0, work=WORKS["exact"]), rounds=60)
    assert ours < score(federation, ff.Local(work=WORKS["exact"]), rounds=3)
    assert ours < score(federation, ff.FedAvg(work=WORKS["exact"]), rounds=10)


def heads_differ(seed, m=15, p=20, k=2, n=20):
    """One linear representation of rank k for all, another head for each device (Collins and others, 5.1)."""
    rng = np.random.default_rng(seed)
    B, data = np.linalg.qr(rng.normal(size=(p, k)))[0], []
    for _ in range(m):
        X = rng.normal(size=(n + 100, p))
        data.append((X, X @ B @ rng.normal(0, 2, k) + 0.1 * rng.normal(size=n + 100)))
    return ff.Federation.from_arrays(data, goal="regression", seed=seed, test=100 / (n + 100), validation=0.0)


def low_rank(seed):
    import torch
    from torch import nn

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ff.TorchModel(nn.Sequential(nn.Linear(20, 2, bias=False), nn.Linear(2, 1)), loss="mse")


@pytest.mark.parametrize("seed", SEEDS)
def test_fedrep_where_only_heads_differ(seed):
    """It comes near the noise; devices alone have too few rows, and one head for all is of no use."""
    federation, model, work = heads_differ(seed), low_rank(seed), ff.Work(steps=5, lr=0.02)
    options = {"model": model, "rounds": 100, "seed": seed}
    alone, one = (score(federation, m(work=work), **options) for m in (ff.Local, ff.FedAvg))
    rep = score(federation, FedRep(head_steps=10, work=work), **options)
    assert rep < 0.3 * alone
    assert rep < 0.2 * one
    assert score(federation, FedPer(work=work), **options) < min(alone, one)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_heuristic_form_is_for_networks_in_groups(seed):
    federation = planted("classification", m=12, n=24, p=6, groups=2, seed=seed, test=0.5)
    options = {"model": ff.MLP(hidden=(4,)), "rounds": 40, "seed": seed}
    amp = FedAMP(sigma=10.0, form="heuristic", work=ff.Work(steps=5, lr=0.1))
    ours, alone, one = (
        score(federation, m, **options) for m in (amp, ff.Local(work=amp.work), ff.FedAvg(work=amp.work))
    )
    assert ours >= alone
    assert ours > one


# -- what is sent


def test_a_search_of_ditto_asks_devices_to_score_their_own_models():
    """Two candidates, one round each: a model down and up, then one number up from each device."""
    federation = planted()
    search = ff.fit(federation, Ditto(work=WORKS["exact"]), rounds=12, tol=0)
    d, m = 4, 6
    rows = search.history["stage"].to_list()
    tried, judged, trained = rows.count("trying"), rows.count("judging"), rows.count("ditto")
    openings = judged + 1  # one for each candidate, and one for the training
    assert search.cost_floats == openings * m * d + (tried + trained) * m * 2 * d + judged * m


def test_a_search_for_lam_is_none_for_groups():
    result = ff.fit(planted(), Ditto(work=WORKS["exact"]), rounds=12, tol=0)
    assert result.method["lam"] == "auto"
    assert not result.cut_short


PERSONAL = [Ditto(lam=0.5), FedPer(), FedRep(), PFedMe(lam=1.0), L2GD(lam=0.3), FedAvgFT(), FedEM(n_models=2)]


@pytest.mark.parametrize("method", [*PERSONAL, FedAMP(sigma=1.0)], ids=lambda m: m.name)
def test_workers_compute_the_same(method):
    method = replace(method, work=WORKS["sgd"])
    options = {"rounds": 4, "participation": 0.5, "tol": 0, "model": ff.MLP(hidden=(4,))}
    engines = ({}, {"engine": "workers", "workers": 2})
    assert_same(*(ff.fit(planted("classification"), method, **options, **how) for how in engines))


@pytest.mark.parametrize("method", PERSONAL, ids=lambda m: m.name)
def test_newcomers_get_a_model_of_their_own(method):
    federation = planted(m=8)
    result = ff.fit(federation.only(range(6)), replace(method, work=WORKS["gd"]), rounds=20)
    joined = result.admit(federation.only([6, 7]))
    assert np.isfinite(joined.models).all()
    assert (joined.models[0] != joined.models[1]).any()
