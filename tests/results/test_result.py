"""What a run has found: the same after saving and loading, and in the table's own words and units."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfuse as ff
from fedfuse.core.partitions import canonical
from fedfuse.errors import FedfuseError
from fedfuse.protocol.local_work import Work
from fedfuse.results.result import Result, mean_score
from fedfuse.training.fit import fit
from fedfuse.utils.files import without_nan
from support.planted import planted, visits

CONTRACT = [
    *("dataset", "method", "seed", "lam", "rounds", "stages", "metric", "test", "validation", "scores"),
    *("verdict", "n_clusters", "ari", "cost_floats", "seconds", "labels", "version"),
]
EXACT = ff.FPFC(lam=0.3, work=Work(solver="exact"), refit=True)


TARGETS = {"stay": "outcome", "outcome": "stay"}


@pytest.fixture(scope="module", params=TARGETS)
def table_run(request):
    frame = visits().drop(columns=TARGETS[request.param])
    federation = ff.Federation.from_frame(frame, device="site", target=request.param)
    return frame, federation, fit(federation, EXACT, rounds=300)


@pytest.fixture(scope="module", params=["regression", "classification"])
def result(request):
    method = ff.FPFC(lam=0.5, work=Work(steps=10, lr=0.1), refit=True)
    return fit(planted(request.param), method, rounds=100, seed=4, dataset="planted")


def test_saved_and_loaded(result, tmp_path):
    result.save(tmp_path)
    again = Result.load(tmp_path)
    for name in ("labels", "models", "cluster_models"):
        assert getattr(again, name).dtype == getattr(result, name).dtype
        np.testing.assert_array_equal(getattr(again, name), getattr(result, name))
    assert again.model == result.model
    assert again.method == result.method
    assert without_nan(again.summary()) == without_nan(result.summary())
    assert again.profile.names == result.profile.names
    np.testing.assert_array_equal(again.profile.truth, result.profile.truth)
    pd.testing.assert_frame_equal(again.coefficients(), result.coefficients())
    pd.testing.assert_frame_equal(again.history, result.history, check_dtype=False, rtol=1e-12)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "coefficients.csv", "contrasts.csv", "history.csv", "labels.csv", "models.npz", "profile.json",
        "summary.json",
    ]  # fmt: skip


def test_summary_keeps_the_contract(result, tmp_path):
    summary = result.summary()
    assert list(summary)[: len(CONTRACT)] == CONTRACT
    assert summary["dataset"] == "planted"
    assert summary["seed"] == 4
    assert summary["metric"] in ("accuracy", "rmse")
    assert summary["labels"] == result.labels.tolist()
    assert summary["n_clusters"] == len(set(summary["labels"]))
    assert summary["ari"] == 1.0
    result.save(tmp_path)
    saved = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert saved == without_nan(summary)
    assert summary["lam"] == 0.5
    assert summary["rounds"] == sum(stage["rounds"] for stage in summary["stages"]) == len(result.history)


def test_without_held_back_rows_there_is_no_validation(tmp_path):
    """Neither in Python nor as NaN in a file."""
    result = fit(planted(), replace(EXACT, refit=False), rounds=5)
    assert np.isnan(result.score("validation"))
    result.save(tmp_path)
    saved = json.loads((tmp_path / "summary.json").read_text(), parse_constant=pytest.fail)
    assert saved == {**result.summary(), "validation": None}
    assert (saved["stability"], saved["uncertain"], saved["unsure"]) == (None, None, [])


def test_how_sure_it_is_is_kept(tmp_path):
    result = fit(planted(n=80))
    result.save(tmp_path)
    again = Result.load(tmp_path)
    np.testing.assert_array_equal(again.confidence, result.confidence)
    assert (again.stability, again.lam, again.uncertain) == (result.stability, result.lam, False)
    np.testing.assert_allclose(pd.read_csv(tmp_path / "labels.csv")["confidence"], result.confidence)
    doubtful = replace(result, confidence=np.array([0.99, 0.2, 0.5, 1, 1, 1]))
    assert doubtful.unsure.tolist() == [1, 2]
    assert doubtful.summary()["unsure"] == ["d1", "d2"]
    assert doubtful.uncertain
    assert replace(result, stability=0.3).uncertain


def test_truth_may_be_unknown():
    federation = replace(planted(), truth=None)
    result = fit(federation, EXACT, rounds=5)
    assert result.ari is None
    assert result.summary()["ari"] is None
    assert "ARI" not in repr(result)


def test_labels_table(result, tmp_path):
    result.save(tmp_path)
    table = pd.read_csv(tmp_path / "labels.csv")
    assert table["device"].tolist() == list(result.profile.names)
    assert table["cluster"].tolist() == result.labels.tolist()
    assert table["rows"].tolist() == [40, 47, 54, 40, 47, 54]
    np.testing.assert_allclose(table["test"], result.scores["test"])


def test_devices_by_name_or_number(result):
    X = np.ones((2, 3))
    np.testing.assert_array_equal(result.predict("d4", X), result.predict(4, X))
    with pytest.raises(FedfuseError, match=r"no device is called 'd44'; did you mean 'd4'\?"):
        result.predict("d44", X)
    with pytest.raises(FedfuseError, match="device 6 is outside 0 … 5"):
        result.predict(6, X)


def test_rows_that_cannot_be_predicted(result):
    with pytest.raises(FedfuseError, match=r"X must be rows x 3 features, got an array of shape \(2, 4\)"):
        result.predict(0, np.ones((2, 4)))
    with pytest.raises(FedfuseError, match="X must be finite, got nan"):
        result.predict(0, [[1.0, np.nan, 0.0]])
    with pytest.raises(FedfuseError, match="features must be numbers"):
        result.predict(0, [["a", "b", "c"]])


def test_an_unknown_part_has_no_score(result):
    with pytest.raises(FedfuseError, match="no scores for 'train'; known: validation, test"):
        result.score("train")


def test_its_repr_is_a_summary(result):
    text = repr(result)
    assert text.startswith("Result(planted, fpfc: 2 groups of 3, 3 devices, test ")
    assert "ARI 1.000" in text


# -------------------------------------------------------------------------------------------- tables


def test_the_planted_groups_are_found(table_run):
    _, federation, result = table_run
    assert federation.names == tuple("0123456789")
    assert result.labels.tolist() == [0] * 6 + [1] * 4


def test_coefficients_in_the_tables_units_predict_the_same(table_run):
    """intercept + sum coefficient * column, on the raw table, is the model's own output."""
    frame, federation, result = table_run
    table = result.coefficients()
    assert list(table.columns) == [*federation.features, "intercept"]
    raw = pd.DataFrame({name: frame[name] for name in ("age", "dose")})
    raw["dose missing"] = frame["dose"].isna() * 1.0
    fill = next(c.fill for c in federation.encoder.columns if c.name == "dose")
    raw["dose"] = frame["dose"].fillna(fill)
    for level in ("east", "north", "south"):
        raw[f"ward={level}"] = (frame["ward"] == level) * 1.0
    answer = result.predict_frame(frame)
    for c in range(result.n_clusters):
        rows = (answer["cluster"] == c).to_numpy()
        scores = raw.loc[rows, list(federation.features)].to_numpy() @ table.loc[c].iloc[:, :-1].to_numpy().T
        scores = scores + table.loc[c]["intercept"].to_numpy()
        if federation.goal == "regression":
            np.testing.assert_allclose(answer.loc[rows, "prediction"], scores[:, 0], atol=1e-4)
        else:
            odds = np.log(answer.loc[rows, "p(well)"] / answer.loc[rows, "p(ill)"])
            np.testing.assert_allclose(odds, scores[:, 1], atol=1e-4)
            assert not scores[:, 0].any()


