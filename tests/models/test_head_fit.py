"""Personal last layers: mathematics at home."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from fedfuse.data.federation import Rows
from fedfuse.models.head_fit import HeadRows, Span, head_answers, judge, without_device
from fedfuse.models.personal_fit import DeviceTables, Prior, posterior
from fedfuse.models.softmax import SoftmaxRegression
from fedfuse.protocol.tasks import JudgeDrawnModels, PeekDrawnModels


def rows_of(seed=0, n=40, p=3, classes=3, spread=1.0):
    rng = np.random.default_rng(seed)
    Z, W = rng.normal(size=(n, p)), spread * rng.normal(size=(classes, p + 1))
    y = (Z @ W[:, :-1].T + W[:, -1] + rng.gumbel(size=(n, classes))).argmax(axis=1)
    return HeadRows(Z, y, np.ones(n)), W


@pytest.mark.parametrize("p", [3, 80])
def test_layers_drawn_to_a_centre_minimise_their_objective(p):
    """Also where there are more columns than rows: the span of the rows is enough."""
    rows, centre = rows_of(p=p)

    def objective(flat):
        W = flat.reshape(centre.shape)
        return rows.losses(W).sum() + 0.7 * np.square(W - centre).sum() / 2

    found = Span(rows).drawn(centre, 0.7)
    assert np.abs(approx_fprime(found.ravel(), objective, 1e-6)).max() < 0.02
    np.testing.assert_allclose(Span(rows).drawn(centre, 1e9), centre, atol=1e-6)


def test_they_are_those_of_smaller_models():
    rows, centre = rows_of()
    Z = np.column_stack([rows.Z, np.ones(len(rows.Z))])
    tables = DeviceTables(Z[None], rows.y[None], rows.weights[None], 3)
    exact = posterior(tables, Prior.of(centre[None], np.array([0.5]), 0.0)).W[0]
    np.testing.assert_allclose(Span(rows).drawn(centre, 2.0), exact, atol=2e-3)


def test_weights_of_rows_are_repetitions():
    rows, centre = rows_of()
    twice = HeadRows(np.concatenate([rows.Z, rows.Z]), np.concatenate([rows.y, rows.y]), np.ones(80))
    weighted = HeadRows(rows.Z, rows.y, np.full(40, 2.0))
    np.testing.assert_allclose(Span(weighted).drawn(centre, 1.0), Span(twice).drawn(centre, 1.0), atol=1e-4)
    assert weighted.variance == pytest.approx(twice.variance)


def test_a_group_is_judged_without_the_device():
    """One Newton step goes most of the way to what the others' rows alone say."""
    own, _ = rows_of(1, n=60)
    others, _ = rows_of(2, n=180)
    both = HeadRows(*(np.concatenate(pair) for pair in zip(vars(own).values(), vars(others).values(), strict=True)))
    zero = np.zeros((3, 4))
    together, without = Span(both).drawn(zero, 1e-3), Span(others).drawn(zero, 1e-3)
    found = without_device(own, together, 0.25)
    assert own.losses(together).mean() < own.losses(found).mean()
    assert abs(own.losses(found).mean() - own.losses(without).mean()) < own.losses(without).mean() / 3


@pytest.mark.parametrize("apart", [0.0, 2.0])
def test_devices_that_differ_judge_so(apart):
    gains = []
    for seed in range(10):
        rows, W = rows_of(seed, n=80)
        group = W + apart * np.random.default_rng(seed).normal(size=W.shape)
        losses = judge(rows, group, JudgeDrawnModels(group.ravel(), np.zeros(1), (1.0, 0.01)))
        assert losses.shape == (3,)
        gains.append(losses[0] - losses[1])
    assert np.mean(np.greater(gains, 0) == (apart > 0)) >= 0.8


def test_answers_of_a_device_without_rows():
    model = SoftmaxRegression().sized(3, 3)
    rows = Rows(np.empty((0, 3)), np.empty(0, np.int64), np.array([0]), np.array([0]))
    w = np.arange(12.0)
    assert not head_answers(model, rows, 0, JudgeDrawnModels(w, np.array([0.1]), (1.0,))).any()
    np.testing.assert_array_equal(head_answers(model, rows, 0, PeekDrawnModels(w, 1.0)), w)
