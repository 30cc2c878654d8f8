"""Devices that come when a run is over."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

import fedfuse as ff
from fedfuse.core.penalties import SmoothedSCAD
from fedfuse.errors import FedfuseError
from fedfuse.pairs.newcomer_pairs import NewcomerPairs
from fedfuse.training.newcomers import admit
from support.planted import planted, visits
from support.textbook import prox

GOALS = ["regression", "classification"]
every_goal = pytest.mark.parametrize("goal", GOALS)
NEW = [0, 4, 8]
OLD = [i for i in range(12) if i not in NEW]


def trained(goal="classification", method=None, **options):
    federation = planted(goal, m=12, n=60)
    return federation, ff.fit(federation.only(OLD), method or ff.FusionTree(), **options)


def rows_of(federation, i):
    X, y = federation.rows("all").of(i)
    return X, np.array(federation.classes)[y] if federation.classes else y


@every_goal
def test_newcomers_come_to_their_own_cluster(goal):
    federation, result = trained(goal)
    joined = result.admit(federation.only(NEW))
    home = {g: result.labels[result.profile.truth == g][0] for g in (0, 1)}
    assert joined.clusters == tuple(home[g] for g in federation.truth[NEW])
    assert max(joined.iterations) <= 20
    for i, c in enumerate(joined.clusters):
        np.testing.assert_allclose(joined.models[i], result.cluster_models[c], rtol=1e-6, atol=1e-6)
    worse = 1 if goal == "regression" else -1
    assert worse * (joined.score() - result.score()) < 0.05
    assert all(s > 0.99 for s in joined.confidence)


@every_goal
def test_one_many_and_a_federation_are_the_same(goal):
    federation, result = trained(goal)
    X, y = rows_of(federation, 0)
    one, many = result.admit(X, y), result.admit({"a": (X, y), "b": rows_of(federation, 8)})
    assert one.names == ("newcomer",)
    assert one.clusters[0] == many.clusters[0] != many.clusters[1]
    assert result.admit([(X, y)]).clusters == one.clusters
    np.testing.assert_allclose(many.predict("a", X[:3]), result.predict(0, X[:3]), rtol=1e-5)
    assert "a: joins group " in repr(many)


@every_goal
def test_who_fits_no_cluster_is_told_so(goal):
    federation, result = trained(goal)
    X, y = rows_of(federation, 0)
    other = -y if goal == "regression" else (y + 1) % 3
    joined = result.admit(X, other)
    assert joined.clusters == (None,)
    assert "fits no group" in joined.tell()
    assert joined.summary()["newcomers"][0]["fits"] is False
    own, group = (float(np.mean(model != other)) for model in (joined.predict(0, X), result.predict(0, X)))
    assert own < group or goal == "regression"


@every_goal
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_few_rows_are_enough_to_come_in_but_not_to_be_sure(goal, n):
    federation, result = trained(goal)
    X, y = rows_of(federation, 0)
    joined = result.admit(X[:n], y[:n])
    assert joined.clusters[0] is not None
    assert joined.counts.tolist() == [n]
    if n == 1:
        assert joined.confidence == (0.5,)
        assert np.isnan(joined.score())


def test_classes_are_those_of_the_run():
    """A newcomer may lack classes, and must not have others."""
    federation, result = trained()
    X, y = rows_of(federation, 0)
    some = y != 0
    assert result.admit(X[some], y[some]).clusters == (0,)
    part = ff.Federation.from_arrays({"a": (X[some], y[some])}, goal="classification")
    assert part.classes != result.profile.classes
    assert admit(result, part).clusters == (0,)
    with pytest.raises(FedfuseError, match=r"device 'newcomer': the class 7 is not one of the run's"):
        result.admit(X, np.full(len(y), 7))


def test_rows_that_do_not_fit():
    federation, result = trained()
    X, y = rows_of(federation, 0)
    with pytest.raises(FedfuseError, match="has 2 features, the run has 3"):
        result.admit(X[:, :2], y)
    with pytest.raises(FedfuseError, match="must be a finite number"):
        result.admit(np.where(X > 1, np.nan, X), y)
    with pytest.raises(FedfuseError, match="they must match"):
        result.admit(X, y[:-1])


def test_nobody_is_put_with_liars():
    federation = planted("classification", m=12, n=60)
    result = ff.fit(federation.only(OLD), ff.FusionTree(), attack="gaussian", liars=0.3, seed=1)
    assert len(result.suspects) == 3
    joined = result.admit(federation.only(NEW))
    assert not set(joined.clusters) & set(result.labels[result.suspects])
    home = {
        g: result.labels[np.setdiff1d(np.flatnonzero(result.profile.truth == g), result.suspects)[0]] for g in (0, 1)
    }
    assert joined.clusters == tuple(home[g] for g in federation.truth[NEW])


@pytest.mark.parametrize("kind", [ff.Local, ff.FedAvg, ff.LGFedAvg, ff.PerFedAvg], ids=lambda k: k.name)
def test_methods_without_clusters_give_a_model(kind):
    federation, result = trained(method=kind(), rounds=10)
    joined = result.admit(federation.only(NEW))
    assert joined.clusters == (None,) * 3
    assert "finds no groups" in joined.tell()
    assert joined.summary()["newcomers"][0]["fits"] is None


@every_goal
def test_a_saved_run_takes_them_in_alike(goal, tmp_path):
    federation, result = trained(goal, out=tmp_path / "run")
    again = ff.Result.load(tmp_path / "run")
    one, two = (r.admit(federation.only(NEW)) for r in (result, again))
    np.testing.assert_array_equal(one.models, two.models)
    assert one.clusters == two.clusters


@pytest.mark.parametrize("lam", [0.3, 1.0, 4.0])
def test_a_guest_is_the_textbooks_newest_device(lam):
    """Theta and v of the newcomer's pairs as printed, one loop per pair; all old devices stay as they are."""
    rng = np.random.default_rng(0)
    penalty, rho, old = SmoothedSCAD(lam), 1.3, np.repeat(rng.normal(size=(2, 3)), 4, axis=0)
    old += 0.05 * rng.normal(size=old.shape)
    v, w = np.zeros_like(old), old[0] + 0.3 * rng.normal(size=3)
    guest = NewcomerPairs(old, w, penalty, rho)
    for k in range(12):
        if k:
            w = 0.5 * w + 0.5 * guest.anchor() + 0.1 * rng.normal(size=3)
            guest.update(w)
        zeta, theta = w.copy(), np.zeros_like(old)
        for j in range(len(old)):
            theta[j] = prox(penalty, w - old[j] + v[j] / rho, rho)
            v[j] += rho * (w - old[j] - theta[j])
            zeta += old[j] + theta[j] - v[j] / rho
        np.testing.assert_allclose(guest.anchor(), zeta / (len(old) + 1), atol=1e-12)
        np.testing.assert_allclose(guest.norms(), np.linalg.norm(theta, axis=1), atol=1e-12)


