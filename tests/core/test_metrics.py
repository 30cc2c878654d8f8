import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import ttest_rel
from sklearn import metrics as sk

from fedfuse.core.metrics import METRICS, metric_for
from fedfuse.errors import FedfuseError

# AUC is read from a histogram of log-odds: what its bins may cost.
TOLERANCE = {"auc": 2e-3}


def _auc(y, p, **more):
    return sk.roc_auc_score(y, p[:, 1] if p.shape[1] == 2 else p, multi_class="ovr", **more)


BY_HAND = {
    "accuracy": lambda y, p, **w: sk.accuracy_score(y, p.argmax(1), **w),
    "balanced-accuracy": lambda y, p, **w: sk.balanced_accuracy_score(y, p.argmax(1), **w),
    "log-loss": lambda y, p, **w: sk.log_loss(y, p, labels=np.arange(p.shape[1]), **w),
    "auc": _auc,
    "f1": lambda y, p, **w: sk.f1_score(y, p.argmax(1), average="macro", **w),
    "rmse": lambda y, p, **w: np.sqrt(sk.mean_squared_error(y, p, **w)),
    "mae": sk.mean_absolute_error,
    "r2": sk.r2_score,
}


def predictions(goal, n, classes, seed, sharpness=1.5):
    """Rows of classes with probabilities, or of values with guesses, neither right nor hopeless."""
    rng = np.random.default_rng(seed)
    if goal == "regression":
        y = rng.normal(3, 2, n)
        return y + rng.normal(size=n), y
    y = rng.integers(classes, size=n)
    return softmax(rng.normal(size=(n, classes)) + sharpness * np.eye(classes)[y], axis=1), y


def spans(counts, gap=3):
    """Where devices' rows lie, with rows of other parts in between."""
    start = np.cumsum(counts) - counts + gap * np.arange(len(counts))
    return start, start + counts


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("name", METRICS)
def test_a_device_has_the_value_that_scikit_learn_has(name, classes, weighted):
    metric, (start, stop) = METRICS[name], spans(np.array([400, 250]))
    outputs, y = predictions(metric.goal, stop[-1], classes, seed=1)
    weights = np.random.default_rng(2).exponential(size=len(y)) if weighted else None
    sums = metric.sums(outputs, y, start, stop, weights)
    assert sums.shape == (2, metric.size(classes if metric.goal == "classification" else 0))
    for i, value in enumerate(metric.by_device(sums)):
        rows = slice(start[i], stop[i])
        more = {"sample_weight": weights[rows]} if weighted else {}
        assert value == pytest.approx(BY_HAND[name](y[rows], outputs[rows], **more), abs=TOLERANCE.get(name, 1e-12))


@pytest.mark.parametrize("name", METRICS)
def test_overall_is_the_mean_over_devices_or_that_of_all_rows(name):
    metric, counts = METRICS[name], np.array([300, 40, 120])
    start, stop = spans(counts, gap=0)
    outputs, y = predictions(metric.goal, counts.sum(), 3, seed=3)
    each = [BY_HAND[name](y[a:b], outputs[a:b]) for a, b in zip(start, stop, strict=True)]
    by_hand = BY_HAND[name](y, outputs) if metric.pooled else np.mean(each)
    assert metric.overall(metric.sums(outputs, y, start, stop)) == pytest.approx(by_hand, abs=TOLERANCE.get(name, 1e-9))


@settings(max_examples=30)
@given(st.sampled_from(sorted(METRICS)), st.integers(0, 1000))
def test_whole_weights_are_rows_that_come_more_than_once(name, seed):
    metric, rng = METRICS[name], np.random.default_rng(seed)
    outputs, y = predictions(metric.goal, 30, 3, seed)
    times = rng.integers(0, 4, size=30)
    once = metric.sums(outputs, y, np.array([0]), np.array([30]), times)
    rows = np.repeat(np.arange(30), times)
    repeated = metric.sums(outputs[rows], y[rows], np.array([0]), np.array([len(rows)]))
    np.testing.assert_allclose(once, repeated, rtol=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_devices_without_rows_have_no_value_and_do_not_count(name):
    metric = METRICS[name]
    outputs, y = predictions(metric.goal, 50, 3, seed=0)
    sums = metric.sums(outputs, y, np.array([0, 50]), np.array([50, 50]))
    assert np.isnan(metric.by_device(sums)).tolist() == [False, True]
    assert metric.overall(sums) == pytest.approx(metric.by_device(sums)[0])
    assert np.isnan(metric.overall(sums[1:]))
    assert np.isnan(metric.difference(sums, sums)[1])  # one device has no spread


def test_one_class_has_no_auc_and_a_constant_target_no_r2():
    p, one = np.array([[0.4, 0.6], [0.3, 0.7]]), np.array([1, 1])
    whole = np.array([0]), np.array([2])
    assert np.isnan(METRICS["auc"].by_device(METRICS["auc"].sums(p, one, *whole)))
    assert np.isnan(METRICS["r2"].by_device(METRICS["r2"].sums(np.zeros(2), np.full(2, 7.3), *whole)))


def test_ties_count_half_and_certainty_is_finite():
    p = np.array([0.5, 0.5, 0.0, 1.0])
    y, whole = np.array([0, 1, 0, 1]), (np.array([0]), np.array([4]))
    outputs = np.column_stack([1 - p, p])
    assert METRICS["auc"].overall(METRICS["auc"].sums(outputs, y, *whole)) == 7 / 8  # of four pairs one is a tie
    assert np.isfinite(METRICS["log-loss"].overall(METRICS["log-loss"].sums(outputs, 1 - y, *whole)))


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if not metric.pooled])
def test_the_jackknife_of_a_mean_is_the_paired_t_test(name):
    metric, (start, stop) = METRICS[name], spans(np.full(12, 30))
    a, y = predictions(metric.goal, stop[-1], 3, seed=4)
    b = a[::-1] if metric.goal == "classification" else a + 0.3
    sums = [metric.sums(outputs, y, start, stop) for outputs in (a, b)]
    difference, error = metric.difference(*sums)
    test = ttest_rel(*(metric.by_device(s) for s in sums))
    assert difference / error == pytest.approx(test.statistic)
    assert difference == pytest.approx(metric.overall(sums[0]) - metric.overall(sums[1]))


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.pooled])
def test_the_jackknife_error_is_the_spread_over_federations(name):
    """Of 200 federations whose rows are drawn alike; the jackknife is a little too large, never too small."""
    metric, (start, stop), found = METRICS[name], spans(np.full(15, 20)), []
    for seed in range(200):
        a, y = predictions(metric.goal, stop[-1], 3, seed)
        noise = np.random.default_rng(10_000 + seed).normal(size=a.shape)
        b = softmax(np.log(a) + noise, axis=1) if metric.goal == "classification" else a + noise
        found.append(metric.difference(metric.sums(a, y, start, stop), metric.sums(b, y, start, stop)))
    differences, errors = np.array(found).T
    assert 0.85 < errors.mean() / differences.std() < 1.25


def test_metrics_are_asked_for_by_name():
    assert metric_for("classification").name == "accuracy"
    assert metric_for("regression", "mae") is METRICS["mae"]
    with pytest.raises(FedfuseError, match=r"no metric 'auc' for values; .*known: rmse, mae, r2"):
        metric_for("regression", "auc")
