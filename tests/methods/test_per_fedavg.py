"""Per-FedAvg against its formulas, with the exact Hessian of a quadratic."""

from __future__ import annotations

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.engines import in_process as inprocess
from fedfuse.errors import FedfuseError
from fedfuse.protocol.tasks import MetaTrain, Order
from fedfuse.training.options import build, parse_options
from support.planted import begun, gradient, planted

ALPHA, BETA, STEPS = 0.03, 0.05, 4
WORK = ff.Work(steps=STEPS, lr=BETA)


def hessian(federation, device):
    X, _ = federation.rows("train+validation").of(device)
    Z = np.column_stack([X, np.ones(len(X))])
    return 2 * Z.T @ Z / len(X)


def by_the_formula(federation, device, w, variant):
    """First order: w - beta g. Hessian-free, with the Hessian itself: w - beta (I - alpha H) g."""
    H = hessian(federation, device)
    for _ in range(STEPS):
        g = gradient(federation, device, w - ALPHA * gradient(federation, device, w))
        w = w - BETA * (g if variant == "first-order" else g - ALPHA * H @ g)
    return w


@pytest.mark.parametrize("weights", ["rows", "equal"])
@pytest.mark.parametrize("variant", ["first-order", "hessian-free"])
def test_two_rounds_by_the_formula(variant, weights):
    """A quadratic's gradient is affine: the difference of gradients is the Hessian times g, up to rounding."""
    federation, turns = planted(m=5), [[0, 3], [4, 1, 2]]
    method = ff.PerFedAvg(adapt_lr=ALPHA, variant=variant, work=WORK, weights=weights)
    run = begun(federation, method, participation=lambda k, m: np.array(turns[k]))
    n, w = federation.rows("train+validation").counts if weights == "rows" else np.ones(5), np.zeros(4)
    for active in turns:
        run.round()
        w = sum(n[i] * by_the_formula(federation, i, w, variant) for i in active) / n[active].sum()
        np.testing.assert_allclose(run.state.models[0], w, atol=1e-9)
    # and the meta-gradient is that of F(w) = f(w - alpha grad f(w)), for the Hessian-free variant alone
    adapted = [w - ALPHA * gradient(federation, i, w) for i in range(5)]
    np.testing.assert_allclose(run.result().models, adapted, atol=1e-9)


def test_the_hessian_free_step_descends_the_loss_after_adaptation():
    """Its direction is the gradient of f(w - alpha grad f(w)), by central differences."""
    federation = planted("classification", m=2, n=60)
    run = begun(federation, ff.PerFedAvg(adapt_lr=0.5, variant="hessian-free", work=ff.Work(steps=1, lr=1.0)))
    model, engine = run.model, run.engine
    data, who = engine.load("train+validation"), np.array([1])
    w = np.random.default_rng(0).normal(size=model.d)

    def adapted_loss(w):
        u = w - 0.5 * gradient(federation, 1, w)
        return model.losses(data, who, u[None])[0]

    engine.submit([Order(1, 0, MetaTrain(ff.Work(steps=1, lr=1.0), w, 0.5, True, "train+validation"))])
    step = engine.collect()[0].values - w
    eye = 1e-5 * np.eye(model.d)
    slope = np.array([(adapted_loss(w + e) - adapted_loss(w - e)) / 2e-5 for e in eye])
    np.testing.assert_allclose(-step, slope, atol=1e-6)


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_a_device_uses_one_step_and_nothing_is_kept(goal):
    """However often one looks, the next round starts from the global model."""
    federation = planted(goal, m=4)
    seen, unseen = (
        begun(federation, ff.PerFedAvg(adapt_lr=ALPHA, work=WORK), participation=0.5, evaluate_every=every)
        for every in (1, 10**6)
    )
    for _ in range(3):
        seen.round()
        unseen.round()
        np.testing.assert_array_equal(seen.state.models, unseen.state.models)
    w, result = seen.state.models[0], seen.result()
    assert seen.ledger == unseen.ledger
    for i in range(4):
        np.testing.assert_allclose(result.models[i], w - ALPHA * gradient(federation, i, w), atol=1e-12)
    np.testing.assert_array_equal(result.models, seen.result().models)


def test_both_ends_of_the_difference_are_on_the_same_mini_batch(monkeypatch):
    """Then, on a quadratic, the length of the difference does not matter; else it would divide the batches' noise."""
    federation, models = planted(m=3, n=100, noise=1.0), []
    method = ff.PerFedAvg(variant="hessian-free", work=ff.Work(steps=1, lr=0.02, batch=10))
    for epsilon in (1e-3, 1e-1):
        monkeypatch.setattr(inprocess, "DIFFERENCE_STEP", epsilon)
        models.append(ff.fit(federation, method, rounds=3, tol=0, dtype="float64").kept["model"])
    np.testing.assert_allclose(*models, atol=1e-9)


