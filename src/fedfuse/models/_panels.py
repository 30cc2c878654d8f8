"""How the rows of softmax regression lie in memory (`_kernels` says why); here, as it needs nothing compiled."""

from __future__ import annotations

from typing import NamedTuple

from fedfuse.types import Floats, Ints

PANEL = 64  # rows; a panel of 60 features stays in the first-level cache
GRAIN = 32  # rows that are computed at once; the last panel is filled up to a multiple of it


class Panels(NamedTuple):
    """Rows of all devices, device after device, panel after panel."""

    X: Floats  # flat; a panel of `width` rows is (features x width)
    y: Ints  # the class of every row; 0 for filling
    start: Ints  # first row of every device
    counts: Ints  # true rows of every device
    features: int  # with intercept and filling
    classes: int  # without filling
