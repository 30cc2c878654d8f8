"""IFCA: a tiny problem worked out in numbers, and what its updates must be equal to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from scipy.special import softmax

import fedfuse as ff
from fedfuse.data import load
from fedfuse.data.synthetic import synthetic_truth
from fedfuse.errors import FedfuseError
from fedfuse.grouping.refit import Oracle
from fedfuse.training.fit import fit
from support.partly_fused import PartlyFused
from support.planted import Keep, begun, descended, gradient, line, planted, written_out

WORK = ff.Work(steps=3, lr=0.05)


# Two devices, y = x and y = -x on x = 1, -1: f_1 = (w - 1)^2 + b^2 and f_2 = (w + 1)^2 + b^2.
# Models (0.5, 0) and (-0.25, 1) have losses 0.25 and 2.5625 on the first, 2.25 and 1.5625 on the second.
TINY = written_out(line(1.0), line(-1.0))
NEAR = ((0.5, 0.0), (-0.25, 1.0))


@dataclass(frozen=True)
class Near(ff.IFCA):
    """IFCA whose models begin where a test says."""

    near: tuple[tuple[float, ...], ...] = ()

    def init(self, info, previous=None):
        return replace(super().init(info, previous), heads=np.array(self.near, info.dtype))


@pytest.mark.parametrize(
    ("average", "expected"),
    [
        # gradients (-1, 0) and (1.5, 2); step 0.1, divided by both active devices
        ("gradient", [(0.55, 0.0), (-0.325, 0.9)]),
        # one local step each, and each is its cluster's only member
        ("model", [(0.6, 0.0), (-0.4, 0.8)]),
    ],
)
def test_a_tiny_problem_by_hand(average, expected):
    run = begun(TINY, Near(n_models=2, average=average, near=NEAR, work=ff.Work(steps=1, lr=0.1)))
    run.round()
    np.testing.assert_allclose(run.state.heads, expected, atol=1e-15)
    assert run.state.choice.tolist() == [0, 1]
    result = run.result()
    assert result.labels.tolist() == [0, 1]
    np.testing.assert_allclose(result.models, expected, atol=1e-15)
    assert result.cost_floats == 2 * (2 * 2 + 2 + 2)  # both models down; an answer and a one-hot up


def test_soft_estimates_favour_the_better_model():
    """Weights softmax(-loss / temperature), and every device works on every model."""
    run = begun(TINY, Near(n_models=2, average="gradient", temperature=2.0, near=NEAR, work=ff.Work(lr=0.1)))
    run.round()
    losses = np.array([[0.25, 2.5625], [2.25, 1.5625]])
    s = softmax(-losses / 2, axis=1)
    assert s[0, 0] > 0.5 > s[1, 0]
    w, b = np.array(NEAR).T
    targets = np.array([1.0, -1.0])
    expected = [
        (w[j] - 0.05 * s[:, j] @ (2 * (w[j] - targets)), b[j] - 0.05 * s[:, j].sum() * 2 * b[j]) for j in range(2)
    ]
    np.testing.assert_allclose(run.state.heads, expected, atol=1e-12)


def test_soft_means_of_models():
    """Option II with weights: theta_j is the mean of what devices made of it, by rows times s_ij."""
    federation = planted(m=4)
    run = begun(federation, ff.IFCA(n_models=2, temperature=1.0, work=WORK))
    before = run.state.heads.copy()
    run.round()
    n = federation.rows("train+validation").counts
    data = run.engine.load("train+validation")
    losses = np.array([run.model.losses(data, np.arange(4), np.tile(w, (4, 1))) for w in before]).T
    s = n[:, None] * softmax(-losses, axis=1)
    for j, w in enumerate(before):
        trained = np.array([descended(federation, i, w, WORK) for i in range(4)])
        np.testing.assert_allclose(run.state.heads[j], s[:, j] @ trained / s[:, j].sum(), atol=1e-10)


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_one_model_is_fedavg(goal):
    options = {"rounds": 10, "participation": 0.5, "tol": 0, "seed": 4, "dtype": "float64"}
    federation = planted(goal)
    one = fit(federation, ff.IFCA(n_models=1, work=WORK), **options)
    other = fit(federation, ff.FedAvg(start="normal", work=WORK), **options)
    np.testing.assert_array_equal(one.models, other.models)


def test_gradient_averaging_is_descent_on_the_pooled_loss_with_a_shorter_step():
    """Devices of a group have the same rows: each model goes gamma * members / active; nobody's stays bit by bit."""
    first, second = line(2.0, 1.0), line(-2.0, 0.5)
    federation = written_out(first, second, first, second, first)
    near = ((1.0, 1.0), (-1.0, 1.0), (50.0, 50.0))
    turns = [[0, 1, 2, 3, 4], [0, 2, 3], [1, 3], [2]]
    run = begun(
        federation,
        Near(n_models=3, average="gradient", near=near, work=ff.Work(lr=0.3)),
        participation=lambda k, m: np.array(turns[k]),
    )
    theta = np.array(near)
    for active in turns:
        run.round()
        for j in (0, 1):
            members = [i for i in active if i % 2 == j]
            share = len(members) / len(active)
            theta[j] = theta[j] - 0.3 * share * gradient(federation, j, theta[j])
        np.testing.assert_allclose(run.state.heads[:2], theta[:2], atol=1e-12)
        np.testing.assert_array_equal(run.state.heads[2], near[2])


