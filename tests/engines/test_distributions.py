"""Laws of time: written and read, drawn by key, with the moments that they promise."""

from __future__ import annotations

import numpy as np
import pytest

from fedfuse.engines.latency import Distribution
from fedfuse.errors import FedfuseError


def draws(text, turns=400, devices=5):
    law = Distribution.of(text)
    return np.array([[law.draw(0, "delay", k, i) for i in range(devices)] for k in range(turns)])


@pytest.mark.parametrize(
    ("text", "mean", "sd"),
    [
        ("uniform(0,20)", 10, 20 / np.sqrt(12)),
        ("exponential(5)", 5, 5),
        ("lognormal(1,0.5)", np.exp(1.125), np.exp(1.125) * np.sqrt(np.expm1(0.25))),
        ("3", 3, 0),
        ("2*uniform(0,20)", 20, 40 / np.sqrt(12)),
    ],
)
def test_moments(text, mean, sd):
    drawn = draws(text)
    assert drawn.mean() == pytest.approx(mean, rel=0.1)
    assert drawn.std() == pytest.approx(sd, rel=0.1)
    np.testing.assert_array_equal(drawn, draws(text))


def test_a_law_of_nodes_is_drawn_once_for_each():
    drawn = draws("per_node(uniform(0,20))")
    assert (drawn == drawn[0]).all()
    assert len(set(drawn[0])) == 5
    both = draws("per_node(uniform(1,2))*uniform(0,20)")
    assert (both.std(axis=0) > 1).all()


@pytest.mark.parametrize("text", ["uniform(0,20)", "per_node(lognormal(-1,0.3))*exponential(5)", "0.1", 7])
def test_one_that_is_read_is_returned_as_it_is(text):
    law = Distribution.of(text)
    assert Distribution.of(str(text)) == law
    assert Distribution.of(law) is law


@pytest.mark.parametrize("text", ["x", "normal(0,1)", "uniform(0,x)", "per_node()", "uniform(0,20", "", "nan(1)"])
def test_nonsense_is_refused(text):
    with pytest.raises(FedfuseError, match=r"is not a distribution of times; known: a number, uniform\(a,b\)"):
        Distribution.of(text)


@pytest.mark.parametrize("text", ["-1", "uniform(-1,2)", "uniform(2,1)", "lognormal(0,-1)", "inf", "exponential(1,2)"])
def test_impossible_numbers_are_refused(text):
    with pytest.raises(FedfuseError, match=r"must be finite and not negative|needs|takes"):
        Distribution.of(text)
