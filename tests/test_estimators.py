"""scikit-learn's contract, and what the estimators find."""

from __future__ import annotations

import pickle
import subprocess
import sys

import joblib
import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedfuse as ff
from fedfuse import FedfuseError, FPFCClassifier, FPFCRegressor, GroupedClassifier, GroupedRegressor

BOTH = [GroupedClassifier, GroupedRegressor]
OF_FPFC = {GroupedClassifier: FPFCClassifier, GroupedRegressor: FPFCRegressor}
TRUTH = np.array([0, 1, 0, 1, 1, 0])  # the group of each of six devices

# scikit-learn's common checks that an estimator may fail, each with its reason: none so far
EXPECTED_FAILED_CHECKS: dict[str, dict[str, str]] = {"GroupedClassifier": {}, "GroupedRegressor": {}}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # most of its data are separable
@parametrize_with_checks(
    [GroupedClassifier(), GroupedRegressor()],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS[type(estimator).__name__],
)
def test_common_checks(estimator, check):
    check(estimator)


def rows(n=60):
    """Six devices of two groups with opposite slopes; features of very different units, one constant."""
    rng = np.random.default_rng(0)
    device = np.repeat(np.arange(6), n)
    Z = rng.normal(size=(6 * n, 3))
    slope = np.where(TRUTH[device] == 0, 1.0, -1.0)
    signal = slope * (2 * Z[:, 0] - Z[:, 1]) + 0.5 * TRUTH[device]
    X = np.column_stack([1000 + 50 * Z[:, 0], 0.01 * Z[:, 1], Z[:, 2], np.full(6 * n, 7.0)])
    return X, signal, np.array(list("abcdef"))[device], rng


def data(estimator, n=60):
    """Return X, a target that fits the estimator, and groups."""
    X, signal, groups, rng = rows(n)
    if estimator is GroupedRegressor:
        return X, 300 + 40 * (signal + 0.3 * rng.normal(size=len(X))), groups
    return X, np.where(2 * signal + rng.logistic(size=len(X)) > 0, "yes", "no"), groups


@pytest.mark.parametrize("estimator", BOTH)
def test_finds_the_groups(estimator):
    X, y, groups = data(estimator)
    model = estimator().fit(X, y, groups=groups)
    assert_array_equal(model.groups_, list("abcdef"))
    assert_array_equal(model.labels_, TRUTH)
    assert model.n_clusters_ == 2
    assert model.n_iter_ == model.result_.rounds == len(model.result_.history)
    assert model.result_.clusters == [["a", "c", "f"], ["b", "d", "e"]]
    assert model.score(X, y, groups=groups) > 0.75


def test_coefficients_are_those_of_the_pooled_cluster():
    X, y, groups = data(GroupedRegressor)
    model = GroupedRegressor(tol=1e-7, rounds=3000).fit(X, y, groups=groups)
    assert model.coef_.shape == (2, 4)
    assert model.intercept_.shape == (2,)
    for c in range(2):
        mine = TRUTH[np.searchsorted(model.groups_, groups)] == c
        pooled = LinearRegression().fit(X[mine], y[mine])
        assert_allclose(model.coef_[c] * X.std(axis=0), pooled.coef_ * X.std(axis=0), atol=1e-3 * y.std())
        assert_allclose(model.predict(X[mine], groups[mine]), pooled.predict(X[mine]), atol=1e-2 * y.std())


@pytest.mark.parametrize("n_classes", [2, 3])
def test_class_coefficients_are_those_of_the_pooled_cluster(n_classes):
    X, signal, groups, rng = rows(n=150)
    y = np.digitize(signal + rng.logistic(size=len(X)), [-0.5, 1.5][: n_classes - 1])
    model = FPFCClassifier(lam=0.3, refit=True, tol=1e-6, rounds=3000).fit(X, y, groups=groups)
    assert_array_equal(model.labels_, TRUTH)
    assert model.coef_.shape == (2, 1 if n_classes == 2 else 3, 4)
    assert model.intercept_.shape == model.coef_.shape[:2]
    for c in range(2):
        mine = TRUTH[np.searchsorted(model.groups_, groups)] == c
        pooled = make_pipeline(StandardScaler(), LogisticRegression(C=np.inf, tol=1e-8)).fit(X[mine], y[mine])
        expected = pooled.predict_proba(X[mine])
        assert_allclose(model.predict_proba(X[mine], groups[mine]), expected, atol=0.01)
        outputs = X[mine] @ model.coef_[c].T + model.intercept_[c]
        assert_allclose(model.decision_function(X[mine], groups[mine]), outputs.squeeze())