def test_without_members_a_mean_stays_as_it_is():
    run = begun(TINY, Near(n_models=3, near=(*NEAR, (50.0, 50.0)), work=WORK))
    for _ in range(5):
        run.round()
    np.testing.assert_array_equal(run.state.heads[2], (50.0, 50.0))
    assert run.result().n_clusters == 2


def test_ties_go_to_the_lowest_number():
    """On y = 0 the slopes 1 and -1 are equally wrong."""
    run = begun(written_out(line(0.0)), Near(n_models=2, near=((1.0, 0.0), (-1.0, 0.0)), work=ff.Work(1, 0.1)))
    run.round()
    np.testing.assert_allclose(run.state.heads, [(0.8, 0.0), (-1.0, 0.0)])
    # now the second is worse, for those who would choose again
    assert run.result().labels.tolist() == [0]


def test_who_was_not_asked_chooses_at_the_end_and_by_training_rows():
    """Device 1 was never active, and its test rows say the opposite of its training rows."""
    up, down = line(1.0)[0], line(-1.0)[0]
    federation = written_out((up, down), (down, up), (up, down))
    near = ((0.9, 0.0), (-0.9, 0.0))
    method = Near(n_models=2, near=near, work=ff.Work(steps=1, lr=0.01))
    result = fit(federation, method, rounds=2, tol=0, participation=lambda k, m: np.array([0, 2]), dtype="float64")
    assert result.labels.tolist() == [0, 1, 0]
    np.testing.assert_array_equal(result.models[1], near[1])
    assert result.cost_floats == 2 * 2 * (2 * 2 + 2 + 2)  # choosing for itself costs nothing


@pytest.mark.parametrize("average", ["gradient", "model"])
def test_of_a_model_with_shared_weights_only_the_heads_are_many(average):
    """The shared part goes with all active devices, a head with its members."""
    federation, turn = planted(m=4), [0, 1, 3]
    work = ff.Work(steps=1 if average == "gradient" else 3, lr=0.05)
    method = ff.IFCA(n_models=2, average=average, work=work)
    run = begun(federation, method, PartlyFused(cut=2), participation=lambda k, m: np.array(turn))
    shared, heads = run.state.shared.copy(), run.state.heads.copy()
    run.round()
    n, choice = federation.rows("train+validation").counts, run.state.choice
    whole = {i: np.concatenate([shared, heads[choice[i]]]) for i in turn}
    new = {i: descended(federation, i, whole[i], work) for i in turn}
    weight = {i: n[i] if average == "model" else 1.0 for i in turn}
    total = sum(weight.values())
    np.testing.assert_allclose(run.state.shared, sum(weight[i] * new[i][:2] for i in turn) / total, atol=1e-12)
    for j in range(2):
        inside = [i for i in turn if choice[i] == j]
        moved = sum((weight[i] * (new[i][2:] - heads[j]) for i in inside), np.zeros(2))
        members = sum(weight[i] for i in inside) if average == "model" else total
        np.testing.assert_allclose(run.state.heads[j], heads[j] + moved / max(members, 1), atol=1e-12)
    assert run.ledger.down == 3 * (2 + 2 * 2)
    assert run.ledger.up == 3 * (4 + 2)


