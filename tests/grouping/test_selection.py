"""Selection of groupings: what devices say of models, and how sure that is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from fedfuse.core.dendrogram import Tree
from fedfuse.core.partitions import adjusted_rand, group_means
from fedfuse.grouping import selection
from fedfuse.grouping.selection import (
    RELATIVE_DIFFERENCES,
    certain_splits,
    chance_of_few_misplaced,
    chance_of_no_difference,
    difference_odds,
    split_in_two,
    spread_labels,
)


def noisy_scores(rng, labels, spread, curvature=30.0, d=6):
    """Scores of devices whose parameters are spread around those of their group, with the Hessian ``curvature`` I."""
    own = spread * rng.normal(size=(len(labels), d)) + rng.normal(size=(len(labels), d)) / np.sqrt(curvature)
    scores = curvature * (own - group_means(own, labels, np.ones(len(labels)))[labels])
    return scores, np.tile([d * curvature, d * curvature**2], (len(labels), 1))


def test_odds_of_a_difference_are_those_of_two_normal_densities():
    """Of one device in a group so large that its model is known."""
    rng, m, d, curvature = np.random.default_rng(0), 10_000, 3, 7.0
    labels = np.zeros(m, np.int64)
    scores, traces = noisy_scores(rng, labels, 0.1, curvature, d)
    odds = difference_odds(scores, traces, labels, 2.0)
    for tau, found in zip(2.0 * RELATIVE_DIFFERENCES, odds, strict=True):
        wide = norm.logpdf(scores, scale=np.sqrt(curvature + tau**2 * curvature**2)).sum(axis=1)
        np.testing.assert_allclose(found, wide - norm.logpdf(scores, scale=np.sqrt(curvature)).sum(axis=1), atol=1e-3)


@pytest.mark.parametrize(("spread", "sure"), [(0.0, True), (0.4, False), (1.0, False)])
def test_differences_inside_groups_are_seen(spread, sure):
    rng, labels = np.random.default_rng(1), np.repeat([0, 1], 10)
    chances = [
        chance_of_no_difference(difference_odds(*noisy_scores(rng, labels, spread), labels, 1.0), labels)
        for _ in range(20)
    ]
    assert np.mean(np.greater(chances, 0.9) == sure) > 0.9


def test_rows_that_tell_nothing_leave_even_odds():
    labels = np.zeros(8, np.int64)
    scores, traces = noisy_scores(np.random.default_rng(2), labels, 0.0, curvature=1e-6)
    assert chance_of_no_difference(difference_odds(scores, traces, labels, 1.0), labels) == pytest.approx(0.5, abs=0.01)


def test_one_device_that_differs_is_seen():
    labels = np.zeros(50, np.int64)
    scores, traces = noisy_scores(np.random.default_rng(3), labels, 0.0)
    scores[7] *= 6
    assert chance_of_no_difference(difference_odds(scores, traces, labels, 1.0), labels) < 0.5


def test_devices_alone_in_their_group_have_nothing_to_differ_from():
    labels = np.arange(5)
    scores, traces = noisy_scores(np.random.default_rng(0), labels, 1.0)
    assert chance_of_no_difference(difference_odds(scores, traces, labels, 1.0), labels) == 1


def test_one_device_in_fifty_may_be_misplaced():
    assert chance_of_few_misplaced(np.full(10, 0.99)) == pytest.approx(np.exp(-0.1))
    assert chance_of_few_misplaced(np.full(100, 0.99)) == pytest.approx(2.5 * np.exp(-1))
    assert chance_of_few_misplaced(np.ones(3)) == 1


def test_a_split_of_pure_noise_by_one_half_is_not_certain():
    """The halves of devices that do not differ; a split by both at once mostly would be."""
    rng, m, certain = np.random.default_rng(0), 60, np.zeros(2, int)
    for _ in range(10):
        halves = rng.normal(size=(2, m, 100))
        for k, estimates in enumerate((halves[0], halves.mean(axis=0))):
            labels = split_in_two(np.zeros(m, np.int64), [0], estimates)
            tree = Tree.of(group_means(estimates, labels, np.ones(m)))
            certain[k] += certain_splits(tree, labels, halves, np.ones(m, np.int64))[-1]
    assert certain[0] <= 1
    assert certain[1] >= 6


def test_others_join_the_nearest_mean_of_a_shared_group():
    points = np.array([[0.0], [0.2], [5.0], [5.2], [2.4], [2.5], [4.0]])
    sample, labels = np.arange(5), np.array([7, 7, 3, 3, 9, 0, 0])
    assert spread_labels(labels, sample, points, np.arange(7)).tolist() == [7, 7, 3, 3, 9, 7, 3]
    assert spread_labels(np.arange(7), np.arange(5), points, np.arange(6)).tolist() == [0, 1, 2, 3, 4, 4, 6]
    assert spread_labels(labels, np.arange(7), points, np.arange(7)) is labels


@pytest.mark.parametrize("most", [5, 1000])
def test_a_group_is_split_by_a_sample_as_by_all(most, monkeypatch):
    monkeypatch.setattr(selection, "MAX_COMPARED", most)
    points = np.random.default_rng(0).normal(size=(30, 3)) + 20.0 * (np.arange(30) % 3 == 0)[:, None]
    halves = split_in_two(np.zeros(30, np.int64), [0], points)
    assert adjusted_rand(np.arange(30) % 3 == 0, halves) == 1
