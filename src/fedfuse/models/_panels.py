"""How the rows of softmax regression lie in memory (`_kernels` says why); here, as it needs nothing compiled."""

from __future__ import annotations

from typing import NamedTuple

from fedfuse.types import Floats, Ints

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
