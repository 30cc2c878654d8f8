"""Personal models and the verdict, in whole runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.grouping import personal
from support.interruption import resumed_at
from support.planted import planted


def continuous(seed=0, m=40, n=14, p=3, spread=0.7, *, classes=False, noise=1.0):
    """Devices that differ from each other a little, in no groups."""
    rng = np.random.default_rng(seed)
    data = {}
    for i in range(m):
        w = np.array([1.0, -1.0, 0.5]) + spread * rng.normal(size=p)
        X = rng.normal(size=(n, p))
        y = X @ w + spread * rng.normal() + noise * rng.normal(size=n)
        data[f"site {i}"] = (X, (y > 0).astype(int) if classes else y)
    return ff.Federation.from_arrays(data, seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_where_devices_differ_continuously_their_own_models_are_used(seed):
    result = ff.fit(continuous(seed))
    scores = result.comparison()
    assert result.verdict == "personal"
    assert scores["personal"] == pytest.approx(result.score("test"))
    assert scores["personal"] < min(scores["groups"], scores["pooled"])
    assert scores["personal"] <= 1.02 * scores["alone"]


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_where_groups_are_true_their_models_are_used(goal):
    result = ff.fit(planted(goal, m=12, n=120, groups=3))
    assert result.ari == 1
    assert result.verdict == "groups"
    np.testing.assert_array_equal(result.in_use, result.models)


def test_one_model_for_all():
    result = ff.fit(planted(m=12, n=60, groups=1))
    assert result.verdict == "pooled"
    assert result.comparison()["pooled"] == result.comparison()["groups"] == result.score("test")


def test_far_apart_devices_stay_alone():
    result = ff.fit(continuous(spread=30.0, n=60))
    assert result.verdict in ("alone", "personal", "groups")
    assert result.score("test") <= 1.02 * result.comparison()["alone"]


def test_classes_too():
    federation = continuous(1, n=60, spread=1.5, classes=True, noise=0.5)
    result = ff.fit(federation)
    scores = result.comparison()
    assert result.verdict in ("personal", "alone")
    assert result.score("test") > scores["pooled"]


def test_empirical_bayes_learns_how_much_devices_differ():
    """The variances around the centre are those that were planted, and so is the noise."""
    federation = continuous(3, m=300, n=30, spread=0.6, noise=0.8)
    result = ff.fit(federation, ff.FusionTree())
    kept = result.kept
    scale = kept["scale"]
    expected = np.square(0.6 * scale[:3] / scale[3])
    factor = kept["variances"][:3] / expected
    assert result.verdict == "personal"
    # The strength may be chosen three times stronger or weaker, the same for all columns.
    np.testing.assert_allclose(factor / np.median(factor), 1, rtol=0.35)
    assert 0.25 <= np.median(factor) <= 4
    assert kept["personal"][0] == pytest.approx(np.square(0.8 / scale[3]), rel=0.25)


def test_predictions_come_from_the_model_in_use(tmp_path):
    federation = continuous()
    result = ff.fit(federation, out=tmp_path / "run")
    X = np.ones((2, 3))
    own = result.alternatives["personal"][5]
    expected = X @ own[:-1] + own[-1]
    np.testing.assert_allclose(result.predict("site 5", X), expected, rtol=1e-5)
    again = ff.Result.load(tmp_path / "run")
    assert again.verdict == "personal"
    assert again.comparison() == result.comparison()
    np.testing.assert_array_equal(again.predict("site 5", X), result.predict("site 5", X))


def test_groups_alone():
    result = ff.fit(continuous(), ff.FusionTree(personal=False))
    assert result.verdict is None
    assert not result.alternatives
    assert result.summary()["verdict"] in ("groups", "pooled")


def test_a_path_of_lambdas_has_them_too():
    result = ff.fit(continuous(), ff.FPFC(lam="auto"))
    assert result.verdict == "personal"


def test_resumed_in_every_step_equals_uninterrupted(tmp_path):
    federation = continuous(m=10)
    whole = ff.fit(federation, participation=0.5)
    stops = range(whole.history["stage"].tolist().index("judge groups"), whole.rounds, 3)
    for resumed in resumed_at(stops, federation, ff.FusionTree(), tmp_path / "run", participation=0.5):
        assert resumed.verdict == whole.verdict
        assert resumed.cost_floats == whole.cost_floats
        np.testing.assert_array_equal(resumed.in_use, whole.in_use)


def test_worker_processes_find_the_same():
    federation = continuous(m=8)
    here, there = ff.fit(federation), ff.fit(federation, engine="workers", workers=2)
    assert here.verdict == there.verdict
    np.testing.assert_allclose(there.in_use, here.in_use, rtol=1e-6, atol=1e-7)


def test_newcomers_have_models_of_their_own():
    federation = continuous(5, m=41)
    arrays = {name: federation.rows("all").of(i) for i, name in enumerate(federation.names)}
    last = federation.names[-1]
    old = ff.Federation.from_arrays({name: rows for name, rows in arrays.items() if name != last})
    result = ff.fit(old)
    came = result.admit({last: arrays[last]}, test=0.0)
    group = result.models[result.labels == came.clusters[0]][0] if came.clusters[0] is not None else None
    assert group is None or not np.allclose(came.models[0], group)


def test_estimators_use_them():
    federation = continuous(2)
    rows = federation.rows("all")
    site = np.repeat(federation.names, rows.counts)
    model = ff.GroupedRegressor().fit(rows.X, rows.y, groups=site)
    assert model.verdict_ == "personal"
    assert model.device_coef_.shape == (40, 3)
    place = int(np.flatnonzero(model.groups_ == "site 7")[0])
    expected = model.device_coef_[place].sum() + model.device_intercept_[place]
    assert model.predict(np.ones((1, 3)), groups=["site 7"])[0] == pytest.approx(expected)
    with pytest.warns(UserWarning, match="fallback"):
        model.predict(np.ones((1, 3)), groups=["elsewhere"])
    assert not model.known_rows(np.ones((1, 3)), ["elsewhere"])[0]


def test_what_is_sent_is_bounded(monkeypatch):
    """With many groups a device judges the nearest of them."""
    monkeypatch.setattr(personal, "MAX_JUDGED_GROUPS", 2)
    few = ff.fit(planted(m=12, n=60, groups=4))
    monkeypatch.undo()
    many = ff.fit(planted(m=12, n=60, groups=4))
    sent = [next(s["floats"] for s in r.stages if s["name"] == "judge groups") for r in (few, many)]
    assert few.verdict == many.verdict == "groups"
    assert sent[1] - sent[0] == 12 * 2 * few.model.d


def test_devices_that_do_not_answer_keep_their_groups_models():
    result = ff.fit(continuous(m=12), lossy="lost:0.3")
    assert result.verdict is not None
    assert np.isfinite(result.in_use).all()


def own_heads(personal, m=8, n=120, columns=6, seed=0):
    """Two groups; with ``personal``, devices differ as much again within them."""
    rng = np.random.default_rng(seed)
    base, data = rng.normal(size=(2, 3, columns)), []
    for i in range(m):
        X, W = rng.normal(size=(n, columns)), base[i % 2] + personal * rng.normal(size=(3, columns))
        data.append((X, (2 * np.tanh(X) @ W.T + rng.gumbel(size=(n, 3))).argmax(axis=1)))
    return ff.Federation.from_arrays(data, truth=np.arange(m) % 2, seed=seed)


@pytest.mark.parametrize(("personal", "engine"), [(0.0, "inprocess"), (1.0, "workers")])
def test_networks_have_last_layers_of_their_own(personal, engine, tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    method = ff.FusionTree(work=ff.Work(steps=20, lr=0.1, batch=20, unit="batches"))
    model = ff.TorchModel(network, fused="all")
    federation = own_heads(personal)
    result = ff.fit(federation, method, model=model, rounds=20, engine=engine, out=tmp_path)
    assert result.verdict == ("personal" if personal else "groups")
    scores, own = result.comparison(), result.alternatives["personal"]
    assert (own[:, :112] == result.models[:, :112]).all()  # the first layer
    assert (own[:, 112:] != result.models[:, 112:]).any(axis=1).all()
    assert result.stages[-1]["name"] == "judge own models"
    assert result.stages[-1]["floats"] == 8 * (163 + 1 + 5 + 6)
    if personal:
        assert scores["personal"] > scores["groups"]
        assert result.score("test") == scores["personal"]
        came = result.admit(own_heads(personal, m=1, seed=1))
        assert came.models.shape == (1, 163)


def large(spread, groups=1, seed=0, m=12, n=200, p=30, classes=9):
    """Devices with more parameters than empirical Bayes takes, which differ by degrees and, or, by groups."""
    rng = np.random.default_rng(seed)
    models = 0.7 * rng.normal(size=(groups, classes, p))
    data = []
    for i in range(m):
        W, X = models[i % groups] + spread * rng.normal(size=(classes, p)), rng.normal(size=(n, p))
        data.append((X, (X @ W.T + rng.gumbel(size=(n, classes))).argmax(axis=1)))
    return ff.Federation.from_arrays(data, truth=[i % groups for i in range(m)], seed=seed)


def test_large_models_that_differ_by_degrees_are_drawn_to_their_groups():
    result = ff.fit(large(0.4))
    scores = result.comparison()
    assert result.model.d > personal.MAX_PARAMETERS
    assert result.verdict == "personal"
    assert scores["personal"] == pytest.approx(result.score("test"))
    assert scores["personal"] > max(scores["groups"], scores["alone"], scores["pooled"]) + 0.02
    sent = {stage["name"]: stage["floats"] for stage in result.stages}
    assert sent["judge own models"] == 12 * (result.model.d + 1 + 8 + 9)


def test_large_models_of_true_groups_are_used():
    result = ff.fit(large(0.0, groups=2, n=400))
    assert result.ari == 1
    assert result.verdict == "groups"
    assert result.comparison()["groups"] > result.comparison()["alone"]


def test_a_large_model_is_drawn_as_far_as_it_says():
    """What a device has at home is the minimum of its losses and of the distance to its group's model."""
    federation = large(0.4)
    result = ff.fit(federation, dtype="float64")
    drawn, alone = result.kept["drawn"]
    rows = federation.rows("train+validation")
    shift, scale = result.kept["shift"], result.kept["scale"]
    y = rows.of(3)[1]
    scaled = replace(rows, X=(rows.X - shift) / scale)
    model = result.model
    for name, variance in (("personal", drawn), ("alone", alone)):
        centre = model.unscaled(result.models[3], -shift / scale, 1 / scale) * (name == "personal")
        w = model.unscaled(result.alternatives[name][3], -shift / scale, 1 / scale)
        ridge = 2.0 ** np.rint(-np.log2(variance * len(y)))
        slope = model.gradients(model.load(scaled, np.float64), np.array([3]), w[None])[0] + ridge * (w - centre)
        assert np.abs(slope).max() < 1e-6


def test_of_many_devices_a_sample_judges(monkeypatch):
    """What is asked in all does not grow; every device has a model of its own all the same."""
    monkeypatch.setattr(personal, "MAX_JUDGES", 20)
    result = ff.fit(continuous(m=60))
    sent = {stage["name"]: stage["floats"] for stage in result.stages}
    few = {stage["name"]: stage["floats"] for stage in ff.fit(continuous(m=20)).stages}
    assert sent["judge personal"] <= few["judge personal"] * 1.5
    assert result.verdict == "personal"
    assert (result.in_use != result.models).any(axis=1).all()
