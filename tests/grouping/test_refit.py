"""The refit: pooled optima, what it costs, what it never looks at, and that it survives interruptions and silence."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

import fedfuse as ff
from fedfuse.engines import Engine, InProcess
from fedfuse.grouping import simulated_replies
from fedfuse.grouping.pooled_fit import pool
from fedfuse.grouping.refit import (
    ColumnMoments,
    FinalFit,
    Fit,
    Oracle,
    RescaleColumns,
    SendStatistics,
    TellModels,
)
from fedfuse.models import default_model
from fedfuse.protocol.tasks import Gradient
from support.interruption import resumed_at
from support.planted import Keep, planted

EXACT = ff.Work(solver="exact")


class Silent(Engine):
    """Drops some replies, by chance but reproducibly; or all of certain devices."""

    def __init__(self, federation, share=0.3, never=(), **settings):
        model = default_model(federation.goal).sized(federation.n_features, federation.n_classes)
        self._fleet = InProcess(federation, model, **settings)
        self._share, self._never, self._rng = share, set(never), np.random.default_rng(0)

    def submit(self, orders):
        self._fleet.submit(orders)

    def collect(self):
        replies = self._fleet.collect()
        return [r for r in replies if r.device not in self._never and self._rng.random() >= self._share]


class LiesLate(Silent):
    """One device turns its gradients round as soon as validation rows are among them."""

    def __init__(self, federation, who, **settings):
        super().__init__(federation, share=0.0, **settings)
        self._who, self._lie = who, False

    def submit(self, orders):
        self._lie = any(isinstance(o.task, Gradient) and o.task.rows == "train+validation" for o in orders)
        super().submit(orders)

    def collect(self):
        return [replace(r, values=-r.values) if self._lie and r.device == self._who else r for r in super().collect()]


def pooled_optimum(federation, group, part="train+validation"):
    """The minimiser of a group's pooled loss, by scipy."""
    rows = federation.rows(part)
    pieces = [rows.of(i) for i in np.flatnonzero(federation.truth == group)]
    X, y = (np.concatenate(piece) for piece in zip(*pieces, strict=True))
    X = np.column_stack([X, np.ones(len(X))])
    if federation.goal == "regression":
        return np.linalg.lstsq(X, y, rcond=None)[0]
    C = federation.n_classes

    def loss(v):
        scores = X @ v.reshape(C, -1).T
        top = scores.max(axis=1, keepdims=True)
        p = np.exp(scores - top)
        f = np.mean(np.log(p.sum(axis=1)) + top[:, 0] - scores[np.arange(len(y)), y])
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(y)), y] -= 1
        return f, (p.T @ X / len(y)).ravel()

    best = minimize(loss, np.zeros(C * X.shape[1]), jac=True, method="L-BFGS-B", tol=1e-14).x.reshape(C, -1)
    return np.concatenate([best[:, :-1].ravel(), best[:, -1]])


def test_refit_on_the_true_clusters_is_the_pooled_least_squares_fit():
    federation = planted(n=400, noise=1.0)
    result = ff.fit(federation, ff.FPFC(lam=1.0, work=EXACT, refit=True), dtype="float64")
    assert result.ari == 1
    assert result.stages[-1]["name"] == TellModels.name
    for group in (0, 1):
        np.testing.assert_allclose(result.cluster_models[group], pooled_optimum(federation, group), atol=5e-3)


def test_clusters_that_came_to_the_end_go_on_from_there_when_validation_rows_join():
    """They know their curvature by then: it takes them a few evaluations, and they end at the optimum of all rows."""
    federation = planted("classification", n=600, p=10, noise=3.0)
    result = ff.fit(federation, Oracle(), participation=1.0, dtype="float64")
    asked = result.history["stage"].value_counts()
    assert 0 < asked[FinalFit.name] <= asked[Fit.name] // 2
    rows = federation.rows("train+validation")
    for group in (0, 1):
        members = np.flatnonzero(federation.truth == group)
        X, y = (np.concatenate(piece) for piece in zip(*(rows.of(i) for i in members), strict=True))
        optima = [pooled_optimum(federation, group, part) for part in ("train+validation", "train")]
        ours, least, before = result.model.row_losses(np.stack([result.models[members[0]], *optima]), X, y).mean(axis=1)
        assert ours - least < 0.2 * (before - least)


