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
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import ConvergenceWarning, SkipTestWarning
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

import fedfuse as ff
from fedfuse import FedfuseError, FPFCClassifier, FPFCRegressor, GroupedClassifier, GroupedRegressor

BOTH = [GroupedClassifier, GroupedRegressor]
OF_FPFC = {GroupedClassifier: FPFCClassifier, GroupedRegressor: FPFCRegressor}
TRUTH = np.array([0, 1, 0, 1, 1, 0])  # the group of each of six devices


class OneDevice:
    """All rows are of one device: scikit-learn's common checks fit without groups."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags._skip_test = False
        return tags

    def _features(self, X, groups, *, reset=False):
        X, _ = super()._features(X, groups, reset=reset)
        return X, np.zeros(len(X), np.int64)


class OneDeviceClassifier(OneDevice, GroupedClassifier):
    pass


class OneDeviceRegressor(OneDevice, GroupedRegressor):
    pass


# Repeated rows may be held out for validation each by itself; of given rows the weights are exact (test_weights.py).
DRAWN = {"check_sample_weight_equivalence_on_dense_data": "which rows are for validation is drawn"}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # most of its data are separable
@parametrize_with_checks(
    [OneDeviceClassifier(), OneDeviceRegressor()], expected_failed_checks=lambda estimator: DRAWN
)  # no other is expected to fail
def test_common_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", BOTH)
def test_common_checks_do_not_ask_for_a_fit_without_devices(estimator):
    with pytest.warns(SkipTestWarning, match="Explicit SKIP"):
        check_estimator(estimator())


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
    return X, target(estimator, signal, rng), groups


def target(estimator, signal, rng):
    """Return values or classes with some noise."""
    if estimator is GroupedRegressor:
        return 300 + 40 * (signal + 0.3 * rng.normal(size=len(signal)))
    return np.where(2 * signal + rng.logistic(size=len(signal)) > 0, "yes", "no")


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
def test_groups_at_prediction_are_needed(estimator):
    X, y, groups = data(estimator)
    model = estimator().fit(X, y, groups=groups)
    assert_array_equal(model.known_rows(X[:3], groups=["z", "a", "x"]), [False, True, False])
    with pytest.warns(UserWarning, match="not seen are predicted by the fallback model: 'z', 'x'; see known_rows"):
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
        ([[1]] * 360, "devices must be one hashable value per row, got a list"),
        (np.zeros((360, 2)), "devices must be one hashable value per row, got a ndarray"),
        ("abc", "devices must be one hashable value per row, got a str"),
        (["a"] * 359, "360 rows but groups has 359"),
        (["a"] * 359 + [None], r"row 359 \(from 0\) has no device"),
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


# 1.9 does, 1.6 and 1.7 do not
@pytest.mark.skipif(
    tuple(map(int, sklearn.__version__.split(".")[:2])) < (1, 8),
    reason="this scikit-learn does not route groups to the score of a pipeline",
)
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


def assert_same(one, two):
    """Assert values that agree but for rounding, or equal classes."""
    if one.dtype.kind == "f":
        assert_allclose(one, two, rtol=1e-9)
    else:
        assert_array_equal(one, two)


def table(estimator, n=80):
    """Return a frame with a column of sites, a category that matters and missing values, and a target."""
    X, signal, groups, rng = rows(n)
    frame = pd.DataFrame(X[:, :3], columns=["income", "rate", "noise"])
    frame.insert(1, "site", groups)
    frame["ward"] = pd.Categorical(rng.choice(["north", "south", "west"], len(X)))
    y = target(estimator, signal + (frame["ward"] == "south").to_numpy(), rng)
    frame.loc[rng.choice(len(X), 20, replace=False), "noise"] = np.nan
    return frame, y


@pytest.mark.parametrize("estimator", BOTH)
@pytest.mark.parametrize("place", [0, 2, -1])
def test_device_may_be_a_column_of_an_array(estimator, place):
    X, y, groups = data(estimator)
    codes = np.unique(groups, return_inverse=True)[1]
    inside = np.insert(X, place % 5, codes, axis=1)
    model = estimator(device=place).fit(inside, y)
    plain = estimator().fit(X, y, groups=codes)
    assert model.n_features_in_ == 5
    assert_array_equal(model.groups_, range(6))
    assert_allclose(model.coef_, plain.coef_, atol=1e-12)
    assert_same(model.predict(inside), plain.predict(X, codes))
    text = np.insert(X.astype(object), place % 5, groups, axis=1)
    assert_same(estimator(device=place).fit(text, y).predict(text), plain.predict(X, codes))


@pytest.mark.parametrize("estimator", BOTH)
def test_device_may_be_a_column_of_a_frame(estimator):
    X, y, groups = data(estimator)
    frame = pd.DataFrame(X, columns=["income", "rate", "noise", "same"]).assign(site=groups)
    plain = estimator().fit(X, y, groups=groups)
    for model in (estimator(device="site"), estimator(device=4), OF_FPFC[estimator](lam=0.4, device="site")):
        model = pickle.loads(pickle.dumps(clone(model).fit(frame, y)))
        assert_array_equal(model.labels_, TRUTH)
        assert model.result_.profile.features == ("income", "rate", "noise", "same")
        assert_array_equal(model.feature_names_in_, frame.columns)
        assert model.known_rows(frame).all()
    assert_allclose(estimator(device="site").fit(frame, y).coef_, plain.coef_)


@pytest.mark.parametrize("estimator", BOTH)
def test_categories_and_missing_values(estimator):
    """What a frame's encoding gives is what the same features give as an array."""
    frame, y = table(estimator)
    model = estimator(device="site").fit(frame, y)
    features = model.result_.profile.features
    assert features == ("income", "rate", "noise", "noise missing", "ward=north", "ward=south", "ward=west")
    assert_array_equal(model.labels_, TRUTH)
    gaps = frame["noise"].isna()
    wards = [frame["ward"] == ward for ward in ("north", "south", "west")]
    numbers = frame[["income", "rate"]].assign(noise=frame["noise"].fillna(frame["noise"].median()))
    X = np.column_stack([numbers, gaps, *wards]).astype(float)
    plain = estimator().fit(X, y, groups=frame["site"])
    assert_same(model.predict(frame), plain.predict(X, frame["site"]))
    assert_allclose(model.coef_, plain.coef_)
    new = frame[:1].assign(income=np.nan, ward="east")  # neither was there in training
    filled = [[numbers["income"].median(), *X[0, 1:4], 0, 0, 0]]
    assert_same(model.predict(new), plain.predict(filled, frame["site"][:1]))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        assert_array_equal(model.predict(frame.to_numpy()), model.predict(frame))


