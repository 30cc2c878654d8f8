"""Pairs of one newcomer with devices that do not change: one row of `pairs.state.FusionState`."""

from __future__ import annotations

import numpy as np

from fedfuse.core.penalties import Penalty
from fedfuse.utils.typing import Floats


class NewcomerPairs:
    """The newcomer's parameters ``omega``, and its pairs with all ``old`` devices (O(m d) for each update)."""

    def __init__(self, old: Floats, omega: Floats, penalty: Penalty, rho: float) -> None:
        self._old = np.asarray(old, dtype=np.float64)
        self._penalty, self._rho = penalty, rho
        self._delta = np.zeros_like(self._old)
        self._s = np.ones(len(self._old))
        self.omega = self._old[0]
        self.update(omega)

    def update(self, omega: Floats) -> float:
        """Take the newcomer's new parameters; return how far they have moved, relative to their size."""
        new = np.asarray(omega, dtype=np.float64)
        moved = float(np.linalg.norm(new - self.omega) / (np.linalg.norm(new) or 1.0))
        self.omega = new
        # delta = omega - omega_j + v_j / rho, and v_j = rho (1 - s) delta
        self._delta = new - self._old + (1 - self._s)[:, None] * self._delta
        self._s = np.asarray(self._penalty.shrink(np.linalg.norm(self._delta, axis=1), self._rho))
        return moved

    def anchor(self) -> Floats:
        """Return zeta, the vector that the newcomer is pulled to."""
        pulled = self._old + (2 * self._s - 1)[:, None] * self._delta
        return np.asarray((self.omega + pulled.sum(axis=0)) / (len(self._old) + 1))

    def norms(self) -> Floats:
        """Return the length of theta with every old device: at most nu for those of the newcomer's group."""
        return np.asarray(self._s * np.linalg.norm(self._delta, axis=1))