@pytest.mark.parametrize("estimator", BOTH)
def test_each_row_is_predicted_by_its_group(estimator):
    X, y, groups = data(estimator)
    model = estimator().fit(X, y, groups=groups)
    predictions = model.predict(X, groups=groups)
    for g in model.groups_:
        assert_array_equal(model.predict(X[groups == g], [g] * 60), predictions[groups == g])
    here, there = (model.predict(X, groups=[g] * len(X)) for g in "ab")
    assert np.mean(here == there) < 0.3


@pytest.mark.parametrize("estimator", BOTH)
def test_groups_at_prediction_must_be_known(estimator):
    X, y, groups = data(estimator)
    model = estimator().fit(X, y, groups=groups)
    with pytest.raises(FedfuseError, match=r"not seen: 'x', 'z'; known: 'a', 'b'"):
        model.predict(X[:3], groups=["z", "a", "x"])
    with pytest.raises(FedfuseError, match="2 groups of devices, so each row's device is needed"):
        model.predict(X)
    with pytest.raises(FedfuseError, match="3 rows but groups has 2"):
        model.predict(X[:3], groups=["a", "b"])


@pytest.mark.parametrize("estimator", BOTH)
def test_one_cluster_needs_no_groups(estimator):
    X, y, groups = data(estimator)
    mine = np.isin(groups, ["a", "c", "f"])
    model = OF_FPFC[estimator](lam=2.0).fit(X[mine], y[mine], groups=groups[mine])
    assert model.n_clusters_ == 1
    assert_array_equal(model.predict(X), model.predict(X, groups=np.full(len(X), "c")))


def fit_in_two_orders(model, X, y, groups):
    order = np.random.default_rng(1).permutation(len(X))
    other = clone(model).fit(X[order], y[order], groups=groups[order])
    model.fit(X, y, groups=groups)
    assert_array_equal(model.labels_, other.labels_)
    answer = "predict" if isinstance(model, GroupedRegressor) else "predict_proba"
    return (getattr(m, answer)(X, groups) for m in (model, other))


@pytest.mark.parametrize("estimator", BOTH)
def test_order_of_rows_does_not_matter(estimator):
    """Nothing is chosen by validation rows here, so it does not matter which they are."""
    X, y, groups = data(estimator)
    one, two = fit_in_two_orders(OF_FPFC[estimator](lam=0.4), X, y, groups)
    assert_allclose(one, two, rtol=1e-6)


@pytest.mark.parametrize("estimator", BOTH)
@pytest.mark.parametrize("lam", [None, 0.4])
def test_order_of_rows_hardly_matters_where_validation_rows_choose(estimator, lam):
    X, y, groups = data(estimator, n=150)
    model = estimator() if lam is None else OF_FPFC[estimator](lam=lam, refit=True)
    one, two = fit_in_two_orders(model, X, y, groups)
    assert_allclose(one, two, atol=0.01 * (y.std() if estimator is GroupedRegressor else 1))


def test_features_that_repeat_each_other():
    """First steps that are far too long are cut, and cutting them is not a sign of convergence."""
    X, y, groups = data(GroupedRegressor)
    rng, two = np.random.default_rng(1), X[:, :2]
    nearly = [two + 1e-3 * two.std(axis=0) * rng.normal(size=two.shape) for _ in range(30)]
    X = np.column_stack([X, *nearly])
    for model in (FPFCRegressor(lam=0.5, refit=True, tol=0, rounds=200), GroupedRegressor()):
        model.fit(X, y, groups=groups)
        assert_array_equal(model.labels_, TRUTH)
        assert model.score(X, y, groups=groups) > 0.97