def test_models_that_begin_near_the_truth_find_the_groups():
    federation, keep = planted(m=8, n=80), Keep()
    model = begun(federation, ff.Local()).model
    data = model.load(federation.rows("train"), np.float64)
    own = model.train(data, np.array([0, 7]), np.zeros((2, model.d)), None, 0.0, ff.Work(solver="exact"))
    method = Near(n_models=2, near=tuple(map(tuple, own + 0.3)), work=WORK)
    result = fit(federation, method, rounds=60, callbacks=[keep])
    assert result.labels.tolist() == federation.truth.tolist()


def test_restarts_keep_the_start_that_validation_rows_prefer():
    """Each start is tried as if it were the only one; the chosen one is trained anew, and all of it is counted."""
    federation, validation = planted(m=8, n=80, groups=3, seed=1), []
    method = ff.IFCA(n_models=3, restarts=3, work=WORK)
    result = fit(federation, method, rounds=160, tol=0, dtype="float64")
    trial = int(result.history["stage"].eq("trying").sum()) // 3
    for draw in range(3):
        run = begun(federation, replace(method, restarts=1, first_draw=draw, rows="train"))
        for _ in range(trial):
            run.round()
        chosen = run.rule.outcome(run.state).models
        validation.append(run.model.metric(run.engine.load("validation"), np.arange(8), chosen).mean())
    judged = result.history.loc[result.history["stage"] == "judging", "watched"]
    np.testing.assert_allclose(judged, validation, atol=1e-12)
    assert len(set(validation)) == 3
    assert result.chosen == {"n_models": 3, "first_draw": int(np.argmin(validation))}

    training = 160 - 3 * (trial + 1)
    alone = replace(method, restarts=1, first_draw=result.chosen["first_draw"])
    np.testing.assert_array_equal(result.models, fit(federation, alone, rounds=training, tol=0, dtype="float64").models)
    d = result.model.d
    assert result.cost_floats == (160 - 3) * 8 * (3 * d + d + 3) + 3 * 8 * (d + 1)


def test_starts_are_draws_of_their_own():
    """No model of one start is that of another, and the first is that of a run without restarts."""
    federation = planted()
    heads = [begun(federation, ff.IFCA(n_models=2, first_draw=draw)).state.heads for draw in (None, 0, 1, 2)]
    np.testing.assert_array_equal(heads[0], heads[1])
    assert len(np.unique(np.vstack(heads[1:]), axis=0)) == 6


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_near_the_truth_it_is_as_good_as_knowing_the_groups(seed):
    """S1, models at the true parameters (without what all classes share, which says nothing) and noise of sd 0.5."""
    federation, truth = load("synthetic:S1", seed=seed), synthetic_truth("S1", seed)
    true = [np.concatenate([(W - W.mean(axis=0)).ravel(), b - b.mean()]) for W, b in zip(truth.W, truth.b, strict=True)]
    near = np.array(true) + 0.5 * np.random.default_rng(seed).normal(size=(4, 610))
    options = {"seed": seed, "participation": 0.3, "tol": 0, "evaluate_every": 10**6}
    found = fit(federation, Near(n_models=4, near=tuple(map(tuple, near))), rounds=600, **options)
    assert found.ari == 1
    assert found.score("test") > fit(federation, Oracle(), **options).score("test") - 0.01


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_models": 0}, "n_models must be a whole number of at least 1 or auto"),
        ({"average": "median"}, "average must be 'gradient' or 'model'"),
        ({"temperature": -1.0}, "temperature must be a number of at least 0"),
        ({"n_models": 2, "start": "zero"}, "needs models that differ at the start"),
        ({"restarts": 0}, "restarts must be a whole number of at least 1, got 0"),
    ],
)
def test_settings_out_of_range(settings, words):
    with pytest.raises(FedfuseError, match=words):
        ff.IFCA(**settings)