def test_who_begins_to_lie_when_validation_rows_join_is_left_out_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr(simulated_replies, "MAX_STATISTICS_MODELS", 0)
    federation = planted(n=400, noise=1.0)
    result = ff.fit(federation, Oracle(), engine=LiesLate(federation, 2, dtype="float64"), dtype="float64")
    assert result.suspects.tolist() == [2]
    rows, honest = federation.rows("train+validation"), [i for i in range(3) if i != 2]
    X, y = (np.concatenate(piece) for piece in zip(*(rows.of(i) for i in honest), strict=True))
    best = np.linalg.lstsq(np.column_stack([X, np.ones(len(X))]), y, rcond=None)[0]
    np.testing.assert_allclose(result.models[0], best, atol=5e-3)
    np.testing.assert_allclose(result.models[3], pooled_optimum(federation, 1), atol=5e-3)


def test_oracle_on_classes_predicts_as_the_pooled_optimum():
    federation = planted("classification", n=600, noise=3.0)
    result = ff.fit(federation, Oracle(), dtype="float64")
    X = np.random.default_rng(5).normal(size=(200, 3))
    for group in (0, 1):
        best = replace(result, models=np.tile(pooled_optimum(federation, group), (6, 1)))
        np.testing.assert_allclose(result.outputs(3 * group, X), best.outputs(0, X), atol=0.02)


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_oracle_is_the_refit_of_the_truth(goal):
    federation = planted(goal, n=150)
    oracle = ff.fit(federation, Oracle())
    lam = 1.0 if goal == "regression" else 0.3
    found = ff.fit(federation, ff.FPFC(lam=lam, work=EXACT, refit=True))
    assert found.ari == oracle.ari == 1
    np.testing.assert_array_equal(found.models, oracle.models)
    assert oracle.lam is None
    assert found.lam == lam


def test_oracle_needs_the_truth():
    with pytest.raises(ff.FedfuseError, match="true groups"):
        ff.fit(replace(planted(), truth=None), Oracle())


def test_validation_score_is_of_models_that_never_saw_those_rows():
    federation = planted(n=150)
    result = ff.fit(federation, Oracle(), dtype="float64")
    for group in (0, 1):
        X, y = federation.rows("validation").of(3 * group)
        w = pooled_optimum(federation, group, "train")
        rmse = np.sqrt(np.mean((np.column_stack([X, np.ones(len(X))]) @ w - y) ** 2))
        assert result.scores["validation"][3 * group] == pytest.approx(rmse, rel=0.02)


def test_test_rows_never_matter():
    federation = planted(n=100)
    y, X = federation.y.copy(), federation.X.copy()
    for start, stop in federation.cuts[:, 2:]:
        y[start:stop], X[start:stop] = 1e3, -1e3
    a, b = (ff.fit(f, Oracle()) for f in (federation, replace(federation, X=X, y=y)))
    np.testing.assert_array_equal(a.models, b.models)
    assert a.score("test") != b.score("test")


def test_gradients_cost_what_a_hand_counts(monkeypatch):
    monkeypatch.setattr(simulated_replies, "MAX_STATISTICS_MODELS", 0)
    federation = planted(m=2, groups=1, p=3)
    result = ff.fit(federation, Oracle())
    d, columns, m = 4, 4, 2  # three features and the target or the intercept
    scales = {ColumnMoments.name: 2 * columns, RescaleColumns.name: 2 * columns}
    floats = {**scales, Fit.name: d + d + 2, FinalFit.name: d + d + 1}
    assert result.cost_floats == sum(m * floats[step] for step in result.history["stage"])


def test_summaries_cost_what_a_hand_counts():
    """Means and covariances of four columns on two parts, and one number, come up; the model goes down."""
    result = ff.fit(planted(m=5, groups=2, p=3), Oracle())
    assert result.cost_floats == 5 * (2 * (4 + 10) + 1 + 4)
    assert result.history["stage"].tolist() == [SendStatistics.name, TellModels.name]


@pytest.mark.parametrize("robust", ["screen", "median", "none"])
def test_gradients_and_summaries_lead_to_the_same_models(robust, monkeypatch):
    federation = planted(m=7, groups=2, n=80, p=3)
    one = ff.fit(federation, Oracle(robust=robust), dtype="float64")
    monkeypatch.setattr(simulated_replies, "MAX_STATISTICS_MODELS", 0)
    other = ff.fit(federation, Oracle(robust=robust), dtype="float64")
    np.testing.assert_allclose(one.models, other.models, rtol=1e-7, atol=1e-9)
    assert other.cost_floats > 2 * one.cost_floats