def test_the_planted_feature_tells_the_groups_apart(table_run):
    _, _, result = table_run
    contrasts = result.contrasts()
    assert contrasts.index[0] == "age"
    assert contrasts.iloc[0] > 2 * contrasts.iloc[1]
    assert (contrasts.to_numpy()[:-1] >= contrasts.to_numpy()[1:]).all()
    slopes = result.coefficients()["age"].unstack("output")
    effect = slopes["well"] - slopes["ill"] if "well" in slopes else slopes["value"]
    np.testing.assert_allclose(effect, [1 / 6, -1 / 6], atol=0.06)


def test_groups_that_differ_by_level_alone_are_told_apart_by_the_intercept():
    rng = np.random.default_rng(0)
    X, site = rng.normal(size=(480, 2)), np.repeat(np.arange(8), 60)
    frame = pd.DataFrame({"site": site, "u": X[:, 0], "v": X[:, 1]})
    frame["y"] = X @ [1.0, -2.0] + 5.0 * (site < 3) + 0.1 * rng.normal(size=480)
    result = fit(ff.Federation.from_frame(frame, device="site", target="y"))
    assert result.group_numbers.tolist() == [2] * 3 + [1] * 5
    contrasts = result.contrasts()
    assert contrasts.index[0] == "intercept"
    assert contrasts["intercept"] == pytest.approx(5, abs=0.2)
    assert contrasts[["u", "v"]].max() < 0.2


def test_each_row_by_its_own_device(table_run):
    frame, federation, result = table_run
    answer = result.predict_frame(frame)
    X = federation.encoder.transform(frame)
    assert answer.index.equals(frame.index)
    for i, name in enumerate(federation.names):
        rows = np.flatnonzero(frame["site"].astype(str) == name)
        assert (answer["cluster"].iloc[rows] == result.labels[i]).all()
        assert (answer["prediction"].iloc[rows].to_numpy() == result.predict(name, X[rows])).all()


