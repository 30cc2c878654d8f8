"""Weights of classes and of rows in whole runs: what they decide, and where they are refused."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score

import fedfuse as ff
from fedfuse.results.result import Result
from fedfuse.training.evaluation import Baselines
from support.planted import planted


def visits(m=6, rows=400, seed=0):
    """Sites with one model and about 5 % ill rows."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(m * rows, 2))
    ill = rng.random(len(X)) < expit(X @ [2.0, -1.0] - 4)
    names = {"site": np.repeat([f"s{i}" for i in range(m)], rows), "ill": np.where(ill, "yes", "no")}
    return pd.DataFrame(X, columns=["a", "b"]).assign(**names)


def learned(federation):
    rows = federation.rows("train+validation")
    index = np.concatenate([np.arange(a, b) for a, b in zip(rows.start, rows.stop, strict=True)])
    return rows.X[index], rows.y[index]


@pytest.mark.parametrize("given", ["balanced", {"yes": 7, "no": 2}, "yes=3.5"])
def test_class_weights_move_the_decision_as_in_scikit_learn(given):
    federation = ff.Federation.from_frame(visits(), device="site", target="ill")
    plain, result = ff.fit(federation), ff.fit(federation, class_weight=given)
    assert result.n_clusters == 1
    X, y = learned(federation)
    known = "balanced" if given == "balanced" else {0: 1, 1: 3.5}
    by_hand = LogisticRegression(C=1e8, class_weight=known, tol=1e-8).fit(X, y)
    w = result.model.coefficients(result.cluster_models[0].astype(float))
    np.testing.assert_allclose((w[1] - w[0])[:-1], by_hand.coef_[0], atol=0.05)
    assert (w[1] - w[0])[-1] == pytest.approx(by_hand.intercept_[0], abs=0.05)
    found, usual = (np.argmax(r.outputs(0, federation.X), axis=1) for r in (result, plain))
    assert (found == by_hand.predict(federation.X)).mean() > 0.995
    assert recall_score(federation.y, found) > recall_score(federation.y, usual) + 0.1
    assert result.profile.class_weights == federation.class_weights(given)


def test_scores_are_without_class_weights_and_baselines_with_them():
    federation = ff.Federation.from_frame(visits(), device="site", target="ill")
    result = ff.fit(federation, class_weight="balanced")
    with pytest.raises(ff.FedfuseError, match="this run has weights"):
        result.infer(federation)
    rows = federation.rows("test")
    right = [np.mean(result.outputs(i, rows.of(i)[0]).argmax(1) == rows.of(i)[1]) for i in range(federation.m)]
    np.testing.assert_allclose(result.scores["test"], right)
    plain, fair = (
        np.mean(Baselines.of(federation, result.model, "balanced-accuracy", w).scores["pooled"].sum(axis=0)[3])
        for w in ((), result.profile.class_weights)
    )
    assert fair > plain  # more of the ill are found


def test_one_model_for_all_has_the_class_weights_too():
    federation = planted("classification", m=6, n=60, noise=1.0)
    weights = {0: 1, 1: 9}
    result = ff.fit(federation, class_weight=weights)
    assert result.n_clusters > 1
    baseline = Baselines.of(federation, result.model, class_weights=result.profile.class_weights)
    assert result.comparison()["pooled"] == pytest.approx(np.mean(baseline.scores["pooled"]))
    plain = Baselines.of(federation, result.model)
    assert np.mean(plain.scores["pooled"]) != pytest.approx(np.mean(baseline.scores["pooled"]))


def test_class_weights_do_not_add_information():
    """Rows with unequal weights tell as much as fewer equal ones: else every grouping would look wrong."""
    frame = visits(m=8)
    federation = ff.Federation.from_frame(frame, device="site", target="ill")
    of_class = np.array(federation.class_weights("balanced"))[federation.y]
    weights = federation.weighted(federation.class_weights("balanced")).weights
    np.testing.assert_allclose(weights / weights[0], of_class / of_class[0])
    assert weights.sum() == pytest.approx(of_class.sum() ** 2 / np.square(of_class).sum())
    same = federation.weighted((2.0, 2.0))
    np.testing.assert_allclose(same.weights, 1)
    sites = np.repeat(np.where(np.arange(8) < 4, 1, -1), 400)
    rng = np.random.default_rng(1)
    ill = rng.random(len(frame)) < expit(3 * sites * frame["a"] - 3)
    federation = ff.Federation.from_frame(frame.assign(ill=np.where(ill, "yes", "no")), device="site", target="ill")
    result = ff.fit(federation, class_weight="balanced")
    assert result.labels.tolist() == [0] * 4 + [1] * 4
    assert not result.suspects.size
    assert not result.capped  # sites with few ill rows claim no more rows than they have
    assert result.stability > 0.8


def test_class_weights_on_the_command_line(fedfuse):
    visits().to_csv("v.csv", index=False)
    words = ("--device", "site", "--target", "ill", "--no-report", "--no-baselines", "--json")
    status, out, _ = fedfuse("run", "v.csv", *words, "--class-weight", "no=1,yes=9", "--metric", "f1", "--out", "run")
    assert status == 0
    assert json.loads(out)["metric"] == "f1"
    assert Result.load("run").profile.class_weights == (1.0, 9.0)
    for given, why in (("no=1,maybe=2", "classes are no, yes"), ("yes=-1", "positive numbers by class")):
        status, _, err = fedfuse("run", "v.csv", *words, "--class-weight", given, "--out", "other")
        assert (status, why in err) == (2, True)


