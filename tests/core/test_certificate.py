"""The interval of lambdas for which a grouping is a stationary point, against the objective and FPFC itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedfuse as ff
from fedfuse.core.certificate import Certificate, interval
from fedfuse.core.partitions import group_means
from fedfuse.core.penalties import SCAD
from fedfuse.data import load
from fedfuse.errors import FedfuseError
from fedfuse.grouping.fusion_tree import COMMON_RIDGE, RIDGES
from fedfuse.methods.method import Outcome
from fedfuse.training.evaluation import standardised
from support.planted import begun, gradient, line, planted, written_out

EXACT = ff.Work(solver="exact")


def theorem_3(m=8, n=400, d=4, b=6.0, noise=0.1, seed=0):
    """A linear federation under the conditions of Theorem 3: columns of length sqrt(n), sub-Gaussian noise, b apart."""
    rng = np.random.default_rng(seed)
    alpha = np.zeros((2, d))
    alpha[1, 0] = b
    data = {}
    for i in range(m):
        X = rng.normal(size=(n, d))
        X *= np.sqrt(n) / np.linalg.norm(X, axis=0)
        data[f"d{i}"] = (X, X @ alpha[i * 2 // m] + noise * rng.normal(size=n))
    truth = np.arange(m) * 2 // m
    return ff.Federation.from_arrays(data, goal="regression", truth=truth, test=0, validation=0)


def grouped(federation, lam, rounds=40, **more):
    """A run that ends with the true groups, and its certificate."""
    result = ff.fit(federation, ff.FPFC(lam=lam, work=EXACT, refit=True, **more), rounds=rounds)
    np.testing.assert_array_equal(result.labels, federation.truth)
    return result, result.certify(federation)


def labels_from(federation, result, lam, rounds=50, nu=0.1, work=EXACT):
    """The groups after every round of FPFC from the group models, warm, all devices active, exact local solves."""
    run = begun(federation, ff.FPFC(lam=lam, work=work, nu=nu), result.model, rounds=rounds)
    run.previous = Outcome(result.cluster_models[result.labels], result.labels)
    run.begin()
    seen = []
    for _ in range(rounds):
        run.round()
        seen.append(run.rule.current(run.state).labels)
    return np.array(seen), np.asarray(run.state.pairs.omega)


def stays(federation, result, lam):
    return (labels_from(federation, result, lam)[0] == result.labels).all()


def objective(federation, omega, penalty):
    """The paper's F, written out."""
    losses = 0.0
    for i in range(federation.m):
        X, y = federation.rows("train+validation").of(i)
        losses += np.mean((np.column_stack([X, np.ones(len(X))]) @ omega[i] - y) ** 2)
    distances = np.linalg.norm(omega[:, None] - omega[None], axis=2)
    return losses + penalty.value(distances).sum() / (2 * federation.m)


def test_by_hand():
    """f_i(w, b) = (w - s_i)^2 + (b - c_i)^2: group models are means, gradients 2 (mean - s_i)."""
    federation = written_out(*(line(slope) for slope in (-0.1, 0.0, 0.1, 7.4)))
    result = ff.fit(federation, ff.FPFC(lam=0.4, work=EXACT), rounds=200)
    assert result.labels.tolist() == [0, 0, 0, 1]
    found = result.certify(federation)
    assert found.low == pytest.approx(2 * 0.2 * 4 / 3, abs=1e-3)
    assert found.high == pytest.approx(7.4 / 3.7, abs=1e-3)
    assert found.residual < 1e-3
    assert found.contains(1.0)
    assert not found.contains(0.5)
    assert not found.contains(2.1)


def test_inside_the_interval_the_grouping_is_a_local_minimum_and_outside_it_is_not():
    federation = theorem_3(m=6, n=60, noise=0.5)
    result, found = grouped(federation, 1.0)
    assert found.low <= found.high
    assert found.residual < 1e-3
    search = np.stack([gradient(federation, i, w) for i, w in enumerate(result.models)])
    assert interval(result.cluster_models, result.labels, search).low == pytest.approx(found.low, rel=0.2)
    alpha = _minimisers(federation, result.labels)
    rng = np.random.default_rng(0)
    for lam in (1.001 * found.low, 0.999 * found.high):
        at = objective(federation, alpha, SCAD(lam))
        for scale in (1e-4, 1e-3, 1e-2):
            moves = scale * rng.normal(size=(200, *alpha.shape))
            assert min(objective(federation, alpha + move, SCAD(lam)) for move in moves) >= at - 1e-12
    # A lambda that one device alone resists: it goes down its own gradient.
    slopes = np.stack([gradient(federation, i, w) for i, w in enumerate(alpha)])
    i = int(np.linalg.norm(slopes, axis=1).argmax())
    needed = np.linalg.norm(slopes[i]) * 6 / (np.bincount(result.labels)[result.labels[i]] - 1)
    assert needed <= found.low * (1 + 1e-6)
    move = np.zeros_like(alpha)
    move[i] = -1e-3 * slopes[i]
    weak, strong = SCAD(0.8 * needed), SCAD(2 * found.high)
    assert objective(federation, alpha + move, weak) < objective(federation, alpha, weak)
    # A lambda that reaches from group to group: both move towards each other.
    together = 1e-3 * (alpha.mean(axis=0) - alpha)
    assert objective(federation, alpha + together, strong) < objective(federation, alpha, strong)


