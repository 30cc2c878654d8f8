"""What the paper's theorems ask of the hyperparameters (section 5, "Choice of hyperparameters").

The conditions are sufficient, not necessary: the paper's own experiments (rho = 1, xi = 1e-4, lambda = 0.6)
break ``rho > 2 lambda / xi`` by four orders of magnitude and converge all the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log

from fedfuse.errors import FedfuseError


@dataclass(frozen=True)
class Choice:
    """A setting for which Theorem 2 guarantees convergence.

    ``inexactness`` is epsilon_i of Definition 1: how close ``steps`` steps come to a device's minimiser.
    """

    rho: float
    lr: float
    steps: int
    inexactness: float


def contraction(rho: float, lr: float, L_f: float, L_minus: float = 0.0) -> float:
    """Return c of Theorem 1: one local step shrinks the squared error by this factor."""
    mu = rho - L_minus
    return 1 - lr * 2 * mu * (L_f + rho) / (L_f + rho + mu)


def inexactness(steps: float, c: float) -> float:
    """Return epsilon_i = 1 / (c^(-T/2) - 1) for T steps with contraction c."""
    return float(1 / (c ** (-steps / 2) - 1))


def choose(lam: float, xi: float, a: float, L_f: float, L_minus: float = 0.0) -> Choice:
    """Return the paper's example of a setting that satisfies Theorem 2.

    Parameters
    ----------
    lam, xi, a
        The smoothed SCAD penalty.
    L_f
        Lipschitz constant of the devices' gradients (`Model.smoothness` gives an upper bound).
    L_minus
        How nonconvex the losses are: their Hessians are at least -L_minus; 0 for convex models.

    Examples
    --------
    >>> choose(lam=0.5, xi=0.1, a=3.7, L_f=4.0)  # doctest: +ELLIPSIS
    Choice(rho=12.01, lr=0.0356..., steps=4, inexactness=0.35...)
    """
    _positive(lam=lam, xi=xi, L_f=L_f)
    rho = max(3 * L_f, 2 * lam / xi, 2 / (a - 1), L_minus) + 0.01
    lr = 1 / (L_f + 2 * rho - L_minus)
    c = contraction(rho, lr, L_f, L_minus)
    steps = ceil(-2 * log(3) / log(c))
    return Choice(rho, lr, steps, inexactness(steps, c))


def broken(
    *, lam: float, xi: float, a: float, rho: float, lr: float, steps: int, L_f: float, L_minus: float = 0.0
) -> list[str]:
    """Say which conditions of Theorem 2 a setting breaks; an empty list means that convergence is guaranteed.

    >>> broken(lam=0.6, xi=1e-4, a=3.7, rho=1.0, lr=0.1, steps=10, L_f=2.0)[0]
    'rho > 2 lambda / xi: needs rho > 12000, has 1'
    """
    _positive(lam=lam, xi=xi, L_f=L_f, rho=rho, lr=lr, steps=steps)
    found = []

    def need(condition: str, bound: float, name: str, value: float, holds: bool) -> None:
        if not holds:
            sign = "<=" if name == "lr" else ">"
            found.append(f"{condition}: needs {name} {sign} {bound:.6g}, has {value:.6g}")

    need("rho > 2 lambda / xi", 2 * lam / xi, "rho", rho, rho > 2 * lam / xi)
    need("rho > 2 / (a - 1)", 2 / (a - 1), "rho", rho, rho > 2 / (a - 1))
    need("rho > L_minus", L_minus, "rho", rho, rho > L_minus)
    if L_f + 2 * rho - L_minus > 0:
        largest = 1 / (L_f + 2 * rho - L_minus)
        need("lr <= 1 / (L_f + 2 rho - L_minus)", largest, "lr", lr, lr <= largest * (1 + 1e-12))
    c = contraction(rho, lr, L_f, L_minus)
    if not 0 < c < 1:
        return [*found, f"0 < c < 1: the local steps do not contract (c = {c:.4g})"]
    fewest = -2 * log(2) / log(c)
    need("T > -2 log 2 / log c", fewest, "steps", steps, steps > fewest)
    if steps > fewest:
        least = L_f / (1 - 2 * c ** (steps / 2))
        need("rho > L_f / (1 - 2 c^(T/2))", least, "rho", rho, rho > least)
    return found


def _positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise FedfuseError(f"{name} must be positive, got {number:g}")