@pytest.mark.parametrize(
    "names",
    [
        [3, 1, 2, 10, 20, 15],
        [0.5, -1.0, 2.0, 3.25, 4.0, 100.0],
        ["f", "e", "d", "c", "b", "a"],
        [1, "1", "b", 2.5, ("x", 1), ("x", 2)],
        list(pd.date_range("2024-01-01", periods=6)),
    ],
    ids=["ints", "floats", "text", "mixed", "dates"],
)
def test_groups_of_any_kind(names):
    X, y, letters = data(GroupedRegressor)
    groups = [names["abcdef".index(letter)] for letter in letters]
    model = GroupedRegressor().fit(X, y, groups=groups)
    truth = dict(zip(names, TRUTH, strict=True))
    of_device = np.array([truth[g] for g in pd.Index(model.groups_, tupleize_cols=False)])
    assert len(of_device) == 6
    assert len(set(model.result_.profile.names)) == 6
    assert_array_equal(model.labels_, of_device ^ of_device[0])  # clusters are numbered by their first device
    assert model.score(X, y, groups=groups) > 0.9
    assert model.score(X, y, groups=pd.Series(groups, index=np.arange(len(X))[::-1])) > 0.9


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ([[1]] * 360, "one hashable value per row, got a list"),
        (np.zeros((360, 2)), "one hashable value per row, got a ndarray"),
        ("abc", "one hashable value per row, got a str"),
        (["a"] * 359, "360 rows but groups has 359"),
        (["a"] * 359 + [None], r"groups\[359\] is missing"),
    ],
)
def test_groups_that_cannot_be_used(groups, words):
    X, y, _ = data(GroupedRegressor)
    with pytest.raises(FedfuseError, match=words):
        GroupedRegressor().fit(X, y, groups=groups)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"lam": -1.0}, "lambda must be at least 0"),
        ({"rho": 0.1}, "rho must exceed"),
        ({"participation": 0.0}, "participation must"),
        ({"rounds": 0}, "^rounds must"),
        ({"random_state": "x"}, "random_state must be a whole number, None or a numpy.random.RandomState, got 'x'"),
    ],
)
def test_parameters_that_cannot_be_used(parameters, words):
    X, y, groups = data(GroupedRegressor)
    with pytest.raises(FedfuseError, match=words):
        FPFCRegressor(**{"lam": 0.5} | parameters).fit(X, y, groups=groups)


@pytest.mark.parametrize("estimator", BOTH)
def test_data_frames(estimator):
    X, y, groups = data(estimator)
    frame = pd.DataFrame(X, columns=["income", "rate", "noise", "same"], index=np.arange(len(X)) + 5)
    series, hospital = pd.Series(y, index=frame.index), pd.Series(groups, index=frame.index, dtype="category")
    model = estimator().fit(frame, series, groups=hospital)
    assert_array_equal(model.feature_names_in_, frame.columns)
    assert model.result_.profile.features == tuple(frame.columns)
    plain = estimator().fit(X, y, groups=groups)
    assert_array_equal(model.labels_, plain.labels_)
    assert_allclose(model.coef_, plain.coef_, atol=1e-9)
    assert model.score(frame, series, groups=hospital) == pytest.approx(plain.score(X, y, groups=groups))


@pytest.mark.parametrize("estimator", BOTH)
def test_devices_of_one_row(estimator):
    X, y, groups = data(estimator)
    groups = groups.astype(object)
    alone = [0, 60, 120]
    groups[alone] = ["p", "q", "r"]
    model = estimator(rounds=200, tol=0).fit(X, y, groups=groups)
    assert_array_equal(model.labels_[:6], TRUTH)
    assert_array_equal(model.groups_[6:], ["p", "q", "r"])
    assert len(model.predict(X[alone], groups=["p", "q", "r"])) == 3


def test_device_of_one_class():
    X, y, groups = data(GroupedClassifier)
    y[groups == "b"] = "yes"
    for refit in (False, True):  # the penalty's own estimate of separable data has no limit
        with pytest.warns(ConvergenceWarning, match="not converged after 50 rounds"):
            FPFCClassifier(lam=0.6, refit=refit, rounds=50).fit(X, y, groups=groups)
    model = GroupedClassifier().fit(X, y, groups=groups)
    assert model.predict_proba(X, groups=groups).shape == (360, 2)
    assert_array_equal(model.predict(X, groups)[groups == "b"], "yes")


def test_one_class_in_all_is_refused():
    X, y, groups = data(GroupedClassifier)
    with pytest.raises(FedfuseError, match="only one class, 'yes'"):
        GroupedClassifier().fit(X[y == "yes"], y[y == "yes"], groups=groups[y == "yes"])


