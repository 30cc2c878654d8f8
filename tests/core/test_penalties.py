import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfuse.core.penalties import L1, MCP, SCAD, SmoothedSCAD, SquaredL2
from fedfuse.errors import FedfuseError

strengths = st.floats(0.05, 5)


@st.composite
def penalties_and_weights(draw):
    lam = draw(strengths)
    kind = draw(st.sampled_from([SmoothedSCAD, SCAD, L1, MCP, SquaredL2]))
    if kind is SmoothedSCAD:
        penalty = SmoothedSCAD(lam, draw(st.floats(2.5, 6)), lam * draw(st.floats(1e-4, 0.9)))
    elif kind in (SCAD, MCP):
        penalty = kind(lam, draw(st.floats(2.5, 6)))
    else:
        penalty = kind(lam)
    return penalty, draw(st.floats(0.75, 4))


@given(penalties_and_weights(), st.floats(0, 30))
@settings(deadline=None)
def test_shrink_beats_a_grid_search(penalty_rho, r):
    """s(r) r minimises g(t) + rho/2 (t - r)^2: no point of a fine grid is better."""
    penalty, rho = penalty_rho

    def objective(t):
        return penalty.value(t) + rho / 2 * (np.asarray(t) - r) ** 2

    best = objective(penalty.shrink(r, rho) * r)
    grid = np.concatenate([np.linspace(0, r + 1, 4001), np.linspace(0, min(r + 1, 3 * penalty.lam), 4001)])
    assert best <= objective(grid).min() + 1e-9 * max(1, abs(best))


@given(penalties_and_weights())
@settings(deadline=None)
def test_shrunk_distance_is_continuous_and_grows(penalty_rho):
    """In particular across xi + lam/rho, lam + lam/rho and a lam."""
    penalty, rho = penalty_rho
    ends = penalty.pieces(rho).ends
    assert (np.diff(ends) > 0).all()
    for end in ends[:-1]:
        below, above = np.array([end * (1 - 1e-12), end * (1 + 1e-12)])
        assert penalty.shrink(below, rho) * below == pytest.approx(penalty.shrink(above, rho) * above, abs=1e-8 * end)
    r = np.linspace(0, 30, 5001)
    t = penalty.shrink(r, rho) * r
    assert (np.diff(t) >= -1e-12).all()
    assert ((t >= 0) & (t <= r + 1e-12)).all()


@given(penalties_and_weights(), st.floats(0.001, 20))
@settings(deadline=None)
def test_derivative_is_the_slope_of_the_value(penalty_rho, t):
    penalty, _ = penalty_rho
    h = 1e-6 * t
    slope = (penalty.value(t + h) - penalty.value(t - h)) / (2 * h)
    bend = 1.1 * h * max(2 * penalty.lam, 1.0, penalty.lam / getattr(penalty, "xi", 1.0))
    assert slope == pytest.approx(float(penalty.derivative(t)), abs=bend + 1e-5 * max(1, slope))


def test_smoothed_scad_lies_within_xi_lambda_half_of_scad():
    t = np.linspace(0, 5, 2001)
    gap = SmoothedSCAD(0.8, xi=0.3).value(t) - SCAD(0.8).value(t)
    assert (gap >= -1e-12).all()
    assert (gap <= 0.3 * 0.8 / 2 + 1e-12).all()


@pytest.mark.parametrize("kind", [SmoothedSCAD, SCAD, L1, MCP, SquaredL2])
def test_without_lambda_nothing_shrinks(kind):
    assert (kind(0.0).shrink([0.0, 1e-9, 1.0, 1e9]) == 1).all()


def test_zero_distance_is_safe():
    for kind in (SmoothedSCAD, SCAD, L1, MCP, SquaredL2):
        assert 0 <= kind(0.5).shrink(0.0) < 1


def test_reach():
    assert SmoothedSCAD(0.5).reach == pytest.approx(1.85)
    assert MCP(0.5, a=3).reach == 1.5
    assert L1(0.5).reach == SquaredL2(0.5).reach == np.inf


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: SCAD(-1.0), "lambda must be at least 0, got -1"),
        (lambda: SCAD(float("nan")), "lambda must be a finite number"),
        (lambda: SCAD("0.5"), "lambda must be a finite number"),
        (lambda: SCAD(0.5, a=2.0), "a > 2, got a = 2"),
        (lambda: SmoothedSCAD(0.5, xi=0.5), "xi must lie between 0 and lambda = 0.5, got xi = 0.5"),
        (lambda: SmoothedSCAD(0.5, xi=0.0), "xi must lie between"),
        (lambda: MCP(0.5, a=0.0), "a > 0"),
        (lambda: SCAD(0.5).check(0.3), r"rho must exceed 1/\(a - 1\) = 0.3704 for a = 3.7 .* got 0.3"),
        (lambda: MCP(0.5).check(1 / 3), "rho must exceed 1/a"),
        (lambda: L1(0.5).check(0.0), "rho must be positive"),
    ],
)
def test_bad_parameters_are_explained(build, words):
    with pytest.raises(FedfuseError, match=words):
        build()
