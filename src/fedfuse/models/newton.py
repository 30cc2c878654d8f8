"""Newton's method for softmax regression on one device, with conjugate gradients inside.

The problem is convex, so a Newton step with backtracking always makes progress. Without a proximal term and
with classes that planes can separate there is no minimiser: loss and gradient fall towards zero until the
tolerance is met.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedfuse.models.panels import PANEL, Panels, Space, space
from fedfuse.utils import alignment
from fedfuse.utils.jit import Kernels
from fedfuse.utils.threads import own
from fedfuse.utils.typing import Floats

# Gradient norm at which a problem counts as solved; float32 cannot see smaller ones.
_TOLERANCE: dict[Any, float] = {np.dtype(np.float64): 1e-8, np.dtype(np.float32): 1e-5}
_TOLERANCE_ALONE = 1e-6  # without a proximal term: the last digits cost most, and may lead to infinity
_STEPS, _HALVINGS = 50, 30
_INNER_STEPS, _INNER_ACCURACY = 200, 0.1
_JOB = np.zeros(1, np.int64)

_kernels = Kernels("fedfuse.models.loss_kernels")


def minimise(panels: Panels, device: int, W: Floats, A: Floats, rho: float) -> Floats:
    """Return the minimiser of ``f(W) + rho/2 ||W - A||^2``, coming from W."""
    room = own(space, W.shape, W.dtype)
    h, g = _value_and_gradient(panels, device, W, A, rho, room)
    enough = max(_TOLERANCE[W.dtype], 0.0 if rho else _TOLERANCE_ALONE) * max(1.0, _norm(g))
    for _ in range(_STEPS):
        if _norm(g) <= enough:
            break
        moved = _backtrack(panels, device, W, A, rho, h, g, _direction(panels, device, W, rho, g, room), room)
        if moved is None:
            break
        W, h, g = moved
    return W


def _direction(panels: Panels, device: int, W: Floats, rho: float, g: Floats, room: Space) -> Floats:
    """Return the Newton direction, nearly."""
    vectors = np.zeros((4, *W.shape))
    vectors[1] = -g
    n = -(-int(panels.counts[device]) // PANEL)
    scores = alignment.zeros(n * room.S.size, W.dtype).reshape(n, room.S.size)
    how = rho, _INNER_ACCURACY, _INNER_STEPS
    _kernels.newton_direction(panels, device, W, *how, vectors, np.empty_like(W), scores, room)
    return vectors[0] if vectors[0].any() else -g


def _backtrack(
    panels: Panels, device: int, W: Floats, A: Floats, rho: float, h: float, g: Floats, D: Floats, room: Space
) -> tuple[Floats, float, Floats] | None:
    """Halve the step until the value falls enough; None where rounding hides every gain."""
    slope, t = float((g * D).sum()), 1.0
    noise = 8 * np.finfo(W.dtype).eps * max(1.0, abs(h))
    for _ in range(_HALVINGS):
        new = (W + t * D).astype(W.dtype)
        value, gradient = _value_and_gradient(panels, device, new, A, rho, room)
        # close to the minimum the value is all noise, and the gradient tells progress
        if value <= h + 1e-4 * t * slope or (value <= h + noise and _norm(gradient) <= 0.5 * _norm(g)):
            return new, value, gradient
        t /= 2
    return None


def _value_and_gradient(
    panels: Panels, device: int, W: Floats, A: Floats, rho: float, room: Space
) -> tuple[float, Floats]:
    loss, no_hits, G = np.zeros(1), np.zeros(0, np.int64), np.zeros((1, *W.shape))
    _kernels.evaluate(panels, np.array([device]), _JOB, W[None], loss, no_hits, G, room)
    n = max(1, int(panels.counts[device]))
    away = W.astype(np.float64) - A
    return float(loss[0]) / n + rho / 2 * float((away * away).sum()), G[0] / n + rho * away


def _norm(g: Floats) -> float:
    return float(np.sqrt((g * g).sum()))
