"""Lower bounds of pair distances: far pairs are measured again only when they may have come within reach.

Every device has a path length, the sum of the lengths of all its moves. For a far pair, ``r`` holds a lower bound of
its distance plus the path lengths of its two devices at that time. Less their path lengths now, that bounds their
distance now, however they have moved, and nothing is written as they move.

Each device also has one such bound for all its far pairs together. While that is beyond reach, none of them is
looked at: once groups have formed, a round does not touch the pairs between them.
"""

from __future__ import annotations

from math import isfinite

import numpy as np

from fedfuse.pairs.layout import FAR, ROUND_DOWN, ROUND_UP
from fedfuse.pairs.memory import Numbers
from fedfuse.utils.typing import Bools, Floats, Ints

# Longer paths, in units of the reach, are taken out of the bounds: in single precision they would cost too many digits.
MAX_PATH_RATIO = 1000.0


class DistanceBounds:
    """Bounds of the distances of m devices' far pairs; unknown at first."""

    def __init__(self, m: int) -> None:
        self.path_length: Floats = np.zeros(m)
        self._max_path_length = 0.0  # that of a device that always made the longest move
        self._bound: Floats = np.full(m, -np.inf)  # of all far pairs, plus own and longest path length then

    def move(self, devices: Ints, lengths: Floats) -> None:
        """Record that these devices have moved so far."""
        longest = float(lengths.max(initial=0.0))
        if isfinite(longest):
            self.path_length[devices] += lengths
            self._max_path_length += longest
            return
        sound = np.isfinite(lengths)
        self.path_length[devices] += np.where(sound, lengths, np.inf)  # nothing is known of these pairs any more
        self._max_path_length += float(lengths[sound].max(initial=0.0))
        self.forget()

    def within(self, devices: Ints, reach: float) -> Bools:
        """Return which of these devices may have far pairs within reach."""
        return ~(self._bounds(devices) > reach)

    def beyond(self, distance: float) -> bool:
        """Return whether all far pairs are known to be further apart than this."""
        return not self.within(np.arange(self.path_length.size), distance).any()

    def _bounds(self, devices: Ints) -> Floats:
        """Return lower bounds of the distances of each device's far pairs."""
        # never + inf less + inf, which would warn
        paths = self.path_length[devices] + self._max_path_length
        return np.asarray(self._bound[devices] * ROUND_DOWN - paths * ROUND_UP)

    def set(self, devices: Ints, bounds: Floats) -> None:
        """Record lower bounds of the distances of these devices' far pairs."""
        paths = self.path_length[devices]
        self._bound[devices] = np.where(np.isfinite(paths), bounds + paths + self._max_path_length, -np.inf)

    def forget(self, devices: Ints | slice = slice(None)) -> None:
        """Have these devices' pairs measured when they move next."""
        self._bound[devices] = -np.inf

    def too_long(self, reach: float) -> bool:
        """Return whether paths are so long that `reset_paths` is worth while."""
        return bool(np.isfinite(reach) and self.path_length.max(initial=0.0) > MAX_PATH_RATIO * reach)

    def reset_paths(self, r: Floats, where: Numbers) -> None:
        """Take all path lengths out of the bounds: ``r`` then bounds the distances themselves."""
        paths = self.path_length
        if not paths.any():
            return
        with np.errstate(invalid="ignore"):
            for hi in range(1, paths.size):
                own = slice(hi * (hi - 1) // 2, hi * (hi + 1) // 2)
                bound = r[own].astype(np.float64) * ROUND_DOWN - (paths[:hi] + paths[hi]) * ROUND_UP
                r[own] = np.where(where[own] == FAR, np.fmax(bound * ROUND_DOWN, 0.0), r[own])
            bounds = self._bounds(np.arange(paths.size))
        self._bound = np.nan_to_num(bounds, nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        self.path_length[:], self._max_path_length = 0.0, 0.0
