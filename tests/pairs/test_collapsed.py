"""Fused devices represented once: against the exact state, with bounds that are stated in docs/algorithm.md."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfuse as ff
from fedfuse.core.penalties import L1, MCP, SCAD, SmoothedSCAD, SquaredL2
from fedfuse.errors import FedfuseError
from fedfuse.pairs.collapsed import CollapsingState, _clique
from fedfuse.pairs.state import FusionState
from support.planted import planted

pytestmark = pytest.mark.usefixtures("both_ways")


def targets(m=20, d=12, groups=4, apart=4.0, noise=0.02, seed=0):
    rng = np.random.default_rng(seed)
    centres = apart * rng.normal(size=(groups, d)) / np.sqrt(d)
    return centres[np.arange(m) % groups] + noise * rng.normal(size=(m, d)) / np.sqrt(d)


def both(start, penalty, collapse=10, **options):
    exact = FusionState(start, penalty, warm=True, dtype=np.float64)
    return exact, FusionState(start, penalty, warm=True, dtype=np.float64, collapse=collapse, **options)


def worked(state, goals, active):
    """Exact local work: f(w) = ||w - goal||^2 / 2."""
    return state.update(active, (goals[active] + state.anchors(active)) / 2)


def together(exact, other, goals, rounds, seed=1, k=6):
    """Each goes its own way through the same rounds; return how far apart they have been at the most."""
    rng, worst = np.random.default_rng(seed), 0.0
    for _ in range(rounds):
        active = rng.choice(exact.m, k, replace=False)
        for state in (exact, other):
            worked(state, goals, active)
        worst = max(worst, np.abs(exact.omega - other.omega).max())
    return worst


@pytest.mark.parametrize("penalty", [SCAD(0.6), MCP(0.6)], ids=lambda p: p.name)
def test_exact_while_groups_stay_together_and_apart_from_others(penalty):
    goals = targets()
    exact, other = both(goals, penalty)
    assert together(exact, other, goals, 80) < 1e-12
    assert other.members.tolist() == [0, 1, 2, 3] * 5
    assert other.near.size == 0
    np.testing.assert_array_equal(other.labels(0.3), exact.labels(0.3))
    np.testing.assert_allclose(other.norms(), exact.norms(), atol=1e-4)  # of means
    np.testing.assert_allclose(other.distances(), exact.distances(), atol=1e-7)
    everyone = range(exact.m)
    np.testing.assert_allclose(other.anchors(everyone), exact.anchors(everyone), atol=1e-12)


@given(seed=st.integers(0, 999), noise=st.floats(0, 0.02), collapse=st.integers(1, 20))
@settings(max_examples=10, deadline=None)
def test_smoothed_scad_is_off_by_less_than_xi(seed, noise, collapse):
    goals = targets(seed=seed, noise=noise, apart=8.0)
    exact, other = both(goals, SmoothedSCAD(0.6, xi=1e-3), collapse)
    assert together(exact, other, goals, 50, seed, k=20) < 1e-3
    assert other.members.max() + 1 == 4
    np.testing.assert_array_equal(other.labels(0.3), exact.labels(0.3))


@given(seed=st.integers(0, 999), noise=st.floats(0, 0.1), k=st.integers(1, 20), collapse=st.integers(1, 20))
@settings(max_examples=20, deadline=None)
def test_at_any_participation_it_is_off_by_less_than_devices_of_a_group_are_apart(seed, noise, k, collapse):
    """Half a group may collapse before the other half, and devices may come and go."""
    goals = targets(seed=seed, noise=noise, apart=8.0)
    apart = max(np.linalg.norm(goals[g::4] - goals[g::4].mean(axis=0), axis=1).max() for g in range(4))
    exact, other = both(goals, SmoothedSCAD(0.6, xi=1e-3), collapse)
    assert together(exact, other, goals, 60, seed, k) < 1e-3 + apart
    np.testing.assert_array_equal(other.labels(0.3), exact.labels(0.3))


def test_groups_within_reach_go_another_way_to_the_same_end():
    """Their pairs are kept once: another course (off by less than a thousandth of the distances), the same rest."""
    goals = targets()
    exact, other = both(goals, SCAD(1.5))
    worst = together(exact, other, goals, 60)
    assert other.members.max() + 1 == 4
    assert other.near.size > 0
    assert 1e-9 < worst < 1e-3 * exact.distances().max()
    together(exact, other, goals, 400)
    np.testing.assert_allclose(other.omega, exact.omega, atol=1e-10)
    np.testing.assert_allclose(other.theta(0, 1), exact.theta(0, 1), atol=1e-8)
    np.testing.assert_allclose(other.v(0, 1), exact.v(0, 1), atol=1e-8)


def test_memory_is_that_of_devices_not_of_pairs():
    goals = targets(m=60, d=200, groups=2)
    exact, other = both(goals, SCAD(0.6))
    together(exact, other, goals, 30, k=20)
    assert other.members.max() + 1 == 2
    assert other.nbytes < 0.1 * exact.nbytes


def test_devices_that_change_their_mind_leave_and_find_their_new_group():
    goals = targets()
    exact, other = both(goals, SCAD(0.6))
    together(exact, other, goals, 60)
    assert other.members.max() + 1 == 4
    goals[4] = goals[5]  # of group 0 until now, and of group 1 from now on
    together(exact, other, goals, 15)
    assert other.members[4] not in (other.members[0], other.members[5])
    together(exact, other, goals, 400, seed=2)
    np.testing.assert_array_equal(other.labels(0.3), exact.labels(0.3))
    assert other.labels(0.3)[4] == other.labels(0.3)[5]
    assert other.members[4] == other.members[5]
    np.testing.assert_allclose(other.omega, exact.omega, atol=1e-6)


def test_a_group_that_falls_in_two_is_let_go():
    goals = targets(m=20, groups=2)
    exact, other = both(goals, SCAD(0.6))
    together(exact, other, goals, 60)
    goals[::4] += 5  # half of group 0
    together(exact, other, goals, 500, seed=3)
    assert len(np.unique(other.labels(0.3))) == 3
    np.testing.assert_array_equal(other.labels(0.3), exact.labels(0.3))
    np.testing.assert_allclose(other.omega, exact.omega, atol=1e-6)


def test_anchors_do_not_jump_when_devices_come_together_or_part():
    goals = targets()
    _, other = both(goals, SCAD(0.6), collapse=1000)
    together(other, other, goals, 30)
    before = other.anchors(range(20))
    other._regroup(np.arange(20) % 4)
    np.testing.assert_allclose(other.anchors(range(20)), before, atol=1e-12)
    unit = np.arange(20) % 4
    unit[7] = 4
    other._regroup(unit)
    np.testing.assert_allclose(other.anchors([7]), before[[7]], atol=1e-12)
    np.testing.assert_allclose(other.anchors(range(20)).sum(axis=0), before.sum(axis=0), atol=1e-12)


def test_packed_in_the_middle_it_goes_on_the_same(tmp_path):
    goals = targets()
    _, state = both(goals, SCAD(0.6))
    together(state, state, goals, 35)
    state.save(tmp_path / "state.npz")
    again = FusionState.load(tmp_path / "state.npz", collapse=10)
    assert type(again) is CollapsingState
    assert together(state, again, goals, 30, seed=4) == 0
    np.testing.assert_array_equal(again.members, state.members)


def test_with_blocks_and_a_newcomer_and_another_rho():
    goals = targets()
    exact, other = both(goals, SCAD(0.6), backend="threads", blocks=3)
    together(exact, other, goals, 40)
    assert other.members.max() + 1 == 4
    newcomer = goals[:1] + 0.01
    for state in (exact, other):
        assert state.admit(newcomer).tolist() == [20]
        state.rho = 1.5
        state.penalty = SCAD(0.7)
        state.recompute_anchors()
    goals = np.vstack([goals, newcomer])
    assert together(exact, other, goals, 60, seed=5) < 1e-2
    assert other.members[20] == other.members[0]
    together(exact, other, goals, 300, seed=5)
    np.testing.assert_allclose(other.omega, exact.omega, atol=1e-8)
    for state in (exact, other):
        state.restart_pairs()
    assert other.members.max() + 1 == 21
    np.testing.assert_allclose(other.anchors(range(21)), exact.anchors(range(21)), atol=1e-8)


@pytest.mark.parametrize("penalty", [SquaredL2(0.3), SCAD(0.0), L1(0.001)], ids=lambda p: p.name)
def test_what_is_not_fused_is_left_as_it_is(penalty):
    goals = targets(noise=1.0)
    exact, other = both(goals, penalty, collapse=1)
    assert together(exact, other, goals, 10) == 0
    assert other.members.max() + 1 == 20


def test_a_clique():
    lo, hi = np.array([0, 0, 2, 0]), np.array([2, 5, 5, 7])
    assert _clique(np.array([0, 2, 5, 7]), lo, hi).tolist() == [0, 2, 5]


def test_odd_calls():
    state = FusionState(np.zeros((4, 3)), SCAD(0.6), collapse=2)
    assert state.update([], np.zeros((0, 3))).largest == 0
    for devices, words in (([0, 9], "0 … 3"), ([0, 0], "twice")):
        with pytest.raises(FedfuseError, match=words):
            state.update(devices, np.zeros((2, 3)))
    with pytest.raises(FedfuseError, match="shape"):
        state.update([0], np.zeros((1, 4)))
    with pytest.raises(FedfuseError, match="0 … 3"):
        state.anchors([4])
    with pytest.raises(FedfuseError, match="at least 1 round"):
        ff.FPFC(lam=0.6, collapse=0)
    with pytest.raises(FedfuseError, match="at least 1 round"):
        FusionState(np.zeros((4, 3)), SCAD(0.6), collapse=0)


def test_a_round_that_memory_does_not_allow_is_undone():
    goals = targets()
    state = FusionState(goals, SCAD(0.6), warm=True, dtype=np.float64, collapse=5, memory=1000)
    with pytest.raises(FedfuseError, match="are allowed"):
        state.update(range(20), goals + 0.01)
    np.testing.assert_array_equal(state.omega, goals)


def test_a_run_with_collapse():
    federation, work = planted(m=8, p=6, n=60), ff.Work(steps=5, lr=0.1)
    exact, other = (
        ff.fit(federation, ff.FPFC(lam=0.6, refit=False, work=work, **room), rounds=60, seed=0, dtype="float64", tol=0)
        for room in ({}, {"collapse": 5})
    )
    np.testing.assert_array_equal(other.labels, exact.labels)
    np.testing.assert_allclose(other.models, exact.models, atol=1e-3)