def test_wide_tables_are_fitted_by_gradients():
    result = ff.fit(planted(m=4, groups=1, n=200, p=60), Oracle())
    assert Fit.name in result.history["stage"].tolist()


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_resumed_anywhere_equals_uninterrupted(goal, tmp_path):
    federation = planted(goal, m=5, groups=2, n=30)
    whole = ff.fit(federation, Oracle(), participation=0.5)
    steps = whole.history["stage"].tolist()
    # after the first round of every step, when some devices have answered, and later in the long ones
    stops = {steps.index(step) + 1 for step in steps} | {len(steps) // 3, 2 * len(steps) // 3}
    stops = sorted(stops - {0, len(steps)})
    for resumed in resumed_at(stops, federation, Oracle(), tmp_path / "run", participation=0.5):
        np.testing.assert_array_equal(resumed.models, whole.models)
        assert resumed.cost_floats == whole.cost_floats
        assert len(resumed.history) == len(whole.history)


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_lost_replies_do_not_keep_it_from_the_end(goal):
    federation = planted(goal, m=8, n=100, groups=3)  # one of the clusters has two devices
    whole = ff.fit(federation, Oracle())
    lossy = ff.fit(federation, Oracle(), engine=Silent(federation))
    assert np.isfinite(lossy.models).all()
    sign = 1 if goal == "classification" else -1
    assert sign * lossy.score("test") > sign * whole.score("test") - 0.1


def test_a_cluster_that_says_nothing_keeps_its_start():
    federation = planted(m=6, n=100, groups=3)
    result = ff.fit(federation, Oracle(), engine=Silent(federation, share=0.0, never=(4, 5)))
    assert result.converged
    np.testing.assert_allclose(result.models[4, :-1], 0, atol=1e-6)
    assert result.scores["test"][:4].max() < 0.3


def test_a_cluster_that_is_silent_for_a_while_is_asked_again():
    federation = planted(m=6, n=100, groups=3, noise=0.5)
    engine = Silent(federation, share=0.0, never=(4, 5))

    class Later(ff.Callback):
        def on_round(self, run, row):
            engine._never = {4, 5} if row["stage"] == Fit.name and 6 <= row["round"] < 11 else set()

    engine._never = set()
    whole = ff.fit(federation, Oracle())
    result = ff.fit(federation, Oracle(), engine=engine, callbacks=[Later()])
    np.testing.assert_allclose(result.models, whole.models, atol=0.02)


def test_a_federation_that_says_nothing_is_an_error():
    federation = planted()
    with pytest.raises(ff.FedfuseError, match="no device"):
        ff.fit(federation, Oracle(), engine=Silent(federation, share=1.0))


def test_devices_without_validation_rows_are_refitted_too():
    federation = planted(n=60, validation=0)
    result = ff.fit(federation, Oracle())
    assert result.score("test") < 0.3


def test_refit_can_be_left_out():
    keep = Keep()
    result = ff.fit(planted(), ff.FPFC(lam=1.0, work=EXACT, refit=False), callbacks=[keep])
    assert [stage["name"] for stage in result.stages] == ["fpfc"]
    assert keep.run.rule.name == "fpfc"


def test_constant_columns_do_no_harm():
    rng = np.random.default_rng(0)
    data = []
    for i in range(4):
        X = np.column_stack([rng.normal(size=(80, 2)), np.full(80, 7.0)])
        data.append((X, X[:, 0] * (1 if i < 2 else -1) + 0.1 * rng.normal(size=80)))
    result = ff.fit(ff.Federation.from_arrays(data, truth=[0, 0, 1, 1]), Oracle())
    assert np.isfinite(result.models).all()
    assert result.score("test") < 0.2


def test_a_loss_that_is_usual_elsewhere_is_no_lie():
    """Of two devices one is fitted without error: what the other loses by the same model must still be seen."""
    labels, rows = np.array([0, 0, 1, 1, 1]), np.full(5, 10)
    honest = np.zeros((5, 4))
    honest[:, 3] = [1e-9, 11.0, 0.5, 0.6, 0.7]
    seen = pool(honest, labels, 2, 2, rows, rows, "screen").validation_loss
    np.testing.assert_allclose(seen, [5.5, 0.6])
    honest[1, 3] = 1e30
    assert pool(honest, labels, 2, 2, rows, rows, "screen").validation_loss[0] < 1e3
