"""Whom to believe: no honest device is ever suspected, and liars spoil nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedfuse as ff
from fedfuse.core.robust_mean import central, pooled_moments, robust_mean
from fedfuse.engines.attacks import FORGE, draw_liars
from fedfuse.errors import FedfuseError
from fedfuse.protocol.reply_checks import (
    absurd_scores,
    apart,
    fault,
    monotone,
    possible_judgement,
    possible_moments,
    possible_score,
    possible_statistics,
    supported,
)
from fedfuse.protocol.tasks import Gradient, Order, Reply
from support.planted import planted

seeds = st.integers(0, 2**32 - 1)


def test_examples_by_hand():
    assert absurd_scores(np.array([0.4, np.nan, 0.5, 0.6, 1e30]), greater_is_better=False) == [4]
    assert absurd_scores(np.array([0.01, 0.01, 3.0, 3.0]), greater_is_better=False) == []
    assert absurd_scores(np.array([0.4, 1.0, 1.1]), greater_is_better=True) == [2]
    good, other, bad = [5.0, 7.0, 1.0, 0.9, 1.0], [5.1, 7.0, 1.0, 0.9, 1.0], [5.0, 7.0, 1.0, 9.0, 1.0]
    possible = [possible_statistics(np.array([*good, *piece, 1.0]), (9, 4)) for piece in (other, bad, good)]
    assert possible == [True, False, False]
    assert apart(np.array([3, 3, 7, 7]), np.array([False, True, False, False])).tolist() == [0, 2, 1, 1]
    asked = Order(1, 7, Gradient(np.zeros(2)))
    assert fault(Reply(1, 6, np.ones(2)), asked, m=3, d=2, dtype="float32") == "not asked for, or too late"


@given(seeds)
def test_honest_moments_are_possible(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(rng.normal(scale=100), rng.exponential(), size=(rng.integers(1, 20), 4))
    answer = np.concatenate([X.mean(axis=0), np.square(X).mean(axis=0)]).astype(np.float32)
    assert possible_moments(answer)
    answer[4] = 0.9 * answer[0] ** 2 - 1
    assert not possible_moments(answer)


@given(seeds)
def test_shares_are_possible_scores_and_what_liars_make_of_them_is_not(seed):
    rng = np.random.default_rng(seed)
    right = rng.random(rng.integers(1, 30)) < 0.5
    assert possible_score(float(np.float32(right.mean())), "classification")
    assert not possible_score(-0.1 - right.mean(), "classification")
    assert not possible_score(1.1 + right.mean(), "classification")
    assert possible_score(1e6, "regression")
    assert not possible_score(float("nan"), "regression")


@given(seeds)
def test_honest_judgements_are_possible(seed):
    rng = np.random.default_rng(seed)
    losses = np.square(rng.normal(size=(5, rng.integers(2, 30))))
    covariance = np.cov(losses, ddof=0) / losses.shape[1]
    answer = np.concatenate([losses.mean(axis=1), covariance[np.triu_indices(5)]])
    assert possible_judgement(answer)
    assert not possible_judgement(-answer)


@given(seeds)
def test_gradients_of_a_convex_function_are_in_line(seed):
    """Logistic loss in float32, at any two points; and a gradient with the other sign is found out."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(20, 3)), rng.integers(0, 2, 20)

    def value(w):
        z = X @ w
        return float(np.mean(np.logaddexp(0, z) - y * z)), (X.T @ (1 / (1 + np.exp(-z)) - y) / 20).astype(np.float32)

    a, b = (rng.normal(size=(2, 3)) * rng.exponential(2)).astype(np.float32)
    (f, g), (f2, g2) = value(a), value(b)
    assert monotone(a, g, b, g2)
    assert supported(a, g, f, b, g2, f2)
    assert supported(a, g, f, a, g, f)
    if np.linalg.norm(b - a) > 0.5 and abs(g @ (b - a)) > 0.1:
        assert not supported(a, -100 * g, f, b, -100 * g2, f2)


def test_suspects_stand_alone_after_the_others():
    suspects = np.array([False, True, False, True])
    assert apart(np.array([5, 5, 2, 2]), suspects).tolist() == [0, 2, 1, 3]
    assert apart(np.array([5, 5, 2, 2]), ~np.zeros(4, bool)).tolist() == [0, 1, 2, 3]
    assert apart(np.array([1, 0, 1, 0]), np.zeros(4, bool)).tolist() == [0, 1, 0, 1]


