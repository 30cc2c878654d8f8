"""Certificate of a grouping: the lambdas for which it is a stationary point of the paper's objective.

The objective (equation 1 of the paper; g is the SCAD penalty with strength lambda) is

    F(omega) = sum_i f_i(omega_i) + 1/(2m) sum_i sum_j g(||omega_i - omega_j||)

Let every device of a group G with n devices have the same model alpha, and write g_i for the gradient of f_i there. The
double sum has each pair twice, so the pair i, j adds u_ij / m to the condition of device i, with u_ij = -u_ji. Within a
group g has a kink of slope lambda at 0: u_ij is any vector of length lambda at most. From ``a lambda`` on, g is flat,
and devices of other groups add nothing. F is stationary at the grouping if, for all i of all groups,

    g_i + (1/m) sum_{j in G} u_ij = 0,    ||u_ij|| <= lambda,    and groups are at least a lambda apart.

The sum over a group says sum_i g_i = 0: alpha minimises the sum of the f_i, in which devices count alike. Then
u_ij = (m/n) (g_j - g_i) solves the equations, which gives both ends of the interval:

    low  = max over pairs i, j of a group of ||g_i - g_j|| m / n
    high = smallest distance of the models of two groups / a

In the paper's Theorem 3 these are ``lambda >> m ... sqrt(log n / n_min)``, a bound on the noise of g_i, and
``b > a lambda``.

Low is sufficient. For the smoothed penalty, which pulls with lambda (omega_i - omega_j) / xi on [0, xi], it is also
necessary: devices rest at omega_i - alpha = -(xi m / (lambda n)) g_i, at most xi from alpha. With convex f_i a lambda
inside the interval makes the grouping a local minimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedfuse.core.partitions import group_means
from fedfuse.utils.typing import Floats, Ints


@dataclass(frozen=True)
class Certificate:
    """The interval of lambdas for which a grouping is a stationary point of the paper's objective.

    Attributes
    ----------
    low, high
        From ``low`` on devices of a group are sure to hold together; up to ``high`` groups leave each other alone.
    residual
        The largest norm of a group's mean gradient: how far the models themselves are from stationary.
    """

    low: float
    high: float
    residual: float = 0.0

    def contains(self, lam: float) -> bool:
        """Whether this lambda is one of them."""
        return self.low <= lam <= self.high

    def sentence(self, lam: float | None = None) -> str:
        """Say for which lambdas the grouping is a stationary point, and whether ``lam``, which was used, is one.

        >>> Certificate(0.4, 2.5).sentence(0.6)
        "The grouping is a stationary point of FPFC's objective for lambda from 0.4 to 2.5; 0.6 was used."
        """
        if self.low > self.high:
            return (
                "No lambda is sure to make the grouping a stationary point of FPFC's objective: its groups hold "
                f"together from {self.low:.3g} on, and leave each other alone up to {self.high:.3g} only."
            )
        upper = f"to {self.high:.3g}" if np.isfinite(self.high) else "on"
        text = f"The grouping is a stationary point of FPFC's objective for lambda from {self.low:.3g} {upper}"
        if lam is None:
            return f"{text}."
        return f"{text}; {lam:.3g} was used{'' if self.contains(lam) else ', which is outside'}."

    def to_json(self) -> dict[str, Any]:
        """Return the interval as JSON-ready data; ``high`` is None where there is one group only."""
        return {**self.__dict__, "high": self.high if np.isfinite(self.high) else None}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Certificate:
        """Build what `to_json` described."""
        return cls(**{**data, "high": np.inf if data["high"] is None else data["high"]})


def interval(models: Floats, labels: Ints, gradients: Floats, a: float = 3.7) -> Certificate:
    """Return the certificate of a grouping, from one model for each group and every device's gradient at its group's.

    ``a`` is the reach of the penalty in units of lambda. Three devices with f_i(w) = (w - c_i)^2 / 2, c = -1, 1 and 9,
    the first two in a group:

    >>> interval(np.array([[0.0], [9.0]]), np.array([0, 0, 1]), np.array([[1.0], [-1.0], [0.0]]), a=3.0)
    Certificate(low=3.0, high=3.0, residual=0.0)
    """
    from scipy.spatial.distance import pdist

    gradients, m = np.asarray(gradients, dtype=np.float64), len(labels)
    inside = [gradients[labels == group] for group in range(len(models))]
    low = max(float(pdist(group).max(initial=0.0)) * m / len(group) for group in inside)
    nearest = float(pdist(models).min(initial=np.inf))
    means = group_means(gradients, labels, np.ones(m))
    return Certificate(low, nearest / a, float(np.linalg.norm(means, axis=1).max()))
