"""Selection of groupings: what devices say of models, and how sure that is."""

from __future__ import annotations

import numpy as np
import pytest

from fedfuse.core.partitions import group_means
from fedfuse.grouping.selection import heterogeneity_bound


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
