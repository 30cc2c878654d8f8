"""How the rows of softmax regression lie in memory (`_kernels` says why); here, as it needs nothing compiled."""

from __future__ import annotations

from typing import NamedTuple

from fedfuse.types import Floats, Ints

PANEL = 256  # rows; a panel of 60 features and its scores stay in the second-level cache
GRAIN = 8  # rows in a vector instruction; the last panel is filled up to a multiple of it


class Panels(NamedTuple):
    """Rows of all devices, device after device, panel after panel."""

    X: Floats  # flat; a panel of `width` rows is (features x width)
    y: Ints  # the class of every row; 0 for filling
    start: Ints  # first row of every device
    counts: Ints  # true rows of every device
    features: int  # with intercept and filling
    classes: int  # without filling
