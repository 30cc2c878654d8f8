"""FPFC and FPFC-l1 against a run that is written down word for word, and their limits in lambda."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfuse as ff
from fedfuse.core.partitions import group_means
from fedfuse.core.penalties import SmoothedSCAD
from fedfuse.data import load
from fedfuse.engines import InProcess
from fedfuse.engines.attacks import draw_liars
from fedfuse.errors import FedfuseError
from fedfuse.methods.fpfc import FPFCState, restless_devices
from fedfuse.methods.method import FederationInfo, Method
from fedfuse.methods.registry import METHODS, from_config, method_called
from fedfuse.models import MLP, default_model
from fedfuse.pairs.state import FusionState
from fedfuse.protocol.tasks import Install, Order
from fedfuse.training.fit import fit
from fedfuse.training.loop import Run
from fedfuse.training.settings import Settings
from fedfuse.training.stages import stages_of
from support.partly_fused import PartlyFused
from support.planted import Keep, begun, gradient, planted
from support.textbook import Textbook


def by_the_book(federation, method, d, rounds, sampler):
    """Algorithm 2: server loops over pairs, devices descend one after the other."""
    book = Textbook(np.zeros((federation.m, d)), method.penalty, method.rho)
    for k in range(rounds):
        active, new = sampler(k, federation.m), []
        for i in active:
            zeta, w = book.anchor(i), book.omega[i].copy()
            for _ in range(int(method.work.steps)):
                w -= method.work.lr * (gradient(federation, i, w) + method.rho * (w - zeta))
            new.append(w)
        book.update(active, np.array(new))
    return book


@pytest.mark.parametrize("goal", ["regression", "classification"])
@pytest.mark.parametrize(
    "method",
    [
        ff.FPFC(lam=0.4, refit=False, xi=1e-2, work=ff.Work(steps=4, lr=0.05)),
        ff.FPFC(lam=0.3, refit=False, rho=2.0, a=2.5, work=ff.Work(steps=2, lr=0.1)),
        ff.FPFCL1(lam=0.1, refit=False, work=ff.Work(steps=3, lr=0.1)),
        ff.FPFC(lam=0.0, refit=False, work=ff.Work(steps=3, lr=0.1)),
    ],
    ids=["fpfc", "rho-2", "l1", "lam-0"],
)
def test_fit_equals_the_textbook(goal, method):
    federation, rounds = planted(goal, m=7, n=30), 25
    draws = np.random.default_rng(3)
    turns = [draws.choice(7, draws.integers(1, 8), replace=False) for _ in range(rounds)]

    def sampler(k, m):
        return turns[k]

    keep = Keep()
    fit(federation, method, rounds=rounds, tol=0, participation=sampler, dtype="float64", callbacks=[keep])
    state = keep.run.state.pairs
    book = by_the_book(federation, method, state.d, rounds, sampler)
    np.testing.assert_allclose(state.omega, book.omega, rtol=0, atol=1e-8)
    np.testing.assert_allclose(state.norms(), np.linalg.norm(book.theta, axis=2), rtol=0, atol=1e-8)


def test_shared_weights_are_averaged_and_the_rest_is_fused():
    """The book for the fused part; for the shared part the mean over active devices, by rows; of few, less."""
    federation, cut, work = planted(m=6, n=30), 2, ff.Work(steps=3, lr=0.05)
    method = ff.FPFC(lam=0.3, xi=1e-2, refit=False, work=work, start="normal")
    draws = np.random.default_rng(3)
    turns = [draws.choice(6, draws.integers(1, 7), replace=False) for _ in range(20)]
    run = begun(federation, method, PartlyFused(cut=cut), participation=lambda k, m: turns[k])
    n, shared = federation.rows("train+validation").counts, run.state.shared.copy()
    book = Textbook(run.state.pairs.omega, method.penalty, method.rho)
    for active in turns:
        run.round()
        new = []
        for i in active:
            w, zeta = np.concatenate([shared, book.omega[i]]), book.anchor(i)
            for _ in range(3):
                pull = np.concatenate([np.zeros(cut), method.rho * (w[cut:] - zeta)])
                w = w - 0.05 * (gradient(federation, i, w) + pull)
            new.append(w)
        book.update(active, np.array(new)[:, cut:])
        mean, weight = n[active] @ np.array(new)[:, :cut] / n[active].sum(), min(1, len(active) / 5)
        shared = (1 - weight) * shared + weight * mean
        np.testing.assert_allclose(run.state.pairs.omega, book.omega, atol=1e-10)
        np.testing.assert_allclose(run.state.shared, shared, atol=1e-12)
    np.testing.assert_allclose(run.state.pairs.norms(), np.linalg.norm(book.theta, axis=2), atol=1e-10)
    np.testing.assert_allclose(run.rule.current(run.state).models[:, :cut], np.tile(shared, (6, 1)))
    assert run.ledger.floats == 6 * 4 + 2 * 4 * sum(map(len, turns))


def with_shared_part(m: int, rng: np.random.Generator) -> FPFCState:
    """The state of m devices with three shared and two fused parameters, each part of length 1."""
    shared, fused = (part / np.linalg.norm(part) for part in (rng.normal(size=3), rng.normal(size=2)))
    pairs = FusionState(np.tile(fused, (m, 1)), SmoothedSCAD(0.5), dtype="float64")
    rows, moves, heard = rng.integers(10, 20, m), np.zeros(m), np.zeros(m, int)
    return FPFCState(None, pairs, shared, rows, moves, heard, np.zeros((m, 2)), {})


def trained(state: FPFCState, devices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Honest replies: either part moves by 0.1 to 0.2."""
    parts = [rng.normal(size=(len(devices), size)) for size in (3, 2)]
    lengths = rng.uniform(0.1, 0.2, (2, len(devices), 1))
    moves = [by * part / np.linalg.norm(part, axis=1, keepdims=True) for by, part in zip(lengths, parts, strict=True)]
    return state.models[devices] + np.hstack(moves)