def test_moments_far_out_do_not_move_the_scale():
    rng = np.random.default_rng(0)
    X = rng.normal(3, 1, size=(9, 50, 2))
    answers = np.concatenate([X.mean(axis=1), np.square(X).mean(axis=1)], axis=1)
    plain = np.split(np.average(answers, axis=0), 2)
    np.testing.assert_allclose(pooled_moments(answers, np.ones(9, np.int64)), plain)
    answers[0] = 1e9, 1e9, 1e18, 1e18
    first, second = pooled_moments(answers, np.ones(9, np.int64))
    assert (np.abs(first) < 10).all()
    assert (second < 300).all()


@pytest.mark.parametrize("how", ["median", "trimmed", "krum"])
def test_a_few_liars_do_not_move_a_robust_mean(how):
    rng = np.random.default_rng(1)
    values = rng.normal(2, 0.1, size=(11, 5))
    values[:2] = rng.normal(0, 100, size=(2, 5))
    assert np.abs(robust_mean(values, np.ones(11), how) - 2).max() < 0.2
    assert np.abs(robust_mean(values, np.ones(11), "none") - 2).max() > 1
    assert not set(central(values)) & {0, 1}
    for n in (1, 2, 3, 4):
        assert robust_mean(values[2 : 2 + n], np.ones(n), how).shape == (5,)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 500),
    goal=st.sampled_from(["regression", "classification"]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_no_honest_device_is_suspected(seed, goal, dtype):
    rng = np.random.default_rng(seed)
    federation = planted(
        goal, m=8, n=int(rng.integers(8, 60)), groups=int(rng.integers(1, 5)), noise=float(rng.exponential()), seed=seed
    )
    for method in (ff.FusionTree(), ff.FPFC(lam=0.6, refit=True), ff.FPFC(lam=0.6, refit=False)):
        result = ff.fit(federation, method, rounds=20, dtype=dtype)
        assert result.suspects.tolist() == []
        assert result.refused == {}


@pytest.mark.parametrize("lies", ["all", "models"])
@pytest.mark.parametrize("share", [0.25, 0.5])
@pytest.mark.parametrize("attack", [a for a in FORGE if a != "label-flip"])
def test_liars_end_alone_and_spoil_nothing(attack, share, lies):
    """What honest devices get is what they would get if the liars were not there."""
    federation = planted("classification", m=12, n=80, seed=2)
    result = ff.fit(federation, ff.FusionTree(), attack=attack, liars=share, lies=lies, seed=5)
    honest = np.setdiff1d(np.arange(12), draw_liars(12, share, 5))
    alone = ff.fit(federation.only(honest), ff.FusionTree(), seed=5)
    assert result.ari == 1
    assert result.score() >= alone.score() - 0.02
    if attack in ("same-value", "sign-flip", "gaussian"):
        summary = result.summary()
        assert summary["precision"] == summary["recall"] == 1
        assert all((result.labels == result.labels[i]).sum() == 1 for i in result.attack["who"])


def test_flipped_labels_make_groups_of_their_own():
    federation = planted("classification", m=12, n=80, seed=2)
    result = ff.fit(federation, ff.FusionTree(), attack="label-flip", liars=0.5, seed=5)
    who = result.attack["who"]
    assert not set(result.labels[who]) & set(np.delete(result.labels, who))


@pytest.mark.parametrize("attack", ["same-value", "sign-flip", "gaussian"])
def test_the_papers_loop_is_hardly_touched(attack):
    """Beyond a lambda there is no pull: saturation is the defence, also against values that grow without end."""
    federation = planted("classification", m=12, n=80, seed=2)
    method = ff.FPFC(lam=0.5, refit=False)
    plain = ff.fit(federation, method, rounds=60, tol=0)
    result = ff.fit(federation, method, rounds=60, tol=0, attack=attack, liars=0.25, seed=5)
    assert result.score() > plain.score() - 0.05
    assert result.summary()["precision"] == result.summary()["recall"] == 1


@pytest.mark.parametrize("how", ["screen", "median", "trimmed", "krum", "none"])
def test_every_way_to_pool_fits_honest_clusters(how):
    federation = planted("classification", m=12, n=80, seed=2)
    usual = ff.fit(federation, ff.FusionTree())
    result = ff.fit(federation, ff.FusionTree(robust=how))
    assert result.ari == 1
    assert result.score() > usual.score() - 0.05


def test_everybody_believed_is_ruin():
    """The reason for the rule: without it one attack is enough."""
    federation = planted("classification", m=12, n=80, seed=2)
    believed, screened = (
        ff.fit(
            federation,
            ff.FPFC(lam=0.5, robust=r, refit=True),
            rounds=30,
            attack="gaussian",
            lies="models",
            liars=0.25,
            seed=5,
        ).score()
        for r in ("none", "screen")
    )
    assert screened >= believed


def test_an_unknown_way_to_pool():
    with pytest.raises(FedfuseError, match="robust must be 'none', 'screen', 'median', 'trimmed' or 'krum'"):
        ff.FusionTree(robust="mean")
