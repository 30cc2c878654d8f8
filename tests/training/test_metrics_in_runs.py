"""The metric of a run: on every engine, in files, terminal and report, and its sums against scikit-learn."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.metrics import balanced_accuracy_score, r2_score, roc_auc_score

import fedfuse as ff
from fedfuse.results.result import Result
from support.interruption import resumed_at
from support.planted import planted

SLOPES = np.array([[2.0, 0.0], [0.0, 2.0], [-1.5, -1.5]])


def rare(m=12, rows=1000, share=0.02, seed=0):
    """Sites in three groups with 2 % of ill rows each."""
    rng, sites = np.random.default_rng(seed), []
    for i in range(m):
        X = rng.normal(size=(rows, 2))
        odds = X @ SLOPES[i % 3]
        odds += brentq(lambda b, odds=odds: expit(odds + b).mean() - share, -20, 5)
        ill = np.where(rng.random(rows) < expit(odds), "yes", "no")
        sites.append(pd.DataFrame(X, columns=["a", "b"]).assign(site=f"s{i}", ill=ill))
    return pd.concat(sites, ignore_index=True)


def by_hand(federation, result, part="test"):
    """Outputs and targets of all rows of a part, one after the other."""
    rows = federation.rows(part)
    outputs = [result.outputs(i, rows.of(i)[0]) for i in range(federation.m)]
    return np.concatenate(outputs), np.concatenate([rows.of(i)[1] for i in range(federation.m)])


def test_auc_of_rare_classes_by_group_beats_one_model(fedfuse):
    """In terminal, report and summary."""
    rare().to_csv("visits.csv", index=False)
    status, out, _ = fedfuse(
        "run", "visits.csv", "--device", "site", "--target", "ill", "--metric", "auc", "--out", "run"
    )
    assert status == 0
    table = {line.rpartition("  ")[0].strip(): line.split()[-1] for line in out.splitlines() if line.strip()}
    groups, alone, pooled = (
        float(table[n]) for n in ("one model per group", "a separate model per site", "one model for all")
    )
    assert groups > pooled + 0.2
    assert "test AUC, all rows of sites" in out
    summary = json.loads(Path("run/summary.json").read_text())
    assert (summary["metric"], round(summary["test"], 4)) == ("auc", groups)
    page = Path("run/report.html").read_text(encoding="utf-8")
    assert all(word in page for word in ("test AUC", f"{groups:.4g}", f"{alone:.4g}", f"{pooled:.4g}"))
    federation = ff.Federation.from_frame(rare(), device="site", target="ill")
    p, y = by_hand(federation, Result.load("run"))
    assert groups == pytest.approx(roc_auc_score(y, p[:, 1]), abs=2e-3)


@pytest.mark.parametrize(("metric", "score"), [
    ("balanced-accuracy", lambda y, p: balanced_accuracy_score(y, p.argmax(1))),
    ("r2", r2_score),
])  # fmt: skip
def test_scores_are_those_of_all_rows_and_are_saved(metric, score, tmp_path):
    federation = planted("regression" if metric == "r2" else "classification", noise=1.0)
    result = ff.fit(federation, metric=metric, out=tmp_path / "run")
    p, y = by_hand(federation, result)
    assert result.score() == pytest.approx(score(y, p))
    again = Result.load(tmp_path / "run")
    assert (again.profile.metric, again.score()) == (metric, result.score())
    first = np.flatnonzero(result.labels == 0)
    assert again.score("test", first) == pytest.approx(score(*by_hand(federation.only(first), result)[::-1]))


def test_a_metric_changes_what_is_reported_and_nothing_else(tmp_path):
    federation = planted("classification")
    plain, other = ff.fit(federation), ff.fit(federation, metric="log-loss")
    np.testing.assert_array_equal(plain.models, other.models)
    assert plain.cost_floats == other.cost_floats
    assert plain.profile.metric == "accuracy"
    options = {"rounds": 8, "metric": "f1", "evaluate_every": 1}
    (resumed,) = resumed_at([4], federation, ff.FedAvg(), tmp_path / "r", **options)
    assert resumed.profile.metric == "f1"
    assert resumed.history["test"].iloc[-1] == resumed.score()


def test_unsuitable_metrics_are_refused(tmp_path):
    with pytest.raises(ff.FedfuseError, match=r"no metric 'auc' for values; known: rmse, mae, r2"):
        ff.fit(planted(), metric="auc", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("metric", ["auc", "log-loss"])
def test_devices_on_flower_send_sums(metric, tmp_path):
    pytest.importorskip("flwr", reason="pip install 'fedfuse[flower]'")
    from fedfuse.flower import client_app
    from fedfuse.flower.server import serve
    from support.local_grid import LocalGrid

    federation = planted("classification")
    app = client_app(lambda name, config: federation.only([int(name)]))
    words = {"method": "fedavg", "set": f"solver=exact metric={metric}", "num-server-rounds": 3}
    there = serve(LocalGrid(app, federation.m), words | {"out": str(tmp_path / "run")})
    here = ff.fit(federation, ff.FedAvg(work=ff.Work(solver="exact")), rounds=3, metric=metric)
    assert there.score() == pytest.approx(here.score(), rel=1e-6)
    np.testing.assert_allclose(there.scores["test"], here.scores["test"], rtol=1e-6)


def test_newcomers_have_the_metric_of_the_run():
    federation, late = (planted("classification", m=m, noise=2.0) for m in (6, 9))
    result = ff.fit(federation, metric="f1")
    joined = result.admit(late.only([6, 7, 8]))
    assert joined.summary()["metric"] == "f1"
    assert 0 < joined.score() < 1


def test_comparisons_rank_by_the_metric(fedfuse):
    words = ("--methods", "fedavg,oracle,local", "--seeds", "1", "--rounds", "30", "--metric", "log-loss")
    status, out, _ = fedfuse("compare", "synthetic:6,6", *words, "--out", "study", "--json")
    assert status == 0
    found = json.loads(out)
    assert found["metric"] == "log-loss"
    rivals = [row for row in found["methods"] if row["method"] != "oracle"]
    assert min(rivals, key=lambda row: row["test"])["best"]