def test_scorers_and_splitters_of_scikit_learn():
    frame, y = table(GroupedClassifier)
    y = y == "yes"
    folds = StratifiedKFold(3, shuffle=True, random_state=0)
    scores = cross_val_score(GroupedClassifier(device="site"), frame, y, scoring="roc_auc", cv=folds)
    numbers = frame[["income", "rate"]].assign(south=frame["ward"] == "south")
    pooled = cross_val_score(
        make_pipeline(StandardScaler(), LogisticRegression()), numbers, y, scoring="roc_auc", cv=folds
    )
    assert scores.min() > 0.85 > 0.8 > pooled.max()
    losses = cross_val_score(GroupedClassifier(device="site"), frame, y, scoring="neg_log_loss", cv=folds)
    assert losses.min() > -0.5


@pytest.mark.parametrize("estimator", BOTH)
def test_grid_search_over_the_method(estimator):
    frame, y = table(estimator)
    folds = list(StratifiedKFold(3, shuffle=True, random_state=0).split(frame, frame["site"]))
    grid = {"method": [None, "fedavg", ff.FPFC(lam=0.4, work=ff.Work(solver="exact"), refit=True)]}
    search = GridSearchCV(estimator(device="site", rounds=300, tol=0), grid, cv=folds).fit(frame, y)
    grouped, pooled, fused = search.cv_results_["mean_test_score"]
    assert min(grouped, fused) > pooled + 0.1
    assert search.best_params_["method"] != "fedavg"
    assert search.score(frame, y) > 0.8


@pytest.mark.parametrize("estimator", BOTH)
def test_inspection(estimator):
    """The site matters, as slopes differ between groups; noise does not."""
    frame, y = table(estimator)
    model = estimator(device="site").fit(frame, y)
    found = permutation_importance(model, frame, y, n_repeats=3, random_state=0)
    importance = dict(zip(frame.columns, found.importances_mean, strict=True))
    assert min(importance[name] for name in ("site", "income", "rate", "ward")) > 5 * abs(importance["noise"])
    assert importance["site"] > 0.1
    line = partial_dependence(model, frame[frame["site"] == "b"], ["income"], grid_resolution=5)["average"][0]
    assert (np.diff(line) < 0).all()