def test_probabilities_have_a_column_for_each_class(fedfuse):
    visits().to_csv("v.csv", index=False)
    fedfuse("run", "v.csv", "--device", "site", "--target", "ill", "--no-report", "--no-baselines", "--out", "run")
    for word, columns in (("--proba", ["p(no)", "p(yes)"]), ("--no-proba", [])):
        assert fedfuse("predict", "run", "v.csv", word, "--out", "p.csv")[0] == 0
        answer = pd.read_csv("p.csv")
        assert list(answer.columns)[answer.columns.get_loc("prediction") :] == ["prediction", *columns]
    visits().assign(ill=1.5).reset_index(names="dose").to_csv("n.csv", index=False)
    fedfuse("run", "n.csv", "--device", "site", "--target", "dose", "--no-report", "--no-baselines", "--out", "values")
    status, _, err = fedfuse("predict", "values", "n.csv", "--proba")
    assert (status, "predicts values" in err) == (2, True)


def test_newcomers_are_judged_with_the_weights_of_classes():
    table = visits(m=7)
    federation = ff.Federation.from_frame(table[table["site"] != "s6"], device="site", target="ill")
    result = ff.fit(federation, class_weight={"yes": 30})
    late = table[table["site"] == "s6"]
    joined = result.admit({"s6": (result.profile.encoder.transform(late), late["ill"].to_numpy())})
    assert joined.clusters == (0,)


# On Flower the shortest run alone: each message takes its time.
ON_ENGINES = [*product(("inprocess", "workers"), ("fedavg", "fusion-tree", "pacfl")), ("flower", "fedavg")]


@pytest.mark.parametrize(("engine", "method"), ON_ENGINES)
def test_weights_on_every_engine(engine, method):
    if engine == "flower":
        pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")
    federation = planted("classification" if method == "pacfl" else "regression", m=4)
    weights = np.random.default_rng(0).exponential(size=len(federation.y))
    federation = replace(federation, weights=weights / weights.mean())
    rounds = 3 if engine == "flower" else 12
    here = ff.fit(federation, method, rounds=rounds)
    there = ff.fit(federation, method, rounds=rounds, engine=engine)
    np.testing.assert_array_equal(here.models, there.models)
    assert here.score() != ff.fit(replace(federation, weights=None), method, rounds=rounds).score()


def test_whole_weights_are_repeated_rows_in_a_run():
    """With gradient steps on all rows, and all devices in every round."""
    plain = planted(m=4, test=0.2, validation=0.0)
    times = np.random.default_rng(1).integers(1, 4, len(plain.y))
    index = np.repeat(np.arange(len(plain.y)), times)
    ends = np.concatenate([[0], np.cumsum(times)])
    repeated = replace(plain, X=plain.X[index], y=plain.y[index], cuts=ends[plain.cuts])
    method = ff.FedAvg(work=ff.Work(steps=4, lr=0.05))
    a, b = (ff.fit(f, method, rounds=5, dtype="float64") for f in (replace(plain, weights=1.0 * times), repeated))
    np.testing.assert_allclose(a.models, b.models, atol=1e-10)
    np.testing.assert_allclose(a.scores["test"], b.scores["test"], atol=1e-10)


def test_a_column_of_weights(fedfuse):
    """Rows with weight 0 are as if they were not there, and the column is no feature."""
    rng = np.random.default_rng(0)
    x, site = rng.normal(size=600), np.repeat(list("abcdef"), 100)
    y = np.where(site < "d", 2, -2) * x + 0.1 * rng.normal(size=600)
    bad = rng.random(600) < 0.3
    frame = pd.DataFrame({"site": site, "x": x, "y": np.where(bad, 50.0, y), "w": np.where(bad, 0.0, 3.0)})
    frame.to_csv("t.csv", index=False)
    words = ("--device", "site", "--target", "y", "--no-report", "--no-baselines", "--json")
    status, out, _ = fedfuse("run", "t.csv", *words, "--weight", "w", "--out", "run")
    found = json.loads(out)
    assert (status, found["n_clusters"], found["test"] < 0.2) == (0, 2, True)
    assert Result.load("run").profile.features == ("x",)
    status, _, err = fedfuse("run", "t.csv", *words, "--weight", "wait", "--out", "other")
    assert (status, "wait" in err) == (2, True)
    status, _, err = fedfuse("run", "t.csv", *words, "--weight", "x", "--out", "other")
    assert (status, "numbers of at least 0" in err) == (2, True)


def test_estimators_take_weights():
    table = visits()
    X, y, site = table[["a", "b"]].to_numpy(), table["ill"].to_numpy(), table["site"].to_numpy()
    plain = ff.GroupedClassifier().fit(X, y, site)
    balanced = ff.GroupedClassifier(class_weight="balanced").fit(X, y, site)
    share = np.mean(y == "yes")
    by_hand = ff.GroupedClassifier().fit(X, y, site, sample_weight=np.where(y == "yes", 1 / share, 1 / (1 - share)))
    np.testing.assert_allclose(balanced.coef_, by_hand.coef_, rtol=0.05)
    assert (balanced.predict(X, site) == "yes").mean() > (plain.predict(X, site) == "yes").mean() + 0.1
    twos = ff.GroupedRegressor().fit(X, X[:, 0] + 0.1 * X[:, 1] ** 2, site, sample_weight=np.full(len(X), 2.0))
    np.testing.assert_allclose(
        twos.coef_, ff.GroupedRegressor().fit(X, X[:, 0] + 0.1 * X[:, 1] ** 2, site).coef_, rtol=1e-6
    )
    with pytest.raises(ff.FedfuseError, match="the target has values"):
        ff.GroupedRegressor(class_weight="balanced").fit(X, X[:, 0], site)
    with pytest.raises(ff.FedfuseError, match="numbers of at least 0"):
        ff.GroupedClassifier().fit(X, y, site, sample_weight=-np.ones(len(X)))
