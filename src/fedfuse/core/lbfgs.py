"""L-BFGS that asks and is told: many independent problems at once, one evaluation each per round.

The server proposes a point per problem, devices answer with value and gradient (Liu and Nocedal, 1989). What is in
between is plain arrays, so that a run can be saved after any round. SciPy's solver cannot wait for an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedfuse.utils.typing import Bools, Floats, Ints

# Steps that the approximation of the Hessian remembers.
MAX_MEMORY_STEPS = 10
# Share of the decrease promised by the slope that a step must reach (Armijo).
SUFFICIENT_DECREASE_RATIO = 1e-4
# A step that fails is cut to this share; after so many cuts in a row a problem counts as done.
BACKTRACKING_RATIO, MAX_BACKTRACKS = 0.3, 12


@dataclass
class LBFGS:
    """State of ``n`` minimisations over ``d`` numbers each: evaluate the points ``trial``, then `tell` their values."""

    x: Floats  # best points so far
    f: Floats  # their values
    g: Floats  # their gradients
    trial: Floats  # points to evaluate next
    direction: Floats
    step: Floats
    cuts: Ints
    S: Floats  # (n, MAX_MEMORY_STEPS, d) last steps and
    Y: Floats  # last changes of the gradient, newest first
    pairs: Ints  # how many of them are filled
    done: Bools

    @classmethod
    def start(cls, x: npt.ArrayLike) -> LBFGS:
        """Begin at these points (n x d)."""
        point = np.array(x, dtype=np.float64)
        n, d = point.shape
        memory = (n, MAX_MEMORY_STEPS, d)
        return cls(
            point, np.full(n, np.inf), np.zeros((n, d)), point.copy(), np.zeros((n, d)), np.ones(n),
            np.zeros(n, np.int64), np.zeros(memory), np.zeros(memory), np.zeros(n, np.int64), np.zeros(n, np.bool_),
        )  # fmt: skip

    def tell(self, f: Floats, g: Floats, which: Bools | None = None, tol: float = 1e-4) -> None:
        """Take the values and gradients at the points asked for, of all problems or of ``which``.

        ``tol`` is on the gradient's largest entry. A problem that is not told anything is asked for the same again.
        """
        for i in np.flatnonzero(~self.done if which is None else ~self.done & which):
            self._tell_one(int(i), float(f[i]), g[i], tol)

    def _tell_one(self, i: int, f: float, g: Floats, tol: float) -> None:
        slope = float(self.direction[i] @ self.g[i])
        first = not np.isfinite(self.f[i])
        if first or f <= self.f[i] + SUFFICIENT_DECREASE_RATIO * self.step[i] * slope:
            if not first:
                self._remember(i, self.trial[i] - self.x[i], g - self.g[i])
            self.x[i], self.f[i], self.g[i], self.cuts[i] = self.trial[i], f, g, 0
            self.direction[i] = -self._times_inverse_hessian(i, g)
            # without a curvature yet, a first step of at most unit length
            self.step[i] = 1.0 if self.pairs[i] else min(1.0, 1 / max(float(np.linalg.norm(g)), 1e-300))
            self.done[i] = np.abs(g).max() <= tol
        else:
            self.step[i] *= BACKTRACKING_RATIO
            self.cuts[i] += 1
            self.done[i] = self.cuts[i] >= MAX_BACKTRACKS
        self.trial[i] = self.x[i] if self.done[i] else self.x[i] + self.step[i] * self.direction[i]

    def _remember(self, i: int, s: Floats, y: Floats) -> None:
        if s @ y <= 1e-10 * (y @ y):  # no positive curvature to learn from
            return
        self.S[i], self.Y[i] = np.roll(self.S[i], 1, axis=0), np.roll(self.Y[i], 1, axis=0)
        self.S[i, 0], self.Y[i, 0] = s, y
        self.pairs[i] = min(self.pairs[i] + 1, MAX_MEMORY_STEPS)

    def _times_inverse_hessian(self, i: int, g: Floats) -> Floats:
        """The two-loop recursion."""
        q, k = g.copy(), int(self.pairs[i])
        S, Y = self.S[i, :k], self.Y[i, :k]
        curvature = np.einsum("kd,kd->k", S, Y)
        alpha = np.zeros(k)
        for j in range(k):
            alpha[j] = S[j] @ q / curvature[j]
            q -= alpha[j] * Y[j]
        if k:
            q *= curvature[0] / (Y[0] @ Y[0])
        for j in reversed(range(k)):
            q += (alpha[j] - Y[j] @ q / curvature[j]) * S[j]
        return np.asarray(q)
