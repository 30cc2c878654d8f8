"""Devices in this process: each order does what its task says, whatever else is ordered at the same time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from fedfuse.data.federation import Federation
from fedfuse.engines import InProcess
from fedfuse.models import default_model
from fedfuse.protocol.local_work import Work
from fedfuse.protocol.reply_checks import largest_value
from fedfuse.protocol.tasks import Gradient, Install, Losses, Order, Train
from support.planted import planted

GD = Work(steps=3, lr=0.05)
SGD = Work(steps=2, lr=0.05, batch=8)


@pytest.fixture(params=["regression", "classification"])
def federation(request):
    return planted(request.param)


def model_for(federation):
    return default_model(federation.goal).sized(federation.n_features, federation.n_classes)


def new_fleet(federation, **options):
    return InProcess(federation, model_for(federation), **{"dtype": np.float64, **options})


def perform(engine, *orders):
    engine.submit(orders)
    replies = {r.device: r.values for r in engine.collect()}
    assert engine.collect() == []
    return replies


def vectors(federation, k, seed=0):
    return np.random.default_rng(seed).normal(size=(k, model_for(federation).d))


def test_every_task_is_the_models_own_computation(federation):
    """A mixed lot of orders: installed, trained, differentiated, judged."""
    engine, model = new_fleet(federation), model_for(federation)
    a, b, c, anchor = vectors(federation, 4)
    replies = perform(
        engine,
        Order(0, 0, Install(a)),
        Order(1, 0, Gradient(b, rows="validation")),
        Order(2, 0, Losses(np.stack([a, b, c]), rows="train")),
        Order(3, 0, Train(GD, start=c, anchor=anchor, rho=0.7, rows="train+validation")),
        Order(4, 0, Train(GD, start=c)),
    )
    assert replies[0].size == 0
    validation, train = (model.load(federation.rows(p), np.float64) for p in ("validation", "train"))
    both = model.load(federation.rows("train+validation"), np.float64)
    np.testing.assert_array_equal(replies[1], model.gradients(validation, np.array([1]), b[None])[0])
    for vector, loss in zip((a, b, c), replies[2], strict=True):
        assert loss == model.losses(train, np.array([2]), vector[None])[0]
    expected = model.train(both, np.array([3]), c[None], anchor[None], 0.7, GD)[0]
    np.testing.assert_array_equal(replies[3], expected)
    np.testing.assert_array_equal(replies[4], model.train(train, np.array([4]), c[None], None, 0.0, GD)[0])


def test_a_device_goes_on_from_its_own_last_model(federation):
    engine, model = new_fleet(federation), model_for(federation)
    first = vectors(federation, 1)[0]
    perform(engine, Order(2, -1, Install(first)))
    once = perform(engine, Order(2, 0, Train(GD)))[2]
    twice = perform(engine, Order(2, 1, Train(GD)))[2]
    whole = model.train(
        model.load(federation.rows("train"), np.float64), np.array([2]), first[None], None, 0.0, Work(6, 0.05)
    )
    np.testing.assert_allclose(twice, whole[0], atol=1e-12)
    perform(engine, Order(2, -1, Install(once)))
    np.testing.assert_array_equal(perform(engine, Order(2, 1, Train(GD)))[2], twice)


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(6)), st.integers(0, 6), st.sampled_from([GD, SGD]))
def test_a_reply_depends_on_its_order_alone(order, cut, work):
    """Not on which other devices are asked, in which order, or in how many lots (mini-batches included)."""
    federation = planted(m=6, n=20)
    anchors = vectors(federation, 6)
    orders = [Order(i, 4, Train(work, anchor=anchors[i], rho=1.0)) for i in range(6)]
    together = perform(new_fleet(federation, seed=5), *orders)
    engine, apart = new_fleet(federation, seed=5), {}
    for lot in (order[:cut], order[cut:]):
        apart |= perform(engine, *(orders[i] for i in lot))
    for i in range(6):
        np.testing.assert_array_equal(together[i], apart[i])


def test_a_reply_does_not_depend_on_the_threads_of_matrix_products():
    """Two threads add up in another order than one: the last bits of 300 eigenvalues tell."""
    rng = np.random.default_rng(0)
    federation = Federation.from_arrays([(X := rng.normal(size=(1500, 300)), X[:, 0])])

    def reply(threads):
        with threadpool_limits(threads):
            return perform(new_fleet(federation), Order(0, 0, Train(Work(solver="exact"), rho=1.0)))[0]

    np.testing.assert_array_equal(reply(1), reply(2))


def test_batches_are_drawn_by_seed_round_and_device(federation):
    def trained(seed, k):
        engine = new_fleet(federation, seed=seed)
        return perform(engine, *(Order(i, k, Train(SGD)) for i in range(2)))[1]

    np.testing.assert_array_equal(trained(0, 3), trained(0, 3))
    assert (trained(0, 3) != trained(0, 4)).any()
    assert (trained(0, 3) != trained(1, 3)).any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_device_that_diverged_goes_back_to_its_last_usable_model(dtype):
    federation = planted()
    engine = new_fleet(federation, dtype=dtype)
    good = perform(engine, Order(0, 0, Train(GD)), Order(1, 0, Train(GD)))
    with np.errstate(over="ignore", invalid="ignore"):
        bad = perform(engine, Order(0, 1, Train(Work(steps=900, lr=50.0))))[0]
    d = model_for(federation).d
    assert not (np.abs(bad) <= largest_value(d, dtype)).all()
    again = perform(engine, Order(0, 2, Train(GD)), Order(1, 2, Train(GD)))
    fresh = new_fleet(federation, dtype=dtype)
    perform(fresh, *(Order(i, -1, Install(good[i])) for i in (0, 1)))
    expected = perform(fresh, Order(0, 2, Train(GD)), Order(1, 2, Train(GD)))
    for i in (0, 1):
        np.testing.assert_array_equal(again[i], expected[i])


def test_training_data_are_laid_out_once(federation):
    engine = new_fleet(federation)
    assert engine.load("train") is engine.load("train")
    assert engine.load("train") is not engine.load("validation")
