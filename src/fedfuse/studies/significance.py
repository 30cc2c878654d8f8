"""Paired tests over devices, and Holm's correction for many of them."""

from __future__ import annotations

import numpy as np

from fedfuse.utils.typing import Floats

ALPHA = 0.05


def wilcoxon_p(differences: Floats) -> float:
    """Return the two-sided p-value of Wilcoxon's signed ranks; 1 where nothing differs, nan without pairs.

    >>> wilcoxon_p(np.array([0.1, 0.2, 0.3, 0.4, 0.5])), wilcoxon_p(np.zeros(4))
    (0.0625, 1.0)
    """
    from scipy.stats import wilcoxon

    steps = np.round(differences, 12)  # what differs by rounding only does not differ
    if not steps.size:
        return float("nan")
    return float(wilcoxon(steps).pvalue) if steps.any() else 1.0


def holm(p: Floats) -> Floats:
    """Return p-values corrected for the number of tests, by Holm's step-down rule; nan is no test.

    >>> holm(np.array([0.01, 0.04, np.nan, 0.03])).tolist()
    [0.03, 0.06, nan, 0.06]
    """
    tests = np.flatnonzero(np.isfinite(p))
    order = tests[np.argsort(p[tests], kind="stable")]
    corrected = np.full(len(p), np.nan)
    factors = np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * factors))
    return corrected
