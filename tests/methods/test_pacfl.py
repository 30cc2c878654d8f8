"""PACFL: angles against SciPy, merges against a loop, and what it must be equal to."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import subspace_angles

import fedfuse as ff
from fedfuse.core.partitions import adjusted_rand, canonical
from fedfuse.data import load
from fedfuse.errors import FedfuseError
from fedfuse.methods.clustered.pacfl import N_GROUPS_CANDIDATES, agglomerated, angle, proximities, thresholds
from fedfuse.training.fit import fit
from support.planted import begun, descended, planted

WORK = ff.Work(steps=3, lr=0.05)


def basis(rng, features, columns):
    return np.linalg.qr(rng.normal(size=(features, columns)))[0]


@pytest.mark.parametrize(("p", "q"), [(1, 1), (2, 3), (4, 4)])
def test_principal_angles_are_scipys(p, q):
    rng = np.random.default_rng(0)
    U, V = basis(rng, 12, p), basis(rng, 12, q)
    assert angle(U, V, "principal") == pytest.approx(np.degrees(subspace_angles(U, V).min()))
    # bases of several classes side by side are not orthogonal, and span a space all the same
    wide = np.hstack([U, U @ rng.normal(size=(p, 2))])
    assert angle(wide, V, "principal") == pytest.approx(np.degrees(subspace_angles(U, V).min()))


def test_the_angle_of_columns():
    """Of single columns it is the principal angle, of more the smallest between any two."""
    rng = np.random.default_rng(1)
    u, v = np.abs(basis(rng, 12, 1)), np.abs(basis(rng, 12, 1))
    assert angle(u, v, "column") == pytest.approx(np.degrees(subspace_angles(u, v)[0]))
    U, V = basis(rng, 12, 3), basis(rng, 12, 2)
    each = [np.degrees(np.arccos(a @ b)) for a in U.T for b in V.T]
    assert angle(U, V, "column") == pytest.approx(min(each))
    assert angle(U, np.zeros((12, 0)), "column") == 180


def slowly(A, threshold, how):
    """The original's loop: find the nearest two, stop if they are too far, merge rows and columns."""
    A, groups = A.copy(), [[i] for i in range(len(A))]
    mix = {"average": lambda a, b: (a + b) / 2, "complete": np.maximum, "single": np.minimum}[how]
    while len(groups) > 1:
        far = A + np.diag(np.full(len(A), np.inf))
        i, j = sorted(np.unravel_index(far.argmin(), A.shape))
        if far[i, j] > threshold:
            break
        row = mix(A[i], A[j])
        A[i], A[:, i] = row, row
        A[i, i] = 0
        A = np.delete(np.delete(A, j, 0), j, 1)
        groups[i] += groups.pop(j)
    labels = np.empty(sum(map(len, groups)), np.int64)
    for g, members in enumerate(groups):
        labels[members] = g
    return canonical(labels)


@pytest.mark.parametrize("how", ["average", "complete", "single"])
def test_merges_are_those_of_the_loop(how):
    rng = np.random.default_rng(2)
    for _ in range(5):
        A = rng.uniform(5, 60, size=(14, 14))
        A = (A + A.T) / 2
        np.fill_diagonal(A, 0)
        for threshold in (0, 12, 20, 28, 35, 60):
            assert agglomerated(A, threshold, how).tolist() == slowly(A, threshold, how).tolist()


def test_merges_do_not_depend_on_the_order_of_devices():
    rng = np.random.default_rng(3)
    bases = [basis(rng, 10, 2) for _ in range(12)]
    A, order = proximities(bases), rng.permutation(12)
    B = proximities([bases[i] for i in order])
    np.testing.assert_allclose(B, A[np.ix_(order, order)])
    for threshold in (20, 35, 50):
        assert agglomerated(B, threshold).tolist() == canonical(agglomerated(A, threshold)[order]).tolist()


def test_candidates_are_numbers_of_clusters():
    """Each leaves as many as it is meant to, from one to all."""
    rng = np.random.default_rng(4)
    A = proximities([basis(rng, 20, 2) for _ in range(30)])
    counts = [int(agglomerated(A, t).max()) + 1 for t in thresholds(A)]
    assert counts == [30, *sorted((n for n in N_GROUPS_CANDIDATES if n < 30), reverse=True)]
    assert len(thresholds(np.zeros((1, 1)))) == 1
    assert len(thresholds(np.zeros((5, 5)))) == 2  # all alike: one cluster, whatever it is


def test_the_same_rows_are_at_angle_zero_and_their_order_does_not_matter():
    X = np.random.default_rng(5).uniform(size=(40, 6))
    y = (X.sum(axis=1) > 3).astype(int)
    order = np.random.default_rng(6).permutation(40)
    data = {"a": (X, y), "b": (X, y), "shuffled": (X[order], y[order])}
    federation = ff.Federation.from_arrays(data, test=0.0, validation=0.0)
    state = begun(federation, ff.PACFL(threshold=1e-4, p=3)).state
    np.testing.assert_allclose(state.angles, 0, atol=1e-5)
    bases = np.split(state.bases, 3, axis=1)
    for other in bases[1:]:
        np.testing.assert_allclose(np.abs(bases[0]), np.abs(other), atol=1e-10)
        np.testing.assert_allclose(bases[0], other, atol=1e-10)  # and their signs are told by their sums
    assert state.labels.tolist() == [0, 0, 0]