def test_the_papers_own_loop_takes_them_in():
    federation, result = trained("regression", ff.FPFC(lam=0.5, work=ff.Work(solver="exact")))
    joined = result.admit(federation.only(NEW))
    home = {g: result.labels[result.profile.truth == g][0] for g in (0, 1)}
    assert joined.clusters == tuple(home[g] for g in federation.truth[NEW])


# -- the command line


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A run on eight of ten sites, and a table with all of them."""
    here, frame = tmp_path_factory.mktemp("join"), visits().drop(columns="outcome")
    frame[frame["site"].isin([0, 1, 2, 3, 6, 7, 8, 9])].to_csv(here / "old.csv", index=False)
    late = frame[frame["site"].isin([4, 5])].copy()
    late.loc[late.index[::5], "stay"] = np.nan
    stranger = frame[frame["site"] == 0][:40].assign(site=77, stay=np.nan)
    pd.concat([late, frame[frame["site"] == 0][:10], stranger]).to_csv(here / "new.csv", index=False)
    ff.fit(ff.Federation.from_frame(pd.read_csv(here / "old.csv"), device="site", target="stay"), out=here / "run")
    return here


def test_join_a_table(fedfuse, tables):
    _, out, err = fedfuse("join", tables / "run", tables / "new.csv", "--json", "--out", tables / "p.csv")
    answer = json.loads(out)
    assert [n["name"] for n in answer["newcomers"]] == ["4", "5"]
    home = ff.Result.load(tables / "run")
    assert {n["cluster"] for n in answer["newcomers"]} == {int(home.labels[home.index("0")])}
    predictions, table = pd.read_csv(tables / "p.csv"), pd.read_csv(tables / "new.csv")
    waiting = table.index[table["stay"].isna() & (table["site"] != 77)]
    assert predictions["row"].tolist() == waiting.tolist()
    assert predictions["prediction"].notna().all()
    assert "10 rows ignored" in err
    assert "77" in err
    status, out, _ = fedfuse("join", tables / "run", tables / "new.csv")
    assert status == 0
    assert "mean test RMSE of newcomers" in out


def test_nothing_to_predict_is_said(fedfuse, tables):
    frame = pd.read_csv(tables / "new.csv").dropna(subset="stay")
    frame[frame["site"] != 0].to_csv(tables / "whole.csv", index=False)
    _, _, err = fedfuse("join", tables / "run", tables / "whole.csv", "--out", tables / "none.csv")
    assert "no rows without a target: nothing to predict" in err
    assert not (tables / "none.csv").exists()


def test_nobody_to_join(refused, tables):
    assert "this table has no newcomers" in refused("join", tables / "run", tables / "old.csv")
    assert "written as .csv" in refused("join", tables / "run", tables / "new.csv", "--out", "p.txt")


def test_liars_on_the_command_line(fedfuse, refused):
    words = ("run", "digits", "--method", "fedavg", "--rounds", "2", "--json", "--set", "liars=0.4")
    status, out, _ = fedfuse(*words, "--set", "attack=sign-flip", "--set", "lies=models")
    summary = json.loads(out)
    assert (status, summary["attack"], summary["liars"], len(summary["who"])) == (0, "sign-flip", 0.4, 8)
    assert "attack must be 'same-value'" in refused(*words, "--set", "attack=rumour")


def test_single_rows_do_not_speak_against_a_group():
    """Halves of one row have no variance, so a lucky guess by a newcomer's own model would look certain."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8, 60, 2))
    fed = ff.Federation.from_arrays([(x, x @ [2.0, -1] + rng.normal(size=60)) for x in X])
    result = ff.fit(fed)
    few = {f"n{i}": (x := rng.normal(size=(1 + i % 5, 2)), x @ [2.0, -1] + rng.normal(size=len(x))) for i in range(60)}
    assert None not in result.admit(few).clusters
