"""Networks that find their groups, and train theirs."""

from __future__ import annotations

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.core.partitions import group_means
from fedfuse.engines.attacks import draw_liars
from fedfuse.grouping.network_tree import (
    BOUNDED_LENGTH_RATIO,
    MAX_COMMON_TURNS,
    MAX_LENGTH_RATIO,
    MIN_REFERENCE_LENGTH,
    TrainGroups,
    TrainTogether,
)
from fedfuse.grouping.refit import Oracle
from fedfuse.grouping.steps import SKIPPED
from fedfuse.protocol.tasks import Train
from fedfuse.training.fit import fit, resume
from fedfuse.training.loop import Callback
from support.planted import Keep

pytest.importorskip("torch", reason="networks need fedfuse[torch]")
WORK = ff.Work(steps=4, lr=0.1, batch=10, momentum=0.9)


def turned(m=8, n=80, seed=0):
    """Three classes by two features; in the second group two of them are swapped."""
    rng = np.random.default_rng(seed)
    truth = np.arange(m) * 2 // m
    data = []
    for g in truth:
        X = rng.normal(size=(n, 2))
        y = np.argmax(X @ np.array([[2.0, -2.0, 0.0], [0.0, 1.0, 2.0]]), axis=1)
        data.append((X, np.where(y == 2, 2, 1 - y) if g else y))
    return ff.Federation.from_arrays(data, truth=truth, seed=seed)


def model():
    return ff.MLP(hidden=(8,))


@pytest.mark.parametrize("seed", [0, 1])
def test_groups_are_found_and_better_than_one_or_all_alone(seed):
    federation = turned(seed=seed)
    found = fit(federation, ff.FusionTree(work=WORK), model(), rounds=20, seed=seed)
    assert found.ari == 1.0
    assert found.lam is None
    assert found.confidence.min() > 0.9
    one = fit(federation, ff.FedAvg(work=WORK), model(), rounds=20, seed=seed)
    assert found.score() > one.score() + 0.2
    assert found.score() > 0.85


def test_the_shared_part_is_one_for_all_and_the_fused_part_one_per_group():
    federation, keep = turned(), Keep()
    found = fit(federation, ff.FusionTree(work=WORK), model(), rounds=15, callbacks=[keep])
    cut = found.model.fused.start
    assert 0 < cut < found.model.d
    assert np.ptp(found.models[:, :cut], axis=0).max() == 0
    for c in range(found.n_clusters):
        assert np.ptp(found.models[found.labels == c], axis=0).max() == 0
    assert (found.cluster_models[0, cut:] != found.cluster_models[1, cut:]).any()


def test_a_refit_turn_is_a_mean_over_members_and_a_mean_over_all():
    federation = turned()
    rng, run = np.random.default_rng(0), Keep()
    fit(federation, Oracle(work=WORK), model(), rounds=1, callbacks=[run])
    method, state = run.run.rule, run.run.state
    labels, cut, d = state.labels, state.info.model.fused.start, state.info.d
    replies = rng.normal(size=(federation.m, d)).astype("f4")
    tasks = method.tasks(state, np.arange(federation.m), 0)
    assert all(isinstance(task, Train) and task.rows == "train+validation" for task in tasks)
    method.update(state, np.arange(federation.m), list(replies))
    weights = federation.rows("train+validation").counts
    means = group_means(replies, labels, weights)
    np.testing.assert_allclose(state.models[:, cut:], means[:, cut:], atol=1e-6)
    np.testing.assert_allclose(
        state.models[:, :cut],
        np.tile(np.average(replies[:, :cut], axis=0, weights=weights), (2, 1)),
        atol=1e-6,
    )


def test_a_given_lambda_is_refitted_too():
    federation = turned()
    found = fit(federation, ff.FPFC(lam=0.3, work=WORK, refit=True), model(), rounds=30)
    assert [(stage["name"], stage["rounds"]) for stage in found.stages] == [("fpfc", 20), (TrainGroups.name, 10)]
    assert found.score() > 0.8


class StopAt(Callback):
    def __init__(self, k):
        self.k = k

    def on_round(self, run, row):
        if run.k == self.k:
            raise KeyboardInterrupt


def test_resumed_is_uninterrupted(tmp_path):
    federation, options = turned(), {"rounds": 20, "participation": 0.5, "checkpoint_every": 3}
    whole = fit(federation, ff.FusionTree(work=WORK), model(), out=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        fit(federation, ff.FusionTree(work=WORK), model(), out=tmp_path / "cut", callbacks=[StopAt(4)], **options)
    for k in (8, 11, 17):
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "cut", federation, callbacks=[StopAt(k)])
    again = resume(tmp_path / "cut", federation)
    np.testing.assert_array_equal(whole.models, again.models)
    np.testing.assert_array_equal(whole.labels, again.labels)
    assert whole.cost_floats == again.cost_floats


def test_test_rows_choose_nothing():
    federation = turned()
    rows, X = federation.rows("test"), federation.X.copy()
    for a, b in zip(rows.start, rows.stop, strict=True):
        X[a:b] = 50 * np.random.default_rng(int(a)).normal(size=X[a:b].shape)
    other = ff.Federation(**{**vars(federation), "X": X})
    one, two = (fit(f, ff.FusionTree(work=WORK), model(), rounds=16) for f in (federation, other))
    np.testing.assert_array_equal(one.models, two.models)


