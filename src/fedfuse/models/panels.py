"""How the rows of softmax regression lie in memory (`_kernels` says why); here, as it needs nothing compiled."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedfuse.utils import alignment
from fedfuse.utils.typing import Floats, Ints

PANEL = 256  # rows whose scores stay in the cache until the gradient is done; more gain nothing
STRIP = 32  # rows that are computed at once; a device's last strip is filled up


class Panels(NamedTuple):
    """Rows of all devices, device after device, strip after strip."""

    X: Floats  # flat; a strip is (features x STRIP)
    y: Ints  # the class of every row; 0 for filling
    start: Ints  # first row of every device
    counts: Ints  # true rows of every device
    features: int  # with intercept and filling
    classes: int  # without filling


class Space(NamedTuple):
    """What the loops of one thread work in."""

    S: Floats  # scores: PANEL numbers for every class, then twice PANEL for the helpers' own use
    L: Floats  # a gradient in the rows' own precision: lanes for every class and four features, of which those at
    # k, k + 4, … add up to the k-th of the four. Zeros before and after.
    G: Floats  # a gradient, float64


def space(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Space:
    """Return space for matrices (classes x features) like this."""
    classes, features = shape
    lanes = alignment.lane_bytes() // dtype.itemsize
    scores = alignment.zeros((classes + 2) * PANEL, dtype)
    return Space(scores, alignment.zeros(classes * features // 4 * lanes, dtype), np.empty(shape))


def batch_space(features: int, dtype: np.dtype[Any]) -> tuple[Floats, Ints]:
    """Return space for the rows of a panel, and for their classes."""
    return alignment.zeros(features * PANEL, dtype), np.empty(PANEL, np.int64)
