"""The synthetic scenarios against the fingerprints of the protocol (section 1.1; acceptance check 1)."""

from __future__ import annotations

import numpy as np
import pytest

from fedfuse.data import synthetic, synthetic_truth
from fedfuse.data.federation import shuffled_rows
from fedfuse.errors import FedfuseError

# seed: sum, max, argmax and median of the row numbers, first five, mu, labels 0 to 9,
# accuracy of the noise-free classifier, of the majority class, mean number of labels per device
FINGERPRINTS = {
    0: (
        (205795, 25810, 24, 577.5),
        [9545, 855, 2180, 24380, 11685],
        [1.8832, -1.3478, -1.2705, 0.9694],
        [101941, 2773, 41311, 10356, 21631, 3524, 9421, 12154, 2077, 607],
        (0.9198, 0.6686, 7.12),
    ),
    1: (
        (159350, 21850, 68, 557.5),
        [7280, 330, 340, 280, 1790],
        [-0.4471, 1.2245, 0.4035, 0.5936],
        [792, 49816, 29061, 4266, 103, 8193, 1239, 20405, 44374, 1101],
        (0.9084, 0.5784, 7.09),
    ),
    2: (
        (161385, 26985, 11, 487.5),
        [365, 490, 250, 7505, 255],
        [1.1615, 0.3861, -1.1331, 0.4331],
        [67, 45034, 13183, 93, 48055, 343, 17820, 19294, 7351, 10145],
        (0.9650, 0.8251, 3.65),
    ),
}


@pytest.fixture(scope="module", params=FINGERPRINTS)
def drawn(request):
    return request.param, synthetic("S1", seed=request.param), synthetic_truth("S1", seed=request.param)


def per_device(fed, statistic):
    rows = fed.rows("all")
    return np.mean([statistic(i, *rows.of(i)) for i in range(fed.m)])


def as_drawn(fed, seed, device):
    """The device's rows in the order they were drawn in."""
    counts = fed.rows("all").counts
    order = np.argsort(shuffled_rows(counts, seed)[slice(*fed.cuts[device, [0, 3]])])
    X, y = fed.rows("all").of(device)
    return X[order], y[order]


def test_sizes_means_and_labels(drawn):
    seed, fed, truth = drawn
    sizes, first, mu, labels, _ = FINGERPRINTS[seed]
    n = fed.rows("all").counts
    assert (n.sum(), n.max(), n.argmax(), np.median(n)) == sizes
    assert n[:5].tolist() == first
    assert np.array_equal(n, truth.counts)
    assert truth.mu.round(4).tolist() == mu
    assert np.bincount(fed.y, minlength=10).tolist() == labels


def test_accuracy_bounds(drawn):
    seed, fed, truth = drawn
    bound, majority, kinds = FINGERPRINTS[seed][-1]
    assert round(per_device(fed, lambda i, X, y: np.mean(truth.scores(i, X).argmax(1) == y)), 4) == bound
    assert round(per_device(fed, lambda i, X, y: np.bincount(y).max() / len(y)), 4) == majority
    assert round(per_device(fed, lambda i, X, y: len(set(y.tolist()))), 2) == kinds


def test_mu_does_not_touch_the_labels(drawn):
    _, fed, truth = drawn
    X, _ = fed.rows("test").of(0)
    centred = X @ (truth.W[0] - truth.mu[0]).T + (truth.b[0] - truth.mu[0])
    assert np.array_equal(truth.scores(0, X).argmax(1), centred.argmax(1))


def test_first_values():
    X, _ = as_drawn(synthetic("S1", seed=0), 0, 0)
    assert X[0, :3].round(4).tolist() == [0.4851, 0.6484, 0.7354]
    assert synthetic_truth("S1", seed=0).W[0, 0, :3].astype(float).round(4).tolist() == [0.71, 3.8268, 1.4695]
    X, y = as_drawn(synthetic("S1", seed=1), 1, 0)
    assert X[0, :3].round(4).tolist() == [0.2047, 0.6322, 0.6368]
    assert "".join(map(str, y[:15])) == "111411111711111"


@pytest.mark.parametrize(
    ("scenario", "groups"),
    [("3,1,2", [3, 1, 2]), ("S2", [10, 40, 10, 40]), ("S3", [50, 50]), ("S4", [50]), ("S5", [1] * 50)],
)
def test_groups_of_the_other_scenarios(scenario, groups):
    truth = synthetic_truth(scenario, seed=3)
    assert np.bincount(truth.groups).tolist() == groups
    assert np.all(np.diff(truth.groups) >= 0)


def test_normal_features_share_the_parameters():
    fed, truth = synthetic("S4", features="normal", seed=2), synthetic_truth("S4", seed=2)
    assert np.array_equal(fed.rows("all").counts, truth.counts)
    assert abs(fed.X.mean()) < 0.01
    assert abs(fed.X.std() - 1) < 0.01
    assert per_device(fed, lambda i, X, y: np.mean(truth.scores(i, X).argmax(1) == y)) > 0.9
    assert fed.classes == tuple(range(10))
    assert np.array_equal(fed.truth, truth.groups)


def test_split_is_exact_and_seeds_differ():
    a, b = synthetic("S4", seed=0), synthetic("S4", seed=1)
    n = a.rows("all").counts
    assert np.array_equal(a.rows("test").counts, n // 5)
    assert a.fingerprint != b.fingerprint


def test_the_global_generator_is_left_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    synthetic("S4")
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_a_seed_is_a_whole_number():
    with pytest.raises(FedfuseError, match=r"for synthetic data, got 1\.5"):
        synthetic_truth("S1", seed=1.5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scenario": "S9"}, "no synthetic scenario is called 'S9'; known: S1, S2, S3, S4, S5"),
        ({"features": "cauchy"}, "features must be 'uniform' or 'normal', got 'cauchy'"),
        ({"seed": 2**32}, "seed must be a whole number from 0 to 4294967295"),
        ({"seed": -1}, "seed must be"),
        ({"test": 1.5}, "test must be a share"),
    ],
)
def test_bad_input(options, words):
    with pytest.raises(FedfuseError, match=words):
        synthetic(**options)
