import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfuse.core.dendrogram import PairedLosses, Tree
from fedfuse.core.partitions import adjusted_rand, canonical

NEVER, ALWAYS = -1e300, 1e300  # standard errors: prune nothing, prune everything


def leaves_below(tree):
    """The leaves below every node, by recursion."""

    def below(node):
        if node < tree.n:
            return {node}
        a, b = tree.children[node - tree.n]
        return below(a) | below(b)

    return [below(node) for node in range(2 * tree.n - 1)]


def partitions(tree, node=None):
    """All partitions of the leaves into nodes of the tree."""
    node = 2 * tree.n - 2 if node is None else node
    yield [node]
    if node >= tree.n:
        a, b = (int(c) for c in tree.children[node - tree.n])
        for left in partitions(tree, a):
            for right in partitions(tree, b):
                yield left + right


def judged(tree, means, variance=1.0, n=10):
    """One judgement per leaf; ``means[leaf]`` are the losses of its own model and of those above it."""
    found = []
    for leaf, chain in enumerate(tree.ancestors()):
        k = 1 + len(chain)
        answer = np.concatenate([means[leaf][:k], (variance * np.eye(k))[np.triu_indices(k)]])
        found.append(PairedLosses(leaf, n, answer))
    return found


trees = st.tuples(st.integers(1, 7), st.integers(0, 10**6)).map(
    lambda ns: Tree.of(np.random.default_rng(ns[1]).normal(size=(ns[0], 2)))
)


@given(trees, st.integers(0, 10**6))
def test_means_are_those_of_the_leaves_below(tree, seed):
    rng = np.random.default_rng(seed)
    points, weights = rng.normal(size=(tree.n, 3)), rng.integers(1, 9, tree.n).astype(float)
    means = tree.means(points, weights)
    assert means.shape == (tree.n - 1, 3)
    for node, below in enumerate(leaves_below(tree)[tree.n :]):
        inside = sorted(below)
        np.testing.assert_allclose(means[node], np.average(points[inside], axis=0, weights=weights[inside]))


@given(trees)
def test_ancestors_are_the_nodes_above_from_the_lowest_up(tree):
    below = leaves_below(tree)
    for leaf, chain in enumerate(tree.ancestors()):
        above = [k for k in range(tree.n, 2 * tree.n - 1) if leaf in below[k]]
        assert list(chain) == sorted(above)  # merges are numbered as they happen


@settings(max_examples=60)
@given(trees, st.integers(0, 10**6))
def test_cut_without_pruning_is_the_best_of_all_partitions(tree, seed):
    means = np.random.default_rng(seed).random((tree.n, 2 * tree.n))
    labels = tree.cut(judged(tree, means), z=NEVER)
    below, chains = leaves_below(tree), tree.ancestors()

    def loss(nodes):
        place = {(leaf, node): 1 + k for leaf, chain in enumerate(chains) for k, node in enumerate(chain)}
        return sum(means[leaf][place.get((leaf, node), 0)] for node in nodes for leaf in below[node])

    best = min(partitions(tree), key=loss)
    truth = np.empty(tree.n, int)
    for group, node in enumerate(best):
        truth[sorted(below[node])] = group
    np.testing.assert_array_equal(canonical(labels), canonical(truth))


@given(trees, st.integers(0, 10**6))
def test_cut_is_consistent_with_the_tree_and_coarser_with_more_doubt(tree, seed):
    means = np.random.default_rng(seed).random((tree.n, 2 * tree.n))
    groups = [len(set(tree.cut(judged(tree, means, variance=0.1), z=z))) for z in (NEVER, 0.0, 1.0, 3.0, ALWAYS)]
    assert groups == sorted(groups, reverse=True)
    labels = tree.cut(judged(tree, means))
    below = [frozenset(b) for b in leaves_below(tree)]
    for c in set(labels):
        assert frozenset(np.flatnonzero(labels == c)) in below


def test_two_groups_whose_common_model_is_far_worse_stay_apart():
    points = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.3]])
    tree = Tree.of(points)
    means = np.ones((6, 12))
    for leaf, chain in enumerate(tree.ancestors()):
        means[leaf, len(chain)] = 9.0  # the root
    labels = tree.cut(judged(tree, means, variance=0.01))
    assert adjusted_rand([0, 0, 0, 1, 1, 1], labels) == 1


def test_what_does_not_matter_is_joined():
    tree = Tree.of(np.random.default_rng(0).normal(size=(5, 2)))
    assert len(set(tree.cut(judged(tree, np.ones((5, 10)))))) == 1


def test_a_certain_split_is_never_taken_back():
    tree = Tree.of(np.array([[0.0], [0.1], [5.0], [5.1]]))
    means = np.ones((4, 8))
    for leaf, chain in enumerate(tree.ancestors()):
        means[leaf, len(chain)] = 1.0001  # hardly worse
    root = np.zeros(7, bool)
    root[-1] = True
    assert len(set(tree.cut(judged(tree, means)))) == 1
    assert canonical(tree.cut(judged(tree, means), root)).tolist() == [0, 0, 1, 1]


def test_devices_that_say_nothing_do_not_count():
    tree = Tree.of(np.array([[0.0], [0.1], [5.0], [5.1]]))
    assert tree.cut([]).tolist() == [0, 0, 0, 0]


def test_one_leaf_is_a_tree():
    tree = Tree.of(np.zeros((1, 3)))
    assert tree.n == 1
    assert tree.cut(judged(tree, np.ones((1, 1)))).tolist() == [0]


def test_judgement_reads_means_then_the_upper_triangle():
    C = np.array([[4.0, 1.0, 2.0], [1.0, 5.0, 3.0], [2.0, 3.0, 6.0]])
    judgement = PairedLosses(0, 10, np.array([0.1, 0.2, 0.4, 4, 1, 2, 5, 3, 6]))
    np.testing.assert_array_equal(judgement.covariance, C)
    rise, variance = judgement.difference(2, 0)
    assert rise == pytest.approx(10 * 0.3)
    assert variance == pytest.approx(100 * (6 + 4 - 2 * 2))
    judgement.nodes = [0, 7, 9]
    assert judgement.rise(9, 0) == judgement.difference(2, 0)
