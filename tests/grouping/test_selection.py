"""Selection of groupings: what devices say of models, and how sure that is."""

from __future__ import annotations

import numpy as np
import pytest

from fedfuse.core.dendrogram import Tree
from fedfuse.core.partitions import adjusted_rand, group_means
from fedfuse.grouping import selection
from fedfuse.grouping.selection import certain_splits, heterogeneity_bound, split_in_two, spread_labels


@pytest.mark.parametrize("spread", [0.0, 0.5])
def test_the_bound_on_heterogeneity_covers_what_devices_differ_by(spread):
    """Squared differences of planted models, relative to their length; a bound at 95 % fails once in twenty times."""
    rng, m, d, covered, bounds = np.random.default_rng(0), 40, 20, 0, []
    for _ in range(60):
        labels = rng.integers(0, 2, m)
        models = rng.normal(size=(2, d))[labels] + spread * rng.normal(size=(m, d))
        halves = models + 2.0 * rng.normal(size=(2, m, d))
        inside = models - group_means(models, labels, np.ones(m))[labels]
        truth = np.square(inside).sum() / np.square(models).sum()
        bounds.append(heterogeneity_bound(halves, labels, np.ones(m, np.int64)))
        covered += bounds[-1] >= truth
    assert covered >= 50
    assert np.median(bounds) < 0.25 + 2 * spread**2


def test_devices_alone_in_their_group_have_nothing_to_differ_from():
    halves = np.random.default_rng(0).normal(size=(2, 5, 3))
    assert heterogeneity_bound(halves, np.arange(5), np.ones(5, np.int64)) == 0


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