def test_training_together_ends():
    history = fit(turned(), ff.FusionTree(work=WORK), model(), rounds=20).history
    assert 2 <= (history["stage"] == TrainTogether.name).sum() <= MAX_COMMON_TURNS


def test_every_method_trains_a_network():
    federation = turned()
    kinds = [ff.Local, ff.FedAvg, ff.LGFedAvg, ff.PerFedAvg, ff.CFL, ff.PACFL, ff.IFCA, ff.FPFCL1]
    settings = {"cfl": {"eps1": 0.1, "eps2": 0.2}, "pacfl": {"threshold": 5.0}, "ifca": {"n_models": 2}}
    for kind in kinds:
        method = kind(work=WORK, **settings.get(kind.name, {}))
        result = fit(federation, method, model(), rounds=8, participation=0.5)
        assert np.isfinite(result.models).all(), kind.name
        cut = result.model.fused.start
        shared = np.ptp(result.models[:, :cut], axis=0).max() == 0
        assert shared == (kind.name in ("fedavg", "ifca", "fpfc-l1", "cfl")) or kind.name == "cfl", kind.name


@pytest.mark.parametrize("attack", ["same-value", "sign-flip", "gaussian"])
def test_a_suspect_is_not_asked_again(attack):
    """Its answers are worth nothing, and asking for them would take rounds from the others."""
    asked = []

    class Look(Callback):
        def on_round(self, run, row):
            asked.append((np.flatnonzero(run.state.suspects), run.state.asked.copy()))

    federation = turned(m=10)
    method = ff.FusionTree(work=WORK, personal=False)
    found = fit(federation, method, model(), rounds=25, attack=attack, liars=0.4, callbacks=[Look()])
    assert np.array_equal(found.suspects, draw_liars(10, 0.4, seed=0))
    for suspects, times in asked:
        assert (times[suspects] >= SKIPPED).all()
    assert found.score() > 0.85


@pytest.mark.parametrize(("robust", "expelled"), [("screen", [2]), ("none", [])])
def test_who_sends_an_impossible_score_is_not_believed_however_calm_the_update(robust, expelled):
    federation, run = turned(), Keep()
    fit(federation, ff.FusionTree(work=WORK, robust=robust), model(), rounds=1, participation=0.2, callbacks=[run])
    method, state, everybody = run.run.rule, run.run.state, np.arange(federation.m)
    method._enter(state, TrainTogether.name)
    starts = state.models[state.labels]
    steps = np.random.default_rng(0).normal(size=starts.shape) / 1000
    scores = np.where(everybody == 2, -0.3, 0.3)
    method.tasks(state, everybody, 0)
    method.update(state, everybody, list(np.column_stack([starts + steps, scores])))
    assert np.flatnonzero(state.suspects).tolist() == expelled


@pytest.mark.parametrize("times", [1.5, 3.0, 100.0])
def test_an_update_counts_by_its_length(times):
    """As it is, as long as the others, or not at all: a lie just short of absurd would still ruin a mean."""
    federation, run = turned(), Keep()
    fit(federation, Oracle(work=WORK), model(), rounds=1, callbacks=[run])
    method, state = run.run.rule, run.run.state
    state.reference_length = MIN_REFERENCE_LENGTH  # as if it were the first turn
    cut, everybody = state.info.model.fused.start, np.arange(federation.m)
    starts = state.models[state.labels].astype("f8")
    steps = np.random.default_rng(0).normal(size=starts.shape)
    steps /= np.linalg.norm(steps, axis=1, keepdims=True)
    sent, counted = steps.copy(), steps.copy()
    sent[3] *= times
    counted[3] *= times if times < BOUNDED_LENGTH_RATIO else 1.0
    weights = federation.rows("train+validation").counts * (everybody != 3 if times > MAX_LENGTH_RATIO else 1)
    method.tasks(state, everybody, 0)
    method.update(state, everybody, list(starts + sent))
    expected = np.average((starts + counted)[:, :cut], axis=0, weights=weights)
    np.testing.assert_allclose(state.models[0, :cut], expected, atol=1e-6)


def test_who_still_learns_is_no_liar_beside_those_who_do_not():
    federation, run = turned(), Keep()
    fit(federation, Oracle(work=WORK), model(), rounds=1, callbacks=[run])
    method, state, everybody = run.run.rule, run.run.state, np.arange(federation.m)
    starts = state.models[state.labels].astype("f8")
    steps = np.random.default_rng(0).normal(size=starts.shape)
    steps *= state.reference_length / np.linalg.norm(steps, axis=1, keepdims=True)
    steps[1:] /= 1000
    method.tasks(state, everybody, 0)
    method.update(state, everybody, list(starts + steps))
    assert not state.suspects.any()


def test_a_share_of_those_who_are_believed_takes_part():
    federation, run = turned(m=10), Keep()
    fit(federation, ff.FusionTree(work=WORK), model(), rounds=1, callbacks=[run])
    method, state, drawn = run.run.rule, run.run.state, np.arange(5)
    state.suspects[:] = np.arange(10) < 6
    method._enter(state, TrainTogether.name)
    chosen = method.devices(state, drawn)
    assert chosen.size == 2
    assert (chosen >= 6).all()
