from dataclasses import fields

import numpy as np
import pytest
from scipy.optimize import minimize

from fedfuse.core.lbfgs import LBFGS


def quadratics(n=4, d=7, seed=0):
    """n problems of very different condition, with their minimisers."""
    rng = np.random.default_rng(seed)
    A = []
    for k in range(n):
        Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
        A.append(Q @ np.diag(np.geomspace(1, 10.0**k, d)) @ Q.T)
    best = rng.normal(size=(n, d))
    A = np.array(A)

    def evaluate(x):
        away = x - best
        g = np.einsum("nij,nj->ni", A, away)
        return 0.5 * np.einsum("ni,ni->n", away, g), g

    return evaluate, best


def logistic(n=3, d=5, rows=60, seed=1):
    rng = np.random.default_rng(seed)
    X, w = rng.normal(size=(n, rows, d)), rng.normal(size=(n, d))
    y = np.where(np.einsum("nrd,nd->nr", X, w) + rng.logistic(size=(n, rows)) > 0, 1.0, -1.0)

    def one(k, v):
        margin = y[k] * (X[k] @ v)
        f = np.logaddexp(0, -margin).mean() + 0.005 * v @ v
        return f, -(X[k].T @ (y[k] / (1 + np.exp(margin)))) / rows + 0.01 * v

    def evaluate(x):
        f, g = zip(*(one(k, v) for k, v in enumerate(x)), strict=True)
        return np.array(f), np.array(g)

    return evaluate, one


def run(evaluate, optimiser, most=300, tol=1e-6):
    for _ in range(most):
        if optimiser.done.all():
            break
        optimiser.tell(*evaluate(optimiser.trial), tol=tol)
    return optimiser


def test_quadratics_are_minimised_whatever_their_condition():
    evaluate, best = quadratics()
    optimiser = run(evaluate, LBFGS.start(np.zeros(best.shape)))
    assert optimiser.done.all()
    np.testing.assert_allclose(optimiser.x, best, atol=1e-5)


def test_logistic_problems_end_where_scipy_ends():
    evaluate, one = logistic()
    optimiser = run(evaluate, LBFGS.start(np.zeros((3, 5))))
    for k in range(3):
        theirs = minimize(lambda v, k=k: one(k, v), np.zeros(5), jac=True, method="L-BFGS-B", tol=1e-12)
        assert optimiser.f[k] == pytest.approx(theirs.fun, abs=1e-9)
        np.testing.assert_allclose(optimiser.x[k], theirs.x, atol=1e-4)


def test_it_needs_few_evaluations():
    evaluate, _ = logistic()
    optimiser = LBFGS.start(np.zeros((3, 5)))
    rounds = 0
    while not optimiser.done.all():
        optimiser.tell(*evaluate(optimiser.trial))
        rounds += 1
    assert rounds <= 25


def test_value_never_rises_and_problems_do_not_see_each_other():
    evaluate, best = quadratics()
    together, alone = LBFGS.start(np.zeros(best.shape)), LBFGS.start(np.zeros((1, best.shape[1])))
    last = np.full(len(best), np.inf)
    for _ in range(30):
        together.tell(*evaluate(together.trial))
        x = np.zeros(best.shape)
        x[2] = alone.trial[0]
        f, g = evaluate(x)
        alone.tell(f[2:3], g[2:3])
        assert (together.f <= last).all()
        last = together.f.copy()
    np.testing.assert_array_equal(together.x[2], alone.x[0])


@pytest.mark.parametrize("stop", [0, 1, 3, 11])
def test_saved_in_the_middle_equals_uninterrupted(stop):
    evaluate, best = quadratics()
    whole, half = LBFGS.start(np.zeros(best.shape)), LBFGS.start(np.zeros(best.shape))
    for k in range(20):
        if k == stop:
            half = LBFGS(**{f.name: getattr(half, f.name).copy() for f in fields(half)})
        for optimiser in (whole, half):
            optimiser.tell(*evaluate(optimiser.trial))
    for f in fields(whole):
        np.testing.assert_array_equal(getattr(whole, f.name), getattr(half, f.name))


def test_a_problem_that_cannot_be_improved_is_given_up():
    # the gradient points uphill: no step is ever accepted
    optimiser = LBFGS.start(np.zeros((1, 2)))
    optimiser.tell(np.array([0.0]), np.array([[1.0, 1.0]]))
    for _ in range(20):
        optimiser.tell(np.array([1.0]), np.array([[1.0, 1.0]]))
    assert optimiser.done.all()
    np.testing.assert_array_equal(optimiser.trial, np.zeros((1, 2)))


def test_a_start_at_the_minimum_is_done_at_once():
    evaluate, best = quadratics()
    optimiser = LBFGS.start(best)
    optimiser.tell(*evaluate(optimiser.trial))
    assert optimiser.done.all()
