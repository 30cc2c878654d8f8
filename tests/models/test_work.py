"""What mini-batches, weight decay and their limits mean, for both compiled models."""

from __future__ import annotations

import numpy as np
import pytest

from fedfuse.errors import FedfuseError
from fedfuse.methods import FPFC
from fedfuse.methods.method import work_from_config
from fedfuse.models import LinearRegression, SoftmaxRegression
from fedfuse.protocol.local_work import Work
from fedfuse.training.options import Options, build_method, parse_options
from support import plain_models as plain

MODELS = {"softmax": SoftmaxRegression().sized(3, 4), "linear": LinearRegression().sized(3, 0)}


def setup(model, counts=(25, 0, 7)):
    rows = plain.ragged(counts, 3, model.n_classes)
    w, anchor = np.random.default_rng(1).normal(size=(2, len(counts), model.d))
    return rows, model.load(rows, np.float64), np.arange(len(counts)), w, anchor


def generators(devices):
    return [np.random.default_rng([5, int(i)]) for i in devices]


def gradient(model):
    return plain.softmax_gradient(4) if model.n_classes else plain.linear_gradient


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8])
def test_batches_go_on_through_reshuffled_epochs(model, steps):
    rows, data, devices, w, anchor = setup(model)
    work = Work(steps, 0.05, batch=10, unit="batches")
    new = model.train(data, devices, w, anchor, 0.5, work, generators(devices))
    for i, rng in zip(devices, generators(devices), strict=True):
        X, y = rows.of(i)
        expected, order = w[i], np.empty(0, np.int64)
        for _ in range(steps):
            order = order if order.size else rng.permutation(len(y))
            chosen, order = order[:10], order[10:]
            slope = gradient(model)(expected, X[chosen], y[chosen])
            expected = expected - 0.05 * (slope + 0.5 * (expected - anchor[i]))
        np.testing.assert_allclose(new[i], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("pulled", [True, False])
def test_weight_decay_is_a_ridge(model, pulled):
    rows, data, devices, w, anchor = setup(model)
    anchors, rho = (anchor, 0.5) if pulled else (None, 0.0)
    work = Work(6, 0.05, decay=0.3)
    new = model.train(data, devices, w, anchors, rho, work)
    for i in devices:
        expected = w[i]
        for _ in range(6):
            slope = gradient(model)(expected, *rows.of(i)) + rho * (expected - anchor[i]) + 0.3 * expected
            expected = expected - 0.05 * slope
        np.testing.assert_allclose(new[i], expected, rtol=0, atol=1e-12)
    solved = model.train(data, devices, w, anchors, rho, Work(solver="exact", decay=0.3))
    for i in devices:  # the gradient of the whole is zero there
        slope = gradient(model)(solved[i], *rows.of(i)) + rho * (solved[i] - anchor[i]) + 0.3 * solved[i]
        np.testing.assert_allclose(slope, 0, atol=1e-6)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_momentum_is_refused(model):
    _, data, devices, w, anchor = setup(model)
    with pytest.raises(FedfuseError, match=r"momentum is for networks.*got 0.9"):
        model.train(data, devices, w, anchor, 0.5, Work(momentum=0.9))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1"),
        ({"momentum": -0.1}, "momentum must be"),
        ({"decay": -1}, "decay must be a number of at least 0"),
        ({"decay": float("nan")}, "decay must be"),
        ({"unit": "steps"}, "unit must be 'epochs' or 'batches', got 'steps'"),
    ],
)
def test_wrong_work_is_named(wrong, words):
    with pytest.raises(FedfuseError, match=words):
        Work(**wrong)


def test_work_goes_through_options_and_configurations():
    words = ["momentum=0.9", "decay=0.01", "unit=batches", "batch=20", "lr=decay(0.1,0.9,5)"]
    method = build_method("fpfc", Work(), parse_options([*words, "lam=0.5"]))
    assert (method.work.momentum, method.work.decay, method.work.unit) == (0.9, 0.01, "batches")
    assert work_from_config(method.to_config()["work"]) == method.work
    later = method.work.at(7)
    assert (later.lr, later.momentum, later.unit, later.batch) == (0.09000000000000001, 0.9, "batches", 20)
    assert build_method("fpfc", Work(), Options(method={"lam": 0.5})) == FPFC(lam=0.5, work=Work())


def test_who_speaks_of_steps_wants_some():
    """On tables the solver is the exact one, which would do nothing with them."""
    exact = Work(solver="exact")
    for words, solver in ((["steps=5"], "gd"), (["lr=0.1", "batch=20"], "gd"), ([], "exact"), (["rho=2"], "exact")):
        assert build_method("fpfc", exact, parse_options(words)).work.solver == solver
    both = parse_options(["steps=5", "solver=exact"])
    assert build_method("fpfc", exact, both).work.solver == "exact"