def test_unknown_devices_have_no_group_and_one_model_for_all(table_run):
    """Missing and new devices; a column of whole numbers that became floats still names the same devices."""
    frame, _, result = table_run
    odd = frame.iloc[:6].copy()
    odd["site"] = [3.0, 77.0, np.nan, 3.0, 0.0, 12.0]
    answer = result.predict_frame(odd)
    assert answer["device"].tolist() == ["3", "77", "", "3", "0", "12"]
    assert answer["cluster"].isna().tolist() == [False, True, True, False, False, True]
    unknown = answer["cluster"].isna().to_numpy()
    X = result.profile.encoder.transform(odd[unknown])
    known = result.alternatives.get("pooled", result.models)
    by_one = result.model.outputs(known.mean(axis=0, dtype=np.float64), X)
    if result.profile.goal == "regression":
        np.testing.assert_allclose(answer["prediction"][unknown].astype(float), by_one)
    else:
        np.testing.assert_allclose(answer.loc[unknown, ["p(ill)", "p(well)"]], by_one)
        assert (answer["prediction"][unknown] == np.array(["ill", "well"])[by_one.argmax(axis=1)]).all()
    known = result.predict_frame(odd[odd["site"].isin([3, 0])])
    pd.testing.assert_frame_equal(answer.loc[known.index], known, check_dtype=False)
    if "p(ill)" in answer:
        np.testing.assert_allclose(known["p(ill)"] + known["p(well)"], 1)


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False))
def test_rows_are_predicted_one_by_one(table_run, random):
    """In any order, and any subset: each row's answer is its own."""
    frame, _, result = table_run
    rows = random.sample(range(len(frame)), 20)
    whole, some = result.predict_frame(frame), result.predict_frame(frame.iloc[rows])
    pd.testing.assert_frame_equal(whole.iloc[rows], some, rtol=1e-9)


def test_tables_that_do_not_fit(table_run):
    frame, _, result = table_run
    with pytest.raises(FedfuseError, match="the table has no device column 'site'; its columns are 'age'"):
        result.predict_frame(frame.drop(columns="site"))
    with pytest.raises(FedfuseError, match="the table has no column 'ward'"):
        result.predict_frame(frame.drop(columns="ward"))
    with pytest.raises(FedfuseError, match=r"device '.', column 'age', row 0"):
        result.predict_frame(frame.assign(age="old"))


def test_a_run_on_arrays_knows_no_columns(result):
    with pytest.raises(FedfuseError, match="not trained on a table"):
        result.predict_frame(visits())


@given(st.lists(st.integers(0, 3), min_size=2, max_size=8), st.integers(0, 2**32 - 1), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_contrasts_are_differences_between_devices(labels, seed, outputs):
    """By the definition: over all pairs of devices of different clusters."""
    labels = canonical(labels)
    rng = np.random.default_rng(seed)
    classes = tuple(range(outputs)) if outputs > 1 else ()
    kind = ff.SoftmaxRegression() if classes else ff.LinearRegression()
    model = kind.sized(2, len(classes))
    base = fit(planted(m=2, groups=1), EXACT, rounds=1)
    models = rng.normal(size=(labels.max() + 1, model.d))[labels]
    profile = replace(base.profile, classes=classes, features=("u", "v"))
    result = replace(base, labels=labels, models=models, model=model, profile=profile)
    tables = np.stack([model.coefficients(w) for w in models])
    tables = tables - tables.mean(axis=1, keepdims=True) if outputs > 1 else tables
    squares = [
        np.square(tables[i] - tables[j]).sum(axis=0)
        for i in range(len(labels))
        for j in range(len(labels))
        if labels[i] != labels[j]
    ]
    expected = np.sqrt(np.mean(squares, axis=0)) if squares else np.zeros(3)
    np.testing.assert_allclose(result.contrasts()[["u", "v", "intercept"]], expected, atol=1e-9)


# ------------------------------------------------------------------------------------ what is not a run


def test_an_unfinished_run_is_not_loaded(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FedfuseError, match="is not finished: continue it with 'fedfuse resume"):
        Result.load(tmp_path)


@pytest.mark.parametrize("lost", ["profile.json", "models.npz", "history.csv", "summary.json"])
def test_a_run_with_a_file_missing(result, tmp_path, lost):
    result.save(tmp_path)
    (tmp_path / lost).unlink()
    with pytest.raises(FedfuseError, match=f"holds no (whole )?run of fedfuse: .*{lost}"):
        Result.load(tmp_path)


@pytest.mark.parametrize(("file", "content"), [("profile.json", "{}"), ("summary.json", "{}"), ("history.csv", "")])
def test_a_run_with_foreign_files(result, tmp_path, file, content):
    result.save(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(FedfuseError, match=r"is not as fedfuse writes it|is damaged or cut short"):
        Result.load(tmp_path)


def test_the_mean_skips_devices_without_rows():
    assert mean_score(np.array([1.0, np.nan, 3.0])) == 2.0
    assert np.isnan(mean_score(np.full(3, np.nan)))


@pytest.mark.parametrize(("method", "used"), [("ditto", "personal"), ("fedavg", "pooled"), ("local", "alone")])
def test_the_verdict_of_methods_that_compare_nothing_says_what_predict_uses(method, used):
    result = ff.fit(planted(m=4, n=30), method, rounds=3)
    assert result.n_clusters == (4 if method == "local" else 1)
    assert result.summary()["verdict"] == used
    assert result.comparison()[used] == result.score("test")
