"""Lower bounds of distances: far pairs are measured again only when they may have come within reach.

Every device has a path length, the sum of the lengths of all its moves. It also has a lower bound of its distances to
all devices that it is far from, plus its path length and the longest possible one when they were measured. Less these
lengths now, that bounds the distances now, however devices have moved. While it is beyond reach none of the device's
far pairs is looked at: once groups have formed, a round does not touch the pairs between them.
"""

from __future__ import annotations

import numpy as np

from fedfuse.pairs.layout import ROUND_DOWN
from fedfuse.utils.typing import Bools, Floats, Ints


class DistanceBounds:
    """Bounds of the distances of m devices' far pairs; unknown at first."""

    def __init__(self, m: int) -> None:
        self._paths: Floats = np.zeros(m)
        self._longest = 0.0  # that of a device that always made the longest move
        self._bounds: Floats = np.full(m, -np.inf)

    def move(self, devices: Ints, lengths: Floats) -> None:
        """Record that these devices have moved so far; nothing is known of those that moved by what is no number."""
        steps = np.nan_to_num(lengths / ROUND_DOWN, nan=np.inf)
        self._paths[devices] += steps
        self._longest += float(steps[np.isfinite(steps)].max(initial=0.0))
        if not np.isfinite(steps).all():
            self.forget()

    def within(self, devices: Ints, reach: float) -> Bools:
        """Return which of these devices may have far pairs within reach."""
        return np.asarray(~(self._bounds[devices] - self._paths[devices] - self._longest > reach))

    def set(self, devices: Ints, bounds: Floats) -> None:
        """Record lower bounds of the distances of these devices' far pairs."""
        paths = self._paths[devices]
        self._bounds[devices] = np.where(np.isfinite(paths), bounds + paths + self._longest, -np.inf)

    def forget(self, devices: Ints | slice = slice(None)) -> None:
        """Have these devices' pairs measured when they move next."""
        self._bounds[devices] = -np.inf