def test_passes_over_a_device_do_not_depend_on_who_else_is_active():
    """One pass of mini-batches is as many steps as the device's own rows ask for."""
    rng = np.random.default_rng(0)
    federation = ff.Federation.from_arrays([(rng.normal(size=(n, 2)), np.arange(n) / n) for n in (20, 200)])
    task = MetaTrain(ff.Work(steps=2, lr=0.1, batch=8), np.zeros(3), 0.05, False, "train")
    answers = []
    for devices in ([0], [0, 1]):
        engine = begun(federation, ff.PerFedAvg()).engine
        engine.submit([Order(i, 0, task) for i in devices])
        answers.append(engine.collect()[0].values)
    np.testing.assert_array_equal(*answers)


def test_meta_steps_have_momentum_and_decay_as_all_training_has():
    """As torch.optim.SGD: v = momentum v + g + decay w, from rest."""
    federation = planted(m=2)
    engine = begun(federation, ff.PerFedAvg()).engine
    work, w, v = ff.Work(steps=3, lr=BETA, momentum=0.9, decay=0.1), np.ones(4), np.zeros(4)
    engine.submit([Order(1, 0, MetaTrain(work, w, ALPHA, False, "train+validation"))])
    for _ in range(3):
        v = 0.9 * v + gradient(federation, 1, w - ALPHA * gradient(federation, 1, w)) + 0.1 * w
        w = w - BETA * v
    np.testing.assert_allclose(engine.collect()[0].values, w, atol=1e-9)


@pytest.mark.parametrize(("unit", "steps"), [("epochs", 2 * 3), ("batches", 2)])
def test_meta_steps_are_counted_in_passes_or_batches(unit, steps, monkeypatch):
    engine, seen = begun(planted(m=2, n=30), ff.PerFedAvg()).engine, []
    descend = type(engine)._descend

    def counted(self, *work_and_rows):
        return descend(self, *work_and_rows[:-1], lambda w, *_: seen.append(1) or np.zeros_like(w))

    monkeypatch.setattr(type(engine), "_descend", counted)
    batch = -(-int(engine._rows("train+validation").counts[1]) // 3)
    task = MetaTrain(ff.Work(steps=2, batch=batch, unit=unit), np.zeros(4), ALPHA, False, "train+validation")
    engine.submit([Order(1, 0, task)])
    engine.collect()
    assert len(seen) == steps


def test_the_adaptation_is_plain_whatever_training_has():
    state = begun(planted(m=2), ff.PerFedAvg()).state
    method = ff.PerFedAvg(work=ff.Work(steps=5, lr=0.2, batch=10, momentum=0.9), adapt_lr=0.01)
    assert {task.work for task in method.at_home(state)} == {ff.Work(steps=1, lr=0.01, batch=10)}


def test_networks_are_adapted_by_the_papers_step():
    for data in ("mnist", "digits"):
        assert build(data, "per-fedavg", parse_options([]))[0].alpha == 0.01
    assert build("synthetic:S1", "per-fedavg", parse_options([]))[0].alpha == 0.1


def test_alpha_is_beta_unless_given():
    assert ff.PerFedAvg(work=ff.Work(lr=0.3)).alpha == 0.3
    assert ff.PerFedAvg(work=ff.Work(lr=0.3), adapt_lr=0.01).alpha == 0.01
    assert ff.PerFedAvg(work=ff.Work(lr=ff.Decay(0.2, 0.9, 5))).alpha == 0.2


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"variant": "second-order"}, "variant must be 'first-order' or 'hessian-free'"),
        ({"adapt_lr": 0.0}, "adapt_lr must be a number above 0"),
        ({"work": ff.Work(solver="exact")}, "per-fedavg takes gradient steps"),
    ],
)
def test_settings_out_of_range(settings, words):
    with pytest.raises(FedfuseError, match=words):
        ff.PerFedAvg(**settings)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_device_whose_adaptation_diverges_keeps_the_common_model():
    rng = np.random.default_rng(0)
    rows = {c: (X := 100 * rng.normal(size=(40, 3)), X @ [1, 2, 3] + rng.normal(size=40)) for c in "abcd"}
    method = ff.PerFedAvg(work=ff.Work(steps=5, lr=1, batch=1))
    result = ff.fit(ff.Federation.from_arrays(rows), method, rounds=3)
    assert np.isfinite(result.models).all()
    assert np.isfinite(result.predict("a", [[1.0, 2.0, 3.0]])).all()