def lies_about(models: np.ndarray, attack: str, scope: str, rng: np.random.Generator) -> np.ndarray:
    """What liars send in place of these models; their shared part explodes or stands still if it is not a lie."""
    forged = {
        "gaussian": lambda: rng.normal(0, 100, models.shape),
        "sign-flip": lambda: -np.abs(rng.normal(0, 10, (len(models), 1))) * models,
        "same-value": lambda: np.tile(rng.normal(0, 100, (len(models), 1)), models.shape[1]),
    }[attack]()
    if scope == "fused":
        forged[:, :3] = models[:, :3] + (rng.normal(0, 10, (len(models), 3)) if attack != "same-value" else 0.0)
    return forged


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 12))
def test_without_liars_the_shared_part_is_the_weighted_mean(seed, m, active):
    """To the bit, however many answer at a time; a mean over fewer than five moves it part of the way."""
    rng = np.random.default_rng(seed)
    state = with_shared_part(m, rng)
    for _ in range(6):
        devices = rng.choice(m, min(m, active), replace=False)
        models, before = trained(state, devices, rng), state.shared
        weight = min(1.0, len(devices) / min(5, m))
        mean = np.average(models[:, :3], axis=0, weights=state.weights[devices])
        state.update(devices, models)
        np.testing.assert_array_equal(state.shared, (1 - weight) * before + weight * mean)


