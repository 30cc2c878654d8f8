"""Means and covariances that travel as one vector."""

from __future__ import annotations

import numpy as np

from fedfuse.utils.typing import Floats


def unpack_moments(sent: Floats) -> tuple[Floats, Floats]:
    """Return means (k x n) and covariances (k x n x n) from rows of n means and the n (n + 1) / 2 upper entries."""
    n = int((np.sqrt(9 + 8 * sent.shape[1]) - 3) / 2 + 0.5)
    covariance, upper = np.zeros((len(sent), n, n)), np.triu_indices(n)
    covariance[:, upper[0], upper[1]] = covariance[:, upper[1], upper[0]] = sent[:, n:]
    return sent[:, :n], covariance
