"""The fusion path: real ADMM rounds along a path of lambdas, and the groups read off it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfuse as ff
from fedfuse.core.partitions import canonical, linkage_heights
from fedfuse.data import load
from fedfuse.grouping.fusion_path import MAX_PASSES, WAIT_PASSES, WAIT_REACH_RATIO, FusePairs, Path, at_lambda
from fedfuse.grouping.fusion_tree import COMMON_RIDGE, RIDGES
from fedfuse.grouping.network_path import MAX_NETWORK_PASSES
from fedfuse.methods.method import FederationInfo, Outcome
from fedfuse.models import MLP
from fedfuse.protocol.tasks import Order, Train
from fedfuse.training.fit import fit
from support.planted import begun, planted
from support.textbook import Textbook

EXACT = ff.Work(solver="exact")


def path_from(points):
    """A path that starts from these models."""
    points = np.atleast_2d(np.asarray(points, dtype=np.float64))
    m, d = points.shape
    model = ff.LinearRegression().sized(d - 1, 0) if d > 1 else ff.LinearRegression().sized(0, 0)
    counts = dict.fromkeys(("train", "validation", "train+validation"), np.ones(m, np.int64))
    info = FederationInfo(m, model, counts, lambda *_: np.zeros(d), np.dtype("f8"))
    return Path(ff.FPFC(lam=1.0).init(info, Outcome(points, np.arange(m))), 3.7)


def steps_along(path, who):
    """The reach of every pass, devices standing still."""
    while path.raise_lambda(who):
        path.read(who)
        yield path.reach * path.lam


@given(st.integers(0, 10**6), st.integers(2, 12))
@settings(max_examples=50, deadline=None)
def test_lambda_rises_until_all_are_within_reach(seed, m):
    points = np.random.default_rng(seed).normal(size=(m, 2))
    path, who = path_from(points), np.arange(m)
    heights = linkage_heights(path.fusion.pairs.distances())
    reaches = list(steps_along(path, who))
    assert len(reaches) <= MAX_PASSES
    assert (np.diff(reaches) >= 0).all()
    assert path.reach * path.lam == pytest.approx(max(heights.max(), reaches[-1]))
    assert path.readings[0].tolist() == list(range(m))
    assert path.readings[-1].tolist() == [0] * m
    assert len(path.lambdas) == len(path.readings) == len(path.gaps) == len(reaches) + 2


def test_lambda_waits_just_below_a_gap():
    """Two clouds: the reach covers the links within them, then stays short of the link between."""
    rng = np.random.default_rng(0)
    points = np.vstack([rng.normal(size=(10, 2)), rng.normal(size=(10, 2)) + 40])
    path = path_from(points)
    between = linkage_heights(path.fusion.pairs.distances())[-1]
    reaches = np.array(list(steps_along(path, np.arange(20))))
    assert np.isclose(reaches, WAIT_REACH_RATIO * between).sum() == WAIT_PASSES
    assert reaches[-1] > between


def test_devices_that_are_not_believed_do_not_move_lambda():
    points = np.vstack([np.random.default_rng(0).normal(size=(8, 2)), [[1e6, 1e6]]])
    path, who = path_from(points), np.arange(8)
    list(steps_along(path, who))
    assert path.lam < 10


def test_equal_devices_are_one_group_at_once():
    path = path_from(np.ones((5, 2)))
    assert not path.raise_lambda(np.arange(5))
    assert path.readings.tolist() == [[0, 1, 2, 3, 4], [0] * 5]


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_passes_are_algorithm_2_with_exact_solves(goal):
    """Against the textbook: the same lambdas, explicit theta and v, the ridge as part of every f_i."""
    run, rounds, ridge = begun(planted(goal, m=6), ff.FPFC(), participation=0.5), 0, RIDGES[COMMON_RIDGE]
    while run.rule.phase(run.state) != FusePairs.name:
        run.round()
    book = Textbook(run.state.path.fusion.pairs.omega, None, 1.0, warm=True)
    while run.rule.phase(run.state) == FusePairs.name:
        pairs, book.penalty = run.state.path.fusion.pairs, at_lambda(ff.FPFC(), run.state.path.lam).penalty
        before, waiting = pairs.omega.copy(), run.rule.devices(run.state, np.arange(3))
        row = run.round()
        for i in waiting:
            anchor = book.anchor(i) / (1 + ridge)
            run.engine.submit([Order(i, 0, Train(EXACT, start=before[i], anchor=anchor, rho=1 + ridge))])
        book.update(waiting, [reply.values for reply in sorted(run.engine.collect(), key=lambda r: r.device)])
        np.testing.assert_allclose(pairs.omega, book.omega, atol=1e-7)
        assert np.isfinite([row["primal"], row["dual"]]).all()
        rounds += 1
    assert rounds >= 6


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_finds_the_groups_and_says_at_which_lambda(goal):
    federation = planted(goal, m=12, n=80, groups=3)
    result = fit(federation, ff.FPFC(), participation=0.5, dtype="float64")
    assert result.ari == 1
    assert result.method["method"] == "fpfc"
    assert result.lam > 0
    path = result.history[result.history.stage == "fusion path"]
    assert len(path) >= 5
    assert path[["primal", "dual"]].notna().all(axis=None)
    assert sum(stage["floats"] for stage in result.stages) == result.cost_floats


def test_a_device_that_lies_is_told_and_stands_alone():
    federation = planted(m=10, n=80)
    result = fit(federation, ff.FPFC(), attack="sign-flip", liars=0.2, seed=3)
    honest = np.setdiff1d(np.arange(10), result.attack["who"])
    assert canonical(result.labels[honest]).tolist() == canonical(federation.truth[honest]).tolist()


def test_one_group_and_all_alone():
    one = fit(planted("classification", m=8, n=150, groups=1), ff.FPFC())
    assert one.n_clusters == 1
    many = fit(planted("classification", m=6, n=150, groups=6), ff.FPFC())
    assert many.n_clusters == 6


def test_networks_fuse_their_last_layer_along_the_path():
    federation = load("digits")
    work = ff.Work(steps=5, lr=0.05, batch=10, momentum=0.9)
    result = fit(federation, ff.FPFC(work=work), MLP(), rounds=20)
    assert result.ari == 1
    path = result.history[result.history.stage == "fusion path"]
    assert 1 <= len(path) <= MAX_NETWORK_PASSES
    assert path[["primal", "dual"]].notna().all(axis=None)


def test_too_many_devices_are_refused_with_advice(monkeypatch):
    monkeypatch.setattr("fedfuse.grouping.fusion_path.MAX_DEVICES", 5)
    with pytest.raises(ff.FedfuseError, match="all pairs of 6 devices at once, and works up to 5: give a lambda"):
        fit(planted(m=6), ff.FPFC())