@pytest.mark.parametrize("scope", ["fused", "all"])
@pytest.mark.parametrize("attack", ["same-value", "sign-flip", "gaussian"])
@pytest.mark.parametrize("active", [10, 1])
def test_liars_do_not_move_the_shared_part(attack, scope, active):
    """60 % lie: in no round is the shared part further from where it was than ten honest moves of who has most rows."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        state = with_shared_part(20, rng)
        for _ in range(300 // active):
            devices = rng.choice(20, active, replace=False)
            models, before, liars = trained(state, devices, rng), state.shared, devices < 12
            models[liars] = lies_about(models[liars], attack, scope, rng)
            state.update(devices, models)
            assert np.linalg.norm(state.shared - before) < 20 * 0.2


@pytest.mark.parametrize(
    "way", [{"rounds": 40, "participation": 0.5}, {"rounds": 600, "mode": "async", "delay": "uniform(0,20)"}]
)
def test_honest_devices_score_under_attack_as_they_do_without(way):
    """60 % lie about the fused part: errors of the others are at most 3 % above those without an attack."""
    federation, method = planted(m=20, n=60), ff.FPFC(lam=0.3, nu=0.1, work=ff.Work(steps=5, lr=0.05))
    run = partial(ff.fit, federation, method, PartlyFused(cut=2), tol=0, evaluate_every=10**6, **way)
    unattacked = np.delete(run().scores["test"], draw_liars(20, 0.6, seed=0)).mean()
    for attack in ("same-value", "sign-flip", "gaussian"):
        assert run(attack=attack, liars=0.6, scope="fused").score("test") < 1.03 * unattacked


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.lists(st.floats(0, 1e6), min_size=12, max_size=12))
def test_no_lie_moves_the_shared_part_far(seed, lengths):
    """Whatever 60 % send: the shared part moves no further than ten honest moves of who has most rows."""
    rng = np.random.default_rng(seed)
    state = with_shared_part(20, rng)
    models, before = trained(state, np.arange(20), rng), state.shared
    models[:12, :3] += np.array(lengths)[:, None] * rng.normal(size=(12, 3))
    models[:12, 3:] += rng.permutation(lengths)[:, None] * rng.normal(size=(12, 2))
    state.update(np.arange(20), models)
    bound = max(20 * 0.2, 0.1 * np.linalg.norm(before))
    assert np.linalg.norm(state.shared - before) <= bound


def test_a_device_with_many_rows_may_move_further():
    """An epoch of a hundred times the rows has a hundred times the steps: no reason to leave the device out."""
    rng = np.random.default_rng(0)
    state, devices = with_shared_part(10, rng), np.arange(10)
    state.weights[:9], state.weights[9] = 10, 1000
    models = trained(state, devices, rng)
    models[9] = state.models[9] + 40 * (models[9] - state.models[9])
    state.update(devices, models)
    np.testing.assert_array_equal(state.shared, np.average(models[:, :3], axis=0, weights=state.weights))


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_a_huge_lambda_is_consensus(goal):
    """All devices hold one vector, and it minimises the sum of their losses."""
    federation, keep = planted(goal, noise=1.0), Keep()
    method = ff.FPFC(lam=1e4, refit=False, work=ff.Work(solver="exact"))
    result = fit(federation, method, rounds=3000, tol=1e-9, dtype="float64", callbacks=[keep])
    omega = keep.run.state.pairs.omega
    assert result.n_clusters == 1
    assert np.ptp(omega, axis=0).max() < 1e-5
    total = sum(gradient(federation, i, omega.mean(axis=0)) for i in range(federation.m))
    assert np.abs(total).max() < 1e-3


@pytest.mark.parametrize("work", [ff.Work(steps=3, lr=0.1), ff.Work(steps=2, lr=0.1, batch=8)], ids=["gd", "sgd"])
@pytest.mark.parametrize("kind", [ff.FPFC, ff.FPFCL1], ids=lambda kind: kind.name)
def test_without_a_penalty_nobody_feels_the_others(kind, work):
    """Other data on one device leave all others bit-identical."""
    federation, omegas = planted(m=6), []
    for scale in (1.0, -50.0):
        start, stop = federation.cuts[2, 0], federation.cuts[2, 3]
        federation.y[start:stop] *= scale
        keep = Keep()
        settings = {"rounds": 30, "tol": 0, "participation": 0.5}
        fit(federation, kind(lam=0.0, refit=False, work=work), callbacks=[keep], **settings)
        omegas.append(keep.run.state.pairs.omega.copy())
    same = (omegas[0] == omegas[1]).all(axis=1)
    assert same.tolist() == [True, True, False, True, True, True]


def test_devices_start_from_their_own_model():
    """With one step, rho = 1 and lr = 0.5 from omega_i: w - 0.5 (grad + w - zeta), not from zeta."""
    federation, keep = planted(m=3, n=20), Keep()
    method = ff.FPFC(lam=0.5, refit=False, work=ff.Work(steps=1, lr=0.05))
    fit(federation, method, rounds=6, tol=0, dtype="float64", callbacks=[keep])
    run = keep.run
    omega, zeta = run.state.pairs.omega.copy(), run.state.pairs.anchors([0, 1, 2])
    run.round()
    for i in range(3):
        expected = omega[i] - 0.05 * (gradient(federation, i, omega[i]) + omega[i] - zeta[i])
        np.testing.assert_allclose(run.state.pairs.omega[i], expected, atol=1e-12)


def test_final_models_are_means_by_rows():
    federation, keep = planted(), Keep()
    result = fit(federation, ff.FPFC(lam=0.5, refit=False), rounds=40, dtype="float64", callbacks=[keep])
    counts = federation.rows("train+validation").counts
    means = group_means(keep.run.state.pairs.omega, result.labels, counts)
    np.testing.assert_array_equal(result.models, means[result.labels])
    np.testing.assert_array_equal(result.cluster_models, means)
    assert result.labels.tolist() == federation.truth.tolist()


def test_groups_part_at_nu_or_in_the_widest_gap():
    omega = np.array([[0.0], [0.1], [0.3], [2.0], [2.1]])
    pairs = FusionState(omega, SmoothedSCAD(1.0), warm=True)
    assert ff.FPFC(lam=1.0).gap(pairs) == pytest.approx((0.2, 1.7))
    assert ff.FPFC(lam=0.2).gap(pairs).nu == pytest.approx(np.sqrt(0.2 * 1.7))  # Reach 0.74: cut all the same.
    assert ff.FPFC(lam=5.0).gap(pairs).nu == pytest.approx(0.75 * 5)  # All are fused.
    assert ff.FPFC(lam=0.0).gap(pairs).nu == 0
    assert ff.FPFC(lam=1.0, nu=0.07).gap(pairs).nu == 0.07


@pytest.mark.parametrize("start", ["zero", "normal"])
def test_all_devices_start_alike(start):
    drawn = np.random.default_rng(0).normal(size=4)
    model, counts = default_model("regression").sized(3, 0), {"train+validation": np.ones(5, np.int64)}
    info = FederationInfo(5, model, counts, {"zero": np.zeros(4), "normal": drawn}.get, np.dtype("f4"))
    method = ff.FPFC(lam=0.6, start=start, refit=True)
    state = method.init(info)
    assert (state.models == (drawn.astype("f4") if start == "normal" else 0)).all()
    opening = method.opening(state)
    assert sorted(opening) == list(range(5))
    assert sum(task.floats_down for task in opening.values()) == 5 * 4


@pytest.mark.parametrize("kind", METHODS.values(), ids=METHODS)
def test_described_and_built_again(kind):
    work = ff.Work(steps=ff.Grow(7), lr=ff.Decay(0.0123456789, 0.9, 5), batch=16)
    other = {"lam": 0.25, "refit": False, "rho": 1.5, "nu": 0.2, "start": "normal", "rows": "train", "work": work}
    method = kind(**{f.name: other[f.name] for f in fields(kind) if f.name in other})
    for m in (method, kind()):
        assert from_config(json.loads(json.dumps(m.to_config()))) == m


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lam": -0.1}, "lambda must be at least 0"),
        ({"lam": float("nan")}, "lambda must be a finite number"),
        ({"lam": "much"}, "lam must be a number, 'auto', 'warmup' or 'separate', got 'much'"),
        ({"lam": 0.6, "xi": 0.6}, "xi must lie between 0 and lambda = 0.6"),
        ({"xi": 0.0}, "xi must lie between 0 and lambda"),
        ({"xi": float("nan")}, "xi must be a finite number"),
        ({"a": 2.0}, "a > 2"),
        ({"rho": 1 / 2.7}, r"rho must exceed 1/\(a - 1\)"),
        ({"rho": -1.0}, "rho must be positive"),
        ({"lam": 0.6, "rho": 1 / 2.7}, r"rho must exceed 1/\(a - 1\)"),
        ({"nu": 0.0}, "nu must be a number above 0"),
        ({"nu": float("inf")}, "nu must be a number above 0"),
        ({"start": "warm"}, "start must be 'auto', 'zero' or 'normal'"),
        ({"rows": "test"}, "test rows are never trained on"),
        ({"rows": "all"}, "test rows are never trained on"),
    ],
)
def test_settings_out_of_range(settings, words):
    with pytest.raises(FedfuseError, match=words):
        ff.FPFC(**{"lam": 0.6} | settings)


def test_settings_of_l1():
    with pytest.raises(FedfuseError, match="fpfc-l1 has no lam='auto'"):
        ff.FPFCL1(lam="auto", refit=True)
    with pytest.raises(FedfuseError, match="rho must be positive"):
        ff.FPFCL1(rho=0.0, refit=True)


@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize(
    ("method", "stages"),
    [
        (ff.FPFC(lam=0.6), ["fpfc"]),
        (ff.FPFC(lam=0.6, refit=True), ["fpfc", "refit"]),
        (ff.FPFC(lam="warmup"), ["lambda path"]),
        (ff.FPFC(lam="separate", refit=True), ["lambda path", "refit"]),
        (ff.FusionTree(personal=False), ["fusion-tree"]),
        (ff.CFL(), ["grid search", "cfl"]),
        (ff.CFL(eps1=1.0, eps2=1.0), ["cfl"]),
    ],
    ids=lambda x: x.name if isinstance(x, Method) else " ".join(x),
)
def test_stages(method, stages, network):
    """What really runs, within the rounds of the run."""
    model = MLP(hidden=(3,)) if network else ff.SoftmaxRegression()
    found = stages_of(method, model.sized(3, 2), 90)
    assert [stage.name for stage in found] == stages
    assert sum(stage.max_rounds or 0 for stage in found) < 90
    assert from_config(method.to_config()) == method


def test_personal_models_follow_the_groups():
    for method in (ff.FusionTree(), ff.FPFC(lam="auto")):
        names = [stage.name for stage in stages_of(method, ff.LinearRegression().sized(3, 0), 500)]
        assert names == [method.name, "personal"]
        large = stages_of(method, ff.SoftmaxRegression().sized(60, 10), 500)
        assert [stage.method.name for stage in large[1:]] == ["personal-large"]
        assert [s.name for s in stages_of(method, MLP(hidden=(3,)).sized(3, 2), 500)] == [method.name, "personal"]


def test_unknown_method():
    with pytest.raises(FedfuseError, match="unknown method 'moon'; known: fusion-tree, fpfc, fpfc-l1, local, fedavg, "):
        method_called("moon")


# The train accuracies of the re-implementation (PROTOCOL.md 5.9.6). Its rounds count from 0: round k is the
# state after k + 1 rounds, as its early values show (0.1866, 0.2522, 0.3013 after one, two, three rounds).
TRAJECTORY = {
    0: 0.1866, 1: 0.2522, 2: 0.3013, 5: 0.4083, 10: 0.4758, 20: 0.5118, 50: 0.5398, 100: 0.5809, 200: 0.6596,
    300: 0.7251, 400: 0.7732, 500: 0.8052, 600: 0.8249, 800: 0.848, 1000: 0.8612,
}  # fmt: skip


@pytest.mark.slow
def test_trajectory_of_the_calibration_record():
    """S1, generator seed 1, lambda 0.6, one N(0, 1) start, the published stream of active devices."""
    federation = load("synthetic:S1", seed=1, validation=0)
    stream = np.random.RandomState(1)
    start = np.concatenate([stream.normal(size=(10, 60)).ravel(), stream.normal(size=(1, 10)).ravel()])
    model = default_model(federation.goal).sized(federation.n_features, federation.n_classes)
    engine = InProcess(federation, model)
    settings = Settings(participation=lambda k, m: stream.choice(m, 30, replace=False), tol=0, evaluate_every=10**6)
    method = ff.FPFC(lam=0.6, refit=False, rho=1.0, xi=1e-4, work=ff.Work(steps=10, lr=0.1))
    run = Run(federation, model, method, settings, engine)
    run.begin()
    run.state.pairs.omega[:] = start
    engine.submit([Order(i, -1, Install(start)) for i in range(federation.m)])
    engine.collect()
    train, found = model.load(federation.rows("train"), np.float32), {}
    for k in range(max(TRAJECTORY) + 1):
        run.round()
        if k in TRAJECTORY:
            found[k] = model.metric(train, np.arange(federation.m), run.state.pairs.omega).mean()
    away = {k: round(float(found[k] - TRAJECTORY[k]), 4) for k in TRAJECTORY}
    assert max(map(abs, away.values())) <= 0.004, away


def test_what_has_no_room_is_said_in_a_line(monkeypatch):
    monkeypatch.setattr("fedfuse.pairs.memory.free_memory", lambda: 5000)
    with pytest.raises(FedfuseError, match=r"66 pairs .* and 5 kB are free: .*graph='knn:10'"):
        ff.fit(planted(m=12, p=40, n=30), ff.FPFC(lam=0.3, refit=False), rounds=4, seed=0)


@pytest.mark.parametrize(
    ("heard", "accused"),
    [
        ([9, 9, 9, 9], [3]),
        ([9, 9, 9, 2], []),  # who was heard seldom has had no time to come to rest
        ([9, 9, 9, 0], []),
        ([0, 0, 0, 9], []),  # nobody to measure it by: the others never moved because nobody heard them
    ],
)
def test_to_be_slow_is_not_to_lie(heard, accused):
    pairs, rows = FusionState(np.ones((4, 2)), SmoothedSCAD(0.5), dtype="float64"), np.ones(4, int)
    state = FPFCState(None, pairs, np.empty(0), rows, np.zeros(4), np.zeros(4, int), np.zeros((4, 2)), {})
    state.heard[:], state.moves[:] = heard, [0.01, 0.01, 0.01, 5.0]
    assert restless_devices(state, np.array([0, 0, 0, 1])).tolist() == accused
