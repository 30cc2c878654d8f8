"""Partitions are disjoint and complete, shares are what was asked for, and groups differ as they should."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfuse.data.partition import Partition, deal, draw, draw_test
from fedfuse.errors import FedfuseError

labels_lists = st.lists(st.integers(0, 6), min_size=40, max_size=200).map(lambda v: np.array(v, dtype=np.int64))
seeds = st.integers(0, 2**32)
alphas = st.sampled_from([0.05, 1.0, 100.0, None])


def rng(seed=0):
    return np.random.default_rng(seed)


@given(alphas, labels_lists, st.integers(1, 13), seeds)
def test_every_row_has_one_device(alpha, labels, devices, seed):
    found = deal(labels, devices, alpha, rng(seed))
    assert len(found.rows()) == len(found.counts) == devices
    assert np.array_equal(np.sort(np.concatenate(found.rows())), np.arange(len(labels)))
    assert [len(rows) for rows in found.rows()] == found.counts.tolist()
    assert all((found.owner[rows] == i).all() for i, rows in enumerate(found.rows()))
    assert np.allclose(found.shares.sum(axis=1), 1)
    again = deal(labels, devices, alpha, rng(seed))
    assert np.array_equal(found.owner, again.owner)


@given(labels_lists, st.integers(2, 9), seeds)
def test_classes_are_cut_at_the_floor_of_cumulative_shares(labels, devices, seed):
    found = deal(labels, devices, 0.7, rng(seed))
    for c, shares in enumerate(found.shares):
        n = np.sum(labels == c)
        ends = np.floor(np.cumsum(shares) * n)
        ends[-1] = n  # the last sum may be a little below 1
        rows = np.bincount(found.owner[labels == c], minlength=devices)
        assert np.array_equal(np.cumsum(rows), ends)


def test_the_rows_of_a_class_are_cut_in_the_order_of_the_permutation():
    labels = np.array([0, 1] * 10)
    found = Partition.by_shares(labels, np.array([[0.3, 0.7], [1.0, 0.0]]), rng(5))
    order = rng(5).permutation(20)
    first = order[labels[order] == 0][:3]
    assert np.array_equal(np.sort(first), found.rows()[0][labels[found.rows()[0]] == 0])
    assert (found.owner[labels == 1] == 0).all()


def test_dirichlet_shares_have_the_moments_of_their_law():
    alpha, m = 0.5, 8
    shares = deal(np.arange(4000), m, alpha, rng(1)).shares
    assert np.allclose(shares.mean(axis=0), 1 / m, atol=0.01)
    assert np.allclose(shares.var(axis=0), (m - 1) / m**2 / (m * alpha + 1), rtol=0.15)


@given(labels_lists, st.integers(1, 13), seeds)
def test_even_devices_are_alike(labels, devices, seed):
    found = deal(labels, devices, None, rng(seed))
    assert np.ptp(found.counts) <= 1
    assert (found.shares == 1 / devices).all()
    for c in np.unique(labels):
        assert np.ptp(np.bincount(found.owner[labels == c], minlength=devices)) <= 1


def test_test_rows_by_a_new_draw_or_with_the_same_shares():
    labels = np.repeat(np.arange(5), 400)
    train = deal(labels, 6, 1.0, rng(0))
    new = draw_test(train, labels, 1.0, rng(1))
    same = draw_test(train, labels, 1.0, rng(1), test_partition="same_shares")
    assert not np.allclose(new.shares, train.shares)
    assert np.array_equal(same.counts, train.counts)
    assert not np.array_equal(same.owner, train.owner)
    with pytest.raises(FedfuseError, match="test_partition must be 'independent' or 'same_shares', got 'other'"):
        draw_test(train, labels, None, rng(), test_partition="other")


@given(labels_lists, st.integers(1, 4), seeds)
def test_every_device_has_enough(labels, least, seed):
    assert draw(labels, 4, 2.0, rng(seed), least).counts.min() >= least


def test_the_error_of_small_devices_says_what_to_change():
    labels = np.repeat(np.arange(2), 20)
    words = (
        r"device \d of 10 got [0-4] test rows, but needs at least 5; use fewer devices, a larger alpha \(it is 0\.5\)"
    )
    with pytest.raises(FedfuseError, match=words):
        draw(labels, 10, 0.5, rng(), 5, "test rows")
    train = Partition.by_shares(labels, np.array([[0.98, 0.02], [0.98, 0.02]]), rng())
    with pytest.raises(FedfuseError, match=r"device 1 of 2 got 2 test rows.*or test_partition='independent'"):
        draw_test(train, labels, 1.0, rng(), 5, "same_shares")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: deal(np.zeros(3, int), 2, 0.0, rng()), "alpha must be a number above 0, got 0.0"),
        (lambda: deal(np.zeros(3, int), 2, np.inf, rng()), "alpha must be"),
        (lambda: deal(np.zeros(3, int), 4, None, rng()), "3 rows cannot be divided between 4 devices; use 1 to 3"),
        (lambda: deal(np.zeros(3, int), 0, 1.0, rng()), "cannot be divided between 0 devices"),
    ],
)
def test_bad_input(wrong, words):
    with pytest.raises(FedfuseError, match=words):
        wrong()