def _minimisers(federation, labels):
    """Every device's group model: the least squares of its group, in which devices count alike."""
    models = []
    for group in np.unique(labels):
        A, c = 0.0, 0.0
        for i in np.flatnonzero(labels == group):
            X, y = federation.rows("train+validation").of(i)
            Z = np.column_stack([X, np.ones(len(X))])
            A, c = A + Z.T @ Z / len(y), c + Z.T @ y / len(y)
        models.append(np.linalg.solve(A, c))
    return np.array(models)[labels]


def test_under_the_conditions_of_theorem_3_fpfc_stays_at_the_grouping():
    """The interval has the lambda that was used; from the group models FPFC stays there for 50 rounds."""
    federation, lam = theorem_3(), 1.0
    result, found = grouped(federation, lam)
    assert found.contains(lam)
    assert found.high == pytest.approx(6 / 3.7, rel=0.02)
    seen, omega = labels_from(federation, result, lam)
    assert (seen == result.labels).all()
    np.testing.assert_allclose(omega, _minimisers(federation, result.labels), atol=1e-3)
    for inside in (1.05 * found.low, 0.95 * found.high):
        assert stays(federation, result, inside)


def test_outside_the_interval_fpfc_leaves_the_grouping():
    federation = theorem_3()
    result, found = grouped(federation, 1.0)
    seen, _ = labels_from(federation, result, 0.4 * found.low, nu=1e-3)
    assert len(np.unique(seen[-1])) > 2  # Devices come apart, ...
    seen, omega = labels_from(federation, result, 2 * found.high)
    distance = np.linalg.norm(omega[0] - omega[-1])
    assert distance < 0.9 * 3.7 * found.high  # ... or groups are pulled towards each other.


@pytest.mark.slow
def test_on_s3_fpfc_stays_at_the_grouping():
    federation, lam = load("synthetic:S3"), 1.2
    result, found = grouped(federation, lam, rounds=90, nu=0.1)
    assert found.contains(lam)
    assert stays(federation, result, lam)


@pytest.mark.slow
def test_on_s3_the_lambda_that_the_fusion_path_finds_is_inside():
    """In the path's columns and with its ridge; there FPFC, from the groups' means of local models, stays as well."""
    federation = load("synthetic:S3")
    result = ff.fit(federation, ff.FPFC(lam="auto"))
    np.testing.assert_array_equal(result.labels, federation.truth)
    assert result.certify(federation).contains(result.lam)
    rescaled, work = standardised(federation), ff.Work(solver="exact", decay=RIDGES[COMMON_RIDGE])
    alone = ff.fit(rescaled, ff.Local(work=work), rounds=1).models
    start = replace(result, models=group_means(alone, result.labels, np.ones(federation.m))[result.labels])
    assert (labels_from(rescaled, start, result.lam, work=work)[0] == result.labels).all()


def test_an_empty_interval_is_said():
    """Groups as far apart as the devices of one group: no lambda does both."""
    federation = written_out(*(line(slope) for slope in (-1.0, 1.0, 3.0)))
    split = replace(ff.fit(federation, ff.FPFC(lam=0.01, work=EXACT), rounds=50), labels=np.array([0, 0, 1]))
    found = split.certify(federation)
    assert found.low > found.high
    assert not found.contains(1.0)
    assert "No lambda is sure" in found.sentence(1.0)


def test_one_group_has_no_upper_end_and_lone_devices_no_lower_one():
    one = interval(np.zeros((1, 2)), np.zeros(3, np.int64), np.eye(3)[:, :2])
    assert one.high == np.inf
    assert "on; 2 was used." in one.sentence(2.0)
    alone = interval(np.array([[0.0], [3.7], [9.0]]), np.arange(3), np.zeros((3, 1)))
    assert alone == Certificate(0.0, 1.0, 0.0)


def test_weight_decay_is_part_of_the_losses():
    federation = planted(m=4, n=50, noise=0.3)
    plain = ff.fit(federation, ff.FPFC(lam=1.0, work=EXACT), rounds=60)
    decayed = replace(plain, method={**plain.method, "work": {**plain.method["work"], "decay": 0.5}})
    assert decayed.certify(federation).high < plain.certify(federation).high


def test_it_is_kept_with_the_result(tmp_path):
    federation = planted()
    result = ff.fit(federation, ff.FPFC(lam=0.5, work=EXACT), rounds=40)
    assert result.certificate is None
    assert "certificate" not in result.summary()
    for certificate in (result.certify(federation), Certificate(0.1, np.inf)):
        replace(result, certificate=certificate).save(tmp_path)
        assert ff.Result.load(tmp_path).certificate == certificate


def test_networks_and_other_federations_are_refused():
    federation = planted("classification")
    result = ff.fit(federation, ff.FPFC(lam=0.1), rounds=2)
    with pytest.raises(FedfuseError, match="other names"):
        result.certify(planted(m=4))
    pytest.importorskip("torch")
    network = ff.fit(federation, ff.FPFC(lam=0.1, work=ff.Work(batch=10)), "mlp", rounds=1)
    with pytest.raises(FedfuseError, match="convex"):
        network.certify(federation)
