"""Noise on what devices send, so that nobody can tell from it which rows they have.

The change that a device sends is clipped to a norm and gets Gaussian noise before it leaves the device. The promise is
local differential privacy of a device's whole data set: with any other rows, all that it ever sends would be about as
likely (up to a factor of exp(epsilon), and with chance delta not even that). It holds against the server too. How much
noise that takes over a run is counted by Google's `dp-accounting`.

References
----------
C. Dwork, A. Roth. The Algorithmic Foundations of Differential Privacy. 2014.
I. Mironov. Rényi Differential Privacy. CSF 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfuse.errors import FedfuseError
from fedfuse.utils.typing import Floats

# Rényi orders; those close to one matter where epsilon is large
_ORDERS = (1.005, 1.01, 1.02, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.75, *(1 + k / 4 for k in range(4, 40)), 12, 16, 32, 64)


@dataclass(frozen=True)
class Noise:
    """How a device protects what it sends."""

    clip: float  # largest Euclidean norm of a change that is sent
    # Standard deviation of the noise in every number, in units of 2 clip: clipped changes differ by no more.
    multiplier: float

    @property
    def std(self) -> float:
        """Standard deviation of the noise in every number."""
        return 2 * self.clip * self.multiplier

    def protect(self, change: Floats, rng: np.random.Generator) -> Floats:
        """Return a change as it may be sent.

        >>> Noise(1.0, 0.0).protect(np.array([3.0, 4.0]), np.random.default_rng(0))
        array([0.6, 0.8])
        """
        length = float(np.linalg.norm(change.astype(np.float64)))
        if not np.isfinite(length):  # training diverged: nothing but noise can be sent of that
            change, length = np.zeros_like(change), 0.0
        clipped = change * min(1.0, self.clip / length) if length else change
        return np.asarray(clipped + rng.normal(0.0, self.std, change.shape), change.dtype)


def calibrated(clip: float, epsilon: float, delta: float, uploads: int) -> Noise:
    """Return the noise with which so many uploads of a device stay within its budget."""
    if not 0 < clip < np.inf:
        raise FedfuseError(f"noise needs clip, the largest norm of a change that a device sends, above 0; got {clip!r}")
    if not 0 < epsilon < np.inf:
        raise FedfuseError(f"epsilon must be a positive number, got {epsilon!r}")
    if not 0 < delta < 1:
        raise FedfuseError(f"delta must be above 0 and below 1, got {delta!r}")
    try:
        import dp_accounting
    except ModuleNotFoundError:
        needed = "epsilon needs dp-accounting, which is not installed: pip install 'fedfuse[privacy]'"
        raise FedfuseError(needed) from None
    bracket = dp_accounting.LowerEndpointAndGuess(1e-4, 1.0)
    multiplier = dp_accounting.calibrate_dp_mechanism(
        _accountant, lambda z: _event(z, uploads), epsilon, delta, bracket_interval=bracket
    )
    return Noise(clip, float(multiplier))


def spent(noise: Noise, delta: float, uploads: int) -> float:
    """Return the epsilon of so many uploads."""
    return float(_accountant().compose(_event(noise.multiplier, uploads)).get_epsilon(delta)) if uploads else 0.0


def _event(multiplier: float, uploads: int) -> Any:
    import dp_accounting

    return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(multiplier), uploads)


def _accountant() -> Any:
    from dp_accounting import rdp

    return rdp.RdpAccountant(_ORDERS)
