import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from fedfuse.core.partitions import (
    ALWAYS_FUSED,
    adjusted_rand,
    canonical,
    components,
    group_means,
    joined,
    linkage_heights,
    widest_gap,
)

labelings = st.lists(st.integers(0, 5), min_size=1, max_size=30)


@given(labelings, st.permutations(range(6)))
def test_canonical_forgets_names_only(labels, names):
    renamed = [names[c] for c in labels]
    assert (canonical(labels) == canonical(renamed)).all()
    assert canonical(labels)[0] == 0
    same = np.equal.outer(labels, labels)
    assert (np.equal.outer(canonical(labels), canonical(labels)) == same).all()


def test_components_are_chains_of_close_pairs():
    """1 and 3 are far apart but meet through 2: one cluster; 4 is alone."""
    x = np.array([0.0, 0.09, 0.18, 5.0])
    assert components(np.abs(np.subtract.outer(x, x)), nu=0.1).tolist() == [0, 0, 0, 1]


@given(labelings, st.randoms(use_true_random=False))
def test_components_follow_the_order_of_devices(labels, random):
    labels = np.array(labels)
    norms = np.where(np.equal.outer(labels, labels), 0.0, 1.0)
    order = list(range(len(labels)))
    random.shuffle(order)
    assert (components(norms, 0.1) == canonical(labels)).all()
    assert (components(norms[np.ix_(order, order)], 0.1) == canonical(labels[order])).all()


def test_cluster_means_are_weighted_by_rows():
    omega = np.array([[0.0, 1.0], [3.0, 4.0], [7.0, 7.0]])
    means = group_means(omega, np.array([0, 0, 1]), [1, 2, 50])
    np.testing.assert_allclose(means, [[2.0, 3.0], [7.0, 7.0]])


@pytest.mark.parametrize(
    ("truth", "labels", "expected"),
    [
        ([0] * 50, [0] * 50, 1.0),
        (range(50), range(50), 1.0),
        (np.repeat(range(4), 25), np.repeat([0, 0, 1, 2], 25), 0.708),
        ([0, 0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0, 1], 0.462),
        ([0, 0, 1, 1], [0, 0, 0, 0], 0.0),
    ],
)
def test_adjusted_rand_by_its_conventions(truth, labels, expected):
    assert adjusted_rand(list(truth), list(labels)) == pytest.approx(expected, abs=5e-4)


@given(st.integers(1, 60), st.integers(0, 80), st.integers(0, 999))
def test_joined_devices_are_the_components_of_a_graph(m, edges, seed):
    i, j = np.random.default_rng(seed).integers(0, m, (2, edges), dtype=np.int32)  # older SciPy versions take no others
    graph = scipy.sparse.csr_array((np.ones(edges), (i, j)), shape=(m, m))
    theirs = scipy.sparse.csgraph.connected_components(graph, directed=False)[1]
    np.testing.assert_array_equal(joined(m, i, j), canonical(theirs))


@pytest.mark.parametrize("order", ["up", "down", "mixed"])
def test_long_chains_are_joined(order):
    places = {"up": np.arange(5000), "down": np.arange(5000)[::-1], "mixed": np.random.default_rng(0).permutation(5000)}
    chain = places[order]
    assert not joined(5000, chain[:-1], chain[1:]).any()


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from("abc")), max_size=40))
def test_adjusted_rand_is_that_of_scikit_learn(both):
    truth, labels = ([each[k] for each in both] for k in (0, 1))
    assert adjusted_rand(truth, labels) == pytest.approx(adjusted_rand_score(truth, labels), abs=1e-12)


@given(st.integers(1, 12), st.integers(0, 10**6))
def test_linkage_heights_are_those_of_single_linkage(m, seed):
    distances = scipy.spatial.distance.pdist(np.random.default_rng(seed).normal(size=(m, 2)))
    heights = linkage_heights(scipy.spatial.distance.squareform(distances) if m > 1 else np.zeros((1, 1)))
    expected = scipy.cluster.hierarchy.linkage(distances, "single")[:, 2] if m > 1 else np.empty(0)
    np.testing.assert_allclose(heights, expected)


@given(st.lists(st.floats(1e-3, 1e3), max_size=12), st.floats(0.05, 5), st.floats(3, 50))
def test_the_gap_keeps_fused_links_and_cuts_those_beyond_reach(heights, fused, factor):
    heights, reach = np.sort(heights), factor * fused
    gap = widest_gap(heights, fused, reach)
    assert (heights[heights <= ALWAYS_FUSED * fused] <= gap.nu).all()
    assert (heights[heights > reach] > gap.nu).all()
    assert not ((heights > gap.below * (1 + 1e-12)) & (heights < gap.above * (1 - 1e-12))).any()


def test_groups_held_close_by_the_penalty_are_told_once_the_loop_is_at_rest():
    """Lengths of theta on S3 with lambda 1.2: exact zeros within, half a lambda between."""
    assert widest_gap(np.array([1e-4, 2e-4, 3e-3, 0.53]), fused=0.75, reach=3.7).nu < 0.1
    assert widest_gap(np.array([1e-4, 0.1, 0.2, 0.5, 0.6]), fused=0.75, reach=3.7).nu == pytest.approx(0.75)
