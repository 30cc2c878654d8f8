"""Memory layout of rows for the compiled loops of softmax regression; `loss_kernels` says why. Needs no compiler."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np

from fedfuse.utils import alignment
from fedfuse.utils.typing import Floats, Ints

# Rows whose scores stay in the cache until the gradient is done; more gain nothing.
PANEL_ROWS = 256
# Rows that are computed at once; the last strip of a device is padded.
STRIP_ROWS = 32
Count = TypeVar("Count", int, Ints)


class Panels(NamedTuple):
    """Rows of all devices, device after device, strip after strip."""

    X: Floats  # flat; a strip is (features x STRIP_ROWS)
    y: Ints  # the class of every row; 0 for padding
    start: Ints  # first row of every device
    counts: Ints  # true rows of every device
    weights: Floats  # of every row; empty where all count the same
    totals: Floats  # sums of the weights of every device
    features: int  # with intercept and padding
    classes: int  # without padding


class Space(NamedTuple):
    """What the loops of one thread work in."""

    S: Floats  # scores: PANEL_ROWS numbers for every class, then twice as many for the helpers' own use
    L: Floats  # a gradient in the rows' own precision: lanes for every class and four features. Those at k, k + 4, …
    # add up to the k-th of the four. Zeros before and after.
    G: Floats  # a gradient, float64


def rounded_up(n: Count, multiple: int) -> Count:
    """Return the next multiple of a number.

    >>> rounded_up(5, 4), rounded_up(8, 4)
    (8, 8)
    """
    return -(-n // multiple) * multiple


def space(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Space:
    """Return space for matrices (classes x features) like this."""
    classes, features = shape
    lanes = alignment.lane_bytes() // dtype.itemsize
    scores = alignment.zeros((classes + 2) * PANEL_ROWS, dtype)
    return Space(scores, alignment.zeros(classes * features // 4 * lanes, dtype), np.empty(shape))


def batch_space(features: int, dtype: np.dtype[Any]) -> tuple[Floats, Ints, Floats]:
    """Return space for the rows of a panel, for their classes and for their weights."""
    return alignment.zeros(features * PANEL_ROWS, dtype), np.empty(PANEL_ROWS, np.int64), np.empty(PANEL_ROWS, dtype)