def test_target_units_do_not_matter():
    X, y, groups = data(GroupedRegressor)
    model = GroupedRegressor().fit(X, y, groups=groups)
    other = GroupedRegressor().fit(100 * X, y / 1000 - 5, groups=groups)
    assert_array_equal(model.labels_, other.labels_)
    assert_allclose(other.coef_ * 1e5, model.coef_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("estimator", BOTH)
def test_partial_participation_is_drawn_by_random_state(estimator):
    X, y, groups = data(estimator)
    fits = [estimator(participation=0.5, random_state=s, rounds=30, tol=0).fit(X, y, groups=groups) for s in (1, 1, 2)]
    assert_array_equal(fits[0].coef_, fits[1].coef_)
    assert not np.array_equal(fits[0].coef_, fits[2].coef_)


@pytest.mark.parametrize("estimator", BOTH)
def test_random_states_as_scikit_learn_has_them(estimator):
    """A RandomState is drawn from once for each fit, None from NumPy's own; neither stays in the estimator."""
    X, y, groups = data(estimator)

    def coef(state):
        model = estimator(participation=0.5, random_state=state, rounds=30, tol=0)
        return model.fit(X, y, groups=groups).coef_

    state = np.random.RandomState(0)
    first, second = coef(state), coef(state)
    assert not np.array_equal(first, second)
    assert_array_equal(first, coef(np.random.RandomState(0)))
    assert_array_equal(first, coef(np.random.RandomState(0).randint(np.iinfo(np.int32).max)))
    np.random.seed(3)  # noqa: NPY002
    drawn = coef(None)
    np.random.seed(3)  # noqa: NPY002
    assert_array_equal(coef(None), drawn)


@pytest.mark.parametrize("estimator", BOTH)
def test_pickle_joblib_and_clone(estimator, tmp_path):
    X, y, groups = data(estimator)
    model = OF_FPFC[estimator](lam=0.4).fit(X, y, groups=groups)
    joblib.dump(model, tmp_path / "model")
    for copy in (pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model")):
        assert_array_equal(copy.predict(X, groups=groups), model.predict(X, groups=groups))
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    assert not hasattr(fresh, "labels_")


@pytest.mark.parametrize("estimator", BOTH)
def test_metadata_routing(estimator):
    X, y, groups = data(estimator)
    cv = list(StratifiedKFold(3, shuffle=True, random_state=0).split(X, groups))
    with sklearn.config_context(enable_metadata_routing=True):
        model = OF_FPFC[estimator](lam=0.4).set_fit_request(groups=True)
        model = model.set_predict_request(groups=True).set_score_request(groups=True)
        steps = make_pipeline(StandardScaler(), model)
        name = OF_FPFC[estimator].__name__.lower()
        search = GridSearchCV(steps, {f"{name}__lam": [0.4, 20.0]}, cv=cv).fit(X, y, groups=groups)
        assert search.best_params_ == {f"{name}__lam": 0.4}
        assert_array_equal(search.best_estimator_[-1].labels_, TRUTH)
        assert search.score(X, y, groups=groups) > 0.75
        assert len(search.best_estimator_.predict(X, groups=groups)) == len(X)
        assert cross_val_score(model, X, y, cv=cv, params={"groups": groups}).min() > 0.7


def test_importing_fedfuse_does_not_import_sklearn():
    code = "import fedfuse, sys; assert 'sklearn' not in sys.modules; fedfuse.GroupedRegressor; fedfuse.none"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "module 'fedfuse' has no attribute 'none'" in done.stderr


@pytest.mark.parametrize("estimator", BOTH)
def test_the_method_may_be_chosen(estimator):
    X, y, groups = data(estimator)
    for method in ("fedavg", ff.FPFC(lam=0.4, work=ff.Work(solver="exact"), refit=True)):
        model = clone(estimator(method=method)).fit(X, y, groups=groups)
        assert model.result_.method["method"] == (method if isinstance(method, str) else method.name)
        assert model.n_iter_ == len(model.result_.history)
    assert estimator().fit(X, y, groups=groups).result_.method["method"] == "fusion-tree"


def test_fpfc_without_a_lambda_goes_along_its_path():
    X, y, groups = data(GroupedRegressor)
    model = FPFCRegressor().fit(X, y, groups=groups)
    assert model.result_.method["method"] == "fpfc"
    assert model.result_.lam > 0