def test_what_a_device_sends():
    """The first p left singular vectors of the features of each class; of all rows, for values."""
    federation = planted("classification", m=2, n=60, p=5)
    state = begun(federation, ff.PACFL(threshold=10.0, p=2)).state
    columns = np.split(state.bases, np.cumsum(state.columns)[:-1], axis=1)
    for i in range(2):
        X, y = federation.rows("train+validation").of(i)
        each = [np.linalg.svd(X[y == c].T, full_matrices=False)[0][:, :2] for c in range(3) if (y == c).any()]
        expected = np.hstack(each)
        np.testing.assert_allclose(np.abs(columns[i]), np.abs(expected), atol=1e-10)
        assert (columns[i].sum(axis=0) >= 0).all()
    run = begun(planted(m=3, p=5), ff.PACFL(threshold=10.0, p=2))
    assert run.ledger.floats == 3 * 5 * 2


@pytest.mark.parametrize("goal", ["regression", "classification"])
def test_in_one_cluster_it_is_fedavg(goal):
    options = {"rounds": 10, "participation": 0.5, "tol": 0, "seed": 4, "dtype": "float64"}
    federation = planted(goal)
    one = fit(federation, ff.PACFL(threshold=181.0, evaluate="cluster", work=WORK), **options)
    np.testing.assert_array_equal(one.models, fit(federation, ff.FedAvg(work=WORK), **options).models)
    assert one.n_clusters == 1


def test_a_device_is_evaluated_with_its_last_own_model():
    """The cluster's model and T steps for who was active last, older ones for others, the start for who never was."""
    federation, turns = planted(m=4), [[0, 1], [1]]
    method = ff.PACFL(threshold=181.0, work=WORK)
    options = {"rounds": 2, "tol": 0, "participation": lambda k, m: np.array(turns[k]), "dtype": "float64"}
    result = fit(federation, method, **options)
    n, zero = federation.rows("train+validation").counts, np.zeros(4)
    first = [descended(federation, i, zero, WORK) for i in (0, 1)]
    mean = (n[0] * first[0] + n[1] * first[1]) / (n[0] + n[1])
    expected = [first[0], descended(federation, 1, mean, WORK), zero, zero]
    np.testing.assert_allclose(result.models, expected, atol=1e-12)
    np.testing.assert_allclose(result.kept["models"][0], expected[1], atol=1e-12)


# PROTOCOL.md 5.7, of another random split: seed, floats, then numbers of clusters by threshold, and some ARIs
SANITY = [
    (0, 174540, {3: 37, 4: 18, 4.5: 10, 5: 5, 6: 3, 8: 1}, {3: 0.336, 4: 0.499, 4.5: 0.542, 5: 0.575}),
    (1, 179100, {3: 44, 4: 13, 4.5: 10, 5: 6, 6: 3, 8: 1}, {3: 0.410, 4: 0.882, 4.5: 0.907, 5: 0.632}),
    (2, 86460, {3: 25, 4: 13, 4.5: 8, 5: 5, 6: 3, 8: 1}, {3: 0.167, 4: 0.215, 4.5: 0.229, 5: 0.243}),
]


@pytest.mark.parametrize(
    ("seed", "floats", "numbers", "aris"),
    [SANITY[0], *(pytest.param(*row, marks=pytest.mark.slow) for row in SANITY[1:])],
)
def test_one_shot_clusters_of_s1(seed, floats, numbers, aris):
    """Floats are told by how many rows of each class a device has: 60 features, at most 5 vectors each."""
    federation = load("synthetic:S1", seed=seed)
    run = begun(federation, ff.PACFL(threshold=4.0, p=5))
    rows = federation.rows("train+validation")
    sent = sum(60 * np.minimum(np.bincount(rows.of(i)[1]), 5).sum() for i in range(100))
    assert run.ledger.floats == sent
    assert sent == pytest.approx(floats, rel=0.01)
    A = run.state.angles
    for threshold, number in numbers.items():
        labels = agglomerated(A, threshold)
        assert abs(labels.max() + 1 - number) <= max(2, 0.25 * number), threshold
        if threshold in aris:
            assert adjusted_rand(federation.truth, labels) == pytest.approx(aris[threshold], abs=0.25)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"threshold": -1.0}, "threshold must be a number of at least 0 or auto"),
        ({"p": 0}, "p must be a whole number of at least 1"),
        ({"angle": "acute"}, "angle must be 'column' or 'principal'"),
        ({"linkage": "ward"}, "linkage must be 'average', 'complete' or 'single'"),
        ({"evaluate": "best"}, "evaluate must be 'local' or 'cluster'"),
    ],
)
def test_settings_out_of_range(settings, words):
    with pytest.raises(FedfuseError, match=words):
        ff.PACFL(**settings)
