"""When far pairs have to be looked at: not as long as their devices cannot have come within reach of each other.

Every device has a way behind it, the sum of the lengths of all its moves. What is kept of a far pair in ``r`` is a
lower bound of its distance plus the ways that its two devices had behind them then. Less their ways now, that is a
lower bound of their distance now, however they have moved, and nothing needs to be written as they go.

And for every device there is one such bound for all its far pairs together. While that is beyond reach, none of them
is looked at: once groups have formed, a round does not touch the pairs between them.
"""

from __future__ import annotations

from math import isfinite

import numpy as np

from fedfuse.pairs.layout import CAUTION, FAR, RECKLESS
from fedfuse.pairs.memory import Numbers
from fedfuse.utils.typing import Bools, Floats, Ints

# Ways beyond so many times the reach are taken out of the bounds: in single precision they would cost too many digits.
LONG = 1000.0


class DistanceBounds:
    """What is known of m devices' far pairs: at first nothing."""

    def __init__(self, m: int) -> None:
        self.way: Floats = np.zeros(m)
        self._drift = 0.0  # the way of a device that always had the longest step
        self._least: Floats = np.full(m, -np.inf)  # bound of all far pairs, plus way and drift then

    def move(self, devices: Ints, lengths: Floats) -> None:
        """Note that these devices have gone so far."""
        longest = float(lengths.max(initial=0.0))
        if isfinite(longest):
            self.way[devices] += lengths
            self._drift += longest
            return
        sound = np.isfinite(lengths)
        self.way[devices] += np.where(sound, lengths, np.inf)  # of these pairs nothing is known any more
        self._drift += float(lengths[sound].max(initial=0.0))
        self.forget()

    def due(self, devices: Ints, reach: float) -> Bools:
        """Say which of these devices may have far pairs that are far no longer."""
        return ~(self._bounds(devices) > reach)

    def beyond(self, distance: float) -> bool:
        """Say whether all far pairs are known to be further apart than this."""
        return not self.due(np.arange(self.way.size), distance).any()

    def _bounds(self, devices: Ints) -> Floats:
        """Return how far all far pairs of each of these devices at least are."""
        # neither is ever + inf and the other, too, so that there is nothing to warn of
        return np.asarray(self._least[devices] * CAUTION - (self.way[devices] + self._drift) * RECKLESS)

    def learn(self, devices: Ints, least: Floats) -> None:
        """Note that all far pairs of these devices are at least so far apart."""
        self._least[devices] = np.where(
            np.isfinite(self.way[devices]), least + self.way[devices] + self._drift, -np.inf
        )

    def forget(self, devices: Ints | slice = slice(None)) -> None:
        """Look at these devices' pairs when they move next."""
        self._least[devices] = -np.inf

    def long(self, reach: float) -> bool:
        """Say whether ways are so long that `settle` is worth while."""
        return bool(np.isfinite(reach) and self.way.max(initial=0.0) > LONG * reach)

    def settle(self, r: Floats, where: Numbers) -> None:
        """Take all ways out of the bounds: then ``r`` is what it seems."""
        if not self.way.any():
            return
        for hi in range(1, self.way.size):
            own = slice(hi * (hi - 1) // 2, hi * (hi + 1) // 2)
            with np.errstate(invalid="ignore"):
                bound = r[own].astype(np.float64) * CAUTION - (self.way[:hi] + self.way[hi]) * RECKLESS
            r[own] = np.where(where[own] == FAR, np.fmax(bound * CAUTION, 0.0), r[own])
        with np.errstate(invalid="ignore"):
            self._least = np.nan_to_num(
                self._bounds(np.arange(self.way.size)), nan=-np.inf, posinf=np.inf, neginf=-np.inf
            )
        self.way[:], self._drift = 0.0, 0.0
