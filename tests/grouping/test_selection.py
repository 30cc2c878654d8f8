"""Selection of groupings: what devices say of models, and how sure that is."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from fedfuse.core.dendrogram import Tree
from fedfuse.core.partitions import adjusted_rand, group_means
from fedfuse.grouping import selection
from fedfuse.grouping.selection import (
    ONE_GROUP_PRIOR_ODDS,
    Curvature,
    certain_splits,
    chance_of_few_misplaced,
    chance_of_no_difference,
    split_in_two,
    spread_labels,
)


def devices_with(rng, labels, spread, curvature=30.0, d=6, columns=slice(None)):
    """Devices whose parameters (or some columns of them) are spread around their group's, with Hessians of one size."""
    own = rng.normal(size=(len(labels), d)) / np.sqrt(curvature)
    own[:, columns] += spread * rng.normal(size=own[:, columns].shape)
    scores = curvature * (own - group_means(own, labels, np.ones(len(labels)))[labels])
    return Curvature(scores, np.full((len(labels), d), curvature), np.full(len(labels), d * curvature**2), labels)


def chance(found, noisy=False):
    """Of no difference; the groups' parameters are about 1, and far apart."""
    groups, d = int(found.labels.max()) + 1, found.scores.shape[1]
    models = np.sign(np.random.default_rng(7).normal(size=(groups, d)))
    return chance_of_no_difference(found, models, np.full(groups, noisy))


def test_odds_of_a_difference_are_those_of_two_normal_densities():
    """Of one device in a group so large that its model is known."""
    rng, m, d, curvature = np.random.default_rng(0), 10_000, 3, 7.0
    found = devices_with(rng, np.zeros(m, np.int64), 0.1, curvature, d)
    for variance in (0.01, 1.0):
        wide = norm.logpdf(found.scores, scale=np.sqrt(curvature + variance * curvature**2))
        odds = wide - norm.logpdf(found.scores, scale=np.sqrt(curvature))
        short = np.abs(found.scores) <= curvature
        np.testing.assert_allclose(found.sparse(variance)[short], odds[short], atol=1e-3)
        assert (found.sparse(variance)[~short] < odds[~short]).all()
        np.testing.assert_allclose(found.dense(variance), odds.sum(axis=1), atol=3e-3)


@pytest.mark.parametrize(("spread", "columns"), [(0.0, slice(None)), (0.4, slice(None)), (0.6, slice(2, 3))])
def test_differences_inside_groups_are_seen(spread, columns):
    rng, labels = np.random.default_rng(1), np.repeat([0, 1], 10)
    chances = [chance(devices_with(rng, labels, spread, 200.0, columns=columns)) for _ in range(20)]
    assert np.mean(np.greater(chances, 0.9) == (spread == 0)) > 0.9


def test_what_rows_cannot_tell_is_as_probable_as_it_was():
    rng, labels = np.random.default_rng(2), np.zeros(8, np.int64)
    before = 1 / (1 + ONE_GROUP_PRIOR_ODDS)
    assert chance(devices_with(rng, labels, 0.0, curvature=1e-6)) == pytest.approx(before, abs=0.01)
    sharp = devices_with(rng, labels, 0.0, curvature=1e4)
    assert chance(sharp) > 0.95
    assert chance(sharp, noisy=True) == pytest.approx(before, abs=0.01)


def test_the_fewer_rows_the_less_sure():
    """Of devices that do not differ: what is too weak to be seen may be there."""
    chances = []
    for curvature in (1.0, 10.0, 100.0, 1000.0):
        rng = np.random.default_rng(3)
        draws = [devices_with(rng, np.zeros(20, np.int64), 0.0, curvature) for _ in range(10)]
        chances.append(np.mean([chance(found) for found in draws]))
    assert (np.diff(chances) > 0).all()
    assert chances[0] < 0.87
    assert chances[-1] > 0.95


def test_one_device_that_differs_is_seen():
    labels = np.zeros(50, np.int64)
    found = devices_with(np.random.default_rng(3), labels, 0.0)
    found.scores[7] *= 6
    assert chance(found) < 0.5


def test_devices_alone_in_their_group_have_nothing_to_differ_from():
    assert chance(devices_with(np.random.default_rng(0), np.arange(5), 1.0)) == 1


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
