"""The evidence for groups: its closed form, what it sees and what it must not see."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from fedfuse.core.dendrogram import Tree
from fedfuse.core.partitions import adjusted_rand
from fedfuse.grouping.marginal_likelihood import Evidence


def moments_of(X, y):
    line = np.column_stack([X, np.ones(len(X)), y])
    return line.T @ line


def devices(truth, models, n=60, noise=None, rng=None):
    rng = rng or np.random.default_rng(0)
    noise = np.full(len(truth), 0.5) if noise is None else noise
    found = []
    for g, s in zip(truth, noise, strict=True):
        X = rng.normal(size=(n, models.shape[1] - 1))
        found.append(moments_of(X, X @ models[g, :-1] + models[g, -1] + s * rng.normal(size=n)))
    return np.stack(found)


def grouped(moments, uneven=None):
    evidence, weighted = Evidence.learned(moments, np.ones(len(moments)) if uneven is None else uneven)
    labels = evidence.cut(Tree.of(evidence.models(weighted)), weighted)
    return evidence, weighted, evidence.improved(labels, weighted)


@given(n=st.integers(0, 12), p=st.integers(1, 4), kappa=st.floats(0.1, 10), seed=st.integers(0, 99))
@settings(deadline=None)
def test_evidence_is_the_density_of_the_targets(n, p, kappa, seed):
    """y = X w + e with w ~ N(w0, I / kappa) and e ~ N(0, I) has mean X w0 and covariance X X' / kappa + I."""
    rng = np.random.default_rng(seed)
    X, y, w0 = rng.normal(size=(n, p)), rng.normal(size=n), rng.normal(size=p + 1)
    Z = np.column_stack([X, np.ones(n)])
    density = multivariate_normal(Z @ w0, Z @ Z.T / kappa + np.eye(n)).logpdf(y) if n else 0.0
    ours = Evidence(w0, kappa).of(moments_of(X, y)[None])[0] - n / 2 * np.log(2 * np.pi)
    np.testing.assert_allclose(ours, density, atol=1e-8)


def test_models_are_the_most_probable():
    rng = np.random.default_rng(1)
    moments = devices([0, 1], rng.normal(size=(2, 4)))
    evidence = Evidence(np.ones(4), 2.0)
    for w, M in zip(evidence.models(moments), moments, strict=True):
        np.testing.assert_allclose(M[:4, :4] @ w - M[:4, 4] + 2.0 * (w - 1), 0, atol=1e-9)


def test_partitions_have_the_prior_of_a_chinese_restaurant_process():
    """Device by device: a group of n is joined with odds n, a new one is opened with odds exp(-margin)."""
    labels, odds, sizes = np.array([0, 1, 0, 0, 2, 1]), [], np.zeros(3)
    evidence, no_rows = Evidence(np.zeros(2), margin=1.5), np.zeros((6, 3, 3))
    for g in labels:
        odds.append(sizes[g] or np.exp(-1.5))
        sizes[g] += 1
    np.testing.assert_allclose(evidence.total(labels, no_rows), np.log(odds).sum())


@pytest.mark.parametrize("groups", [1, 2, 5])
def test_groups_are_found(groups):
    rng = np.random.default_rng(groups)
    truth = np.arange(20) % groups
    _, _, labels = grouped(devices(truth, rng.normal(size=(groups, 5)), rng=rng))
    assert adjusted_rand(truth, labels) == 1


def test_devices_of_one_model_are_one_group_whatever_their_noise():
    rng = np.random.default_rng(3)
    noise = np.exp(rng.normal(size=30))
    _, _, labels = grouped(devices(np.zeros(30, int), rng.normal(size=(1, 6)), noise=noise, rng=rng))
    assert not labels.any()


def test_noise_is_shared_where_it_is_the_same():
    """With one noise for all, devices' estimates lie closer to it than their own rows could tell; else they do not."""
    rng = np.random.default_rng(9)
    levels = rng.choice([1.0, 2.0, 4.0], 300)
    for noise, least, most in ((np.ones(300), 0.0, 0.1), (levels, 0.2, 0.4)):
        moments = devices(np.zeros(300, int), np.ones((1, 3)), n=30, noise=noise, rng=rng)
        _, weighted = Evidence.learned(moments, np.ones(300))
        estimates = moments[:, -1, -1] / weighted[:, -1, -1]
        error = np.log(estimates / noise**2)
        assert least <= error.std() < most
        assert abs(np.median(error)) < 0.15


def test_few_rows_are_told_by_those_of_others():
    """Devices with fewer rows than parameters: none could be told by itself."""
    rng = np.random.default_rng(4)
    truth = np.arange(40) % 2
    _, _, labels = grouped(devices(truth, 3 * rng.normal(size=(2, 13)), n=8, rng=rng))
    assert adjusted_rand(truth, labels) > 0.9


def test_uneven_noise_counts_as_more_noise():
    rng = np.random.default_rng(5)
    moments = devices([0, 1] * 4, np.array([[1.0, 0.0, 0.0], [1.0, 0.35, 0.0]]), rng=rng)
    assert grouped(moments)[2].max() == 1
    assert grouped(moments, np.full(8, 20.0))[2].max() == 0
    np.testing.assert_array_equal(grouped(moments, np.full(8, 0.1))[2], grouped(moments)[2])


@given(st.integers(0, 200))
@settings(deadline=None, max_examples=30)
def test_improvement_is_improvement(seed):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, 12)
    evidence, weighted = Evidence.learned(devices(truth, rng.normal(size=(3, 3)), n=20, rng=rng), np.ones(12))
    start = np.unique(rng.integers(0, 5, 12), return_inverse=True)[1]
    assert evidence.total(evidence.improved(start, weighted), weighted) >= evidence.total(start, weighted) - 1e-6


def test_confidence_falls_where_groups_are_close():
    rng = np.random.default_rng(6)
    far, near = (np.array([[1.0, 0.0, 0.0], [1.0, gap, 0.0]]) for gap in (3.0, 0.25))
    truth = np.array([0, 1] * 5)
    sure = []
    for models in (far, near):
        evidence, weighted = Evidence.learned(devices(truth, models, n=30, rng=rng), np.ones(10))
        sure.append(evidence.confidence(truth, weighted))
    assert sure[0].min() > 0.999
    assert sure[1].min() < 0.99
    assert all(((s >= 0) & (s <= 1)).all() for s in sure)


def test_devices_with_the_same_rows_are_one_group():
    rng = np.random.default_rng(8)
    twins = np.repeat(devices([0, 1], rng.normal(size=(2, 4)), rng=rng), 4, axis=0)
    evidence, weighted, labels = grouped(twins)
    assert labels.tolist() == [0] * 4 + [1] * 4 or labels.tolist() == [1] * 4 + [0] * 4
    np.testing.assert_array_equal(evidence.improved(np.arange(8), weighted), labels if labels[0] == 0 else 1 - labels)


def test_targets_without_noise_are_no_trouble():
    rng = np.random.default_rng(7)
    truth = np.arange(10) % 2
    _, _, labels = grouped(devices(truth, rng.normal(size=(2, 3)), n=5000, noise=np.zeros(10), rng=rng))
    assert adjusted_rand(truth, labels) == 1