@pytest.mark.parametrize("estimator", BOTH)
def test_pipeline_with_frames_inside(estimator):
    frame, y = table(estimator)
    scaled = ColumnTransformer(
        [("scaled", StandardScaler(), ["income", "rate"])], remainder="passthrough", verbose_feature_names_out=False
    )
    steps = make_pipeline(scaled, estimator(device="site")).set_output(transform="pandas")
    answer = clone(steps).fit(frame, y).predict(frame)
    alone = estimator(device="site").fit(frame, y).predict(frame)
    assert_same(answer, alone)


@pytest.mark.filterwarnings("ignore:The groups parameter is ignored")
@pytest.mark.parametrize("estimator", BOTH)
def test_groups_that_are_not_routed_are_refused(estimator):
    X, y, groups = data(estimator)
    with pytest.raises(FedfuseError, match="the device of each row is missing: pass groups= to fit"):
        estimator().fit(X, y)
    for search in (cross_val_score, GridSearchCV(estimator(), {"tol": [0.1]}, cv=3).fit):
        given = (estimator(),) if search is cross_val_score else ()
        with pytest.raises(ValueError, match=r"(?s)fits failed.*only to the splitter, unless it is routed"):
            search(*given, X, y, groups=groups)


@pytest.mark.parametrize("estimator", BOTH)
def test_unseen_devices_are_predicted_by_the_fallback_and_flagged(estimator):
    frame, y = table(estimator)
    model = estimator(device="site").fit(frame, y)
    new = frame.assign(site=frame["site"].replace({"a": "x", "d": "y"}))
    assert_array_equal(model.known_rows(new), ~new["site"].isin(["x", "y"]))
    with pytest.warns(
        UserWarning, match="not seen are predicted by the fallback model: 'x', 'y'; see known_rows"
    ) as told:
        answer = model.predict(new)
    assert len(told) == 1
    assert_array_equal(answer[model.known_rows(new)], model.predict(frame)[model.known_rows(new)])
    with pytest.warns(UserWarning, match="not seen"):
        by_name = model.predict(frame.assign(site="z"))
    assert_array_equal(answer[~model.known_rows(new)], by_name[~model.known_rows(new)])
    with pytest.warns(UserWarning, match="not seen"):
        scores = cross_val_score(estimator(device="site"), frame, y, cv=GroupKFold(3), groups=frame["site"])
    assert np.isfinite(scores).all()


@pytest.mark.parametrize("spread", [1.0, 0.01])
def test_the_fallback_is_one_model_for_all(spread):
    """Where the odd device's slope was seen over a small range of X only, the mean slope is wrong for all."""
    rng = np.random.default_rng(3)
    site = np.repeat(["a", "b", "c", "odd"], 100)
    X = np.where(site == "odd", spread, 1.0) * rng.normal(size=400)
    y = np.where(site == "odd", -3 / spread, 3.0) * X + 0.1 * rng.normal(size=400)
    model = GroupedRegressor().fit(X[:, None], y, groups=site)
    assert_array_equal(model.labels_, [0, 0, 0, 1])
    slopes = model.coef_[model.labels_].mean(), model.coef_[0].item(), model.fallback_coef_.item()
    mean, largest, fallback = (np.square(y - slope * X).mean() for slope in slopes)
    assert fallback <= 1.01 * min(mean, largest)


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("sit", "a column of X, got 'sit'; did you mean 'site'[?] its columns are 'income', 'site'"),
        (7, "device must be the name or position of a column of X, got 7; its columns are 'income'"),
        (["site"], r"a column of X, got \['site'\]"),
    ],
)
def test_device_columns_that_cannot_be_used(device, words):
    frame, y = table(GroupedRegressor)
    with pytest.raises(FedfuseError, match=words):
        GroupedRegressor(device=device).fit(frame, y)
    with pytest.raises(FedfuseError, match="got 'site'; its columns are 5 without names"):
        GroupedRegressor(device="site").fit(frame.to_numpy(), y)
    with pytest.raises(FedfuseError, match="device='site' is already a column of X"):
        GroupedRegressor(device="site").fit(frame, y, groups=frame["site"])
    frame.loc[3, "site"] = None
    with pytest.raises(FedfuseError, match=r"row 3 \(from 0\) has no device"):
        GroupedRegressor(device="site").fit(frame, y)
