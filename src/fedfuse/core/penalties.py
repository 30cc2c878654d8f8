"""Penalties on the distance of two devices' parameters.

A penalty g(t) pulls a pair together. The server needs only its proximal map, and for every penalty here that
map is a multiple of its argument, theta = s(r) delta with r = ||delta||. For piecewise quadratic g the factor is
piecewise of the form ``s(r) = c0 + c1 / r`` (`Pieces`): all that the compiled kernels know about a penalty.

References
----------
Fan and Li (2001), Variable selection via nonconcave penalized likelihood (SCAD).
Zhang (2010), Nearly unbiased variable selection under minimax concave penalty (MCP).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError
from fedfuse.utils.typing import Floats


class Pieces(NamedTuple):
    """The shrink factor ``s(r) = c0[k] + c1[k] / r`` for ``ends[k-1] < r <= ends[k]``; the last end is inf."""

    ends: Floats
    c0: Floats
    c1: Floats


@dataclass(frozen=True)
class Penalty(ABC):
    """A penalty g(t) on a distance t >= 0 with strength ``lam``."""

    name: ClassVar[str]
    lam: float

    def __post_init__(self) -> None:
        _check_number("lambda", self.lam)
        if self.lam < 0:
            raise FedfuseError(f"lambda must be at least 0, got {self.lam:g}")

    @abstractmethod
    def value(self, t: npt.ArrayLike) -> Floats:
        """Return g(t)."""

    @abstractmethod
    def derivative(self, t: npt.ArrayLike) -> Floats:
        """Return g'(t); at a kink (t = 0) the limit from the right."""

    @abstractmethod
    def _rows(self, rho: float) -> tuple[tuple[float, float, float], ...]:
        """Return the end, c0 and c1 of each of the `Pieces`; the first must be constant."""

    def pieces(self, rho: float) -> Pieces:
        """Return the shrink factor of the proximal map with weight ``rho`` in its compiled form."""
        rows = self._rows(rho) if self.lam else ((np.inf, 1.0, 0.0),)
        return Pieces(*(np.array(column, np.float64) for column in zip(*rows, strict=True)))

    def check(self, rho: float) -> None:
        """Raise unless ``rho`` makes the proximal map unique."""
        _check_number("rho", rho)
        if rho <= 0:
            raise FedfuseError(f"rho must be positive, got {rho:g}")

    @property
    def reach(self) -> float:
        """The distance from which on the penalty is flat: pairs beyond it do not feel each other."""
        return np.inf

    def shrink(self, r: npt.ArrayLike, rho: float = 1.0) -> Floats:
        """Return s(r): the minimiser of ``g(t) + rho/2 (t - r)^2`` over t >= 0 is ``s(r) r``.

        >>> SmoothedSCAD(0.5).shrink([0.1, 0.8, 10.0]).round(4).tolist()
        [0.0002, 0.375, 1.0]
        """
        self.check(rho)
        ends, c0, c1 = self.pieces(rho)
        r = np.asarray(r, dtype=np.float64)
        k = np.searchsorted(ends, r, side="left")
        # The first piece of every penalty is constant, so that r = 0 never divides.
        return np.asarray(c0[k] + c1[k] / np.where(c1[k] == 0, 1.0, r))


@dataclass(frozen=True)
class SquaredL2(Penalty):
    """``lam t^2``: pulls devices towards each other but never fuses them."""

    name: ClassVar[str] = "l2"

    def value(self, t: npt.ArrayLike) -> Floats:
        return np.asarray(self.lam * np.square(t))

    def derivative(self, t: npt.ArrayLike) -> Floats:
        return np.asarray(2 * self.lam * np.asarray(t, dtype=np.float64))

    def _rows(self, rho: float) -> tuple[tuple[float, float, float], ...]:
        return ((np.inf, rho / (rho + 2 * self.lam), 0.0),)


@dataclass(frozen=True)
class L1(Penalty):
    """``lam t``: fuses, but pulls on far pairs as hard as on near ones and so biases every model."""

    name: ClassVar[str] = "l1"

    def value(self, t: npt.ArrayLike) -> Floats:
        return np.asarray(self.lam * np.asarray(t, dtype=np.float64))

    def derivative(self, t: npt.ArrayLike) -> Floats:
        return np.full(np.shape(t), self.lam)

    def _rows(self, rho: float) -> tuple[tuple[float, float, float], ...]:
        return (self.lam / rho, 0.0, 0.0), (np.inf, 1.0, -self.lam / rho)


@dataclass(frozen=True)
class _Concave(Penalty):
    """``lam t`` up to ``knee lam``; from there its slope falls, and from ``a lam`` on it is constant."""

    knee: ClassVar[int] = 1
    a: float = 3.7

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number("a", self.a)
        if self.a <= 2 * self.knee:
            least, usual = 2 * self.knee, type(self).a
            raise FedfuseError(f"{type(self).__name__} needs a > {least}, got a = {self.a:g}; {usual:g} is usual")

    @property
    def reach(self) -> float:
        return self.a * self.lam

    def value(self, t: npt.ArrayLike) -> Floats:
        t = np.minimum(np.asarray(t, dtype=np.float64), self.reach)
        return np.asarray(self.lam * t - np.maximum(t - self.knee * self.lam, 0) ** 2 / (2 * (self.a - self.knee)))

    def derivative(self, t: npt.ArrayLike) -> Floats:
        return np.clip((self.reach - np.asarray(t, dtype=np.float64)) / (self.a - self.knee), 0, self.lam)

    def check(self, rho: float) -> None:
        super().check(rho)
        if rho <= 1 / (self.a - self.knee):
            formula = f"1/(a - {self.knee})" if self.knee else "1/a"
            raise FedfuseError(
                f"rho must exceed {formula} = {1 / (self.a - self.knee):.4g} for a = {self.a:g} (else the proximal map "
                f"is not unique), got {rho:g}"
            )

    def _rows(self, rho: float) -> tuple[tuple[float, float, float], ...]:
        lam, a, fall = self.lam, self.a, (self.a - self.knee) * rho
        stretch = 1 / (1 - 1 / fall)
        soft = ((lam + lam / rho, 1.0, -lam / rho),) if self.knee else ()
        return (lam / rho, 0.0, 0.0), *soft, (a * lam, stretch, -stretch * a * lam / fall), (np.inf, 1.0, 0.0)


@dataclass(frozen=True)
class SCAD(_Concave):
    """Smoothly clipped absolute deviation: ``lam t`` up to lam, constant from ``a lam`` on."""

    name: ClassVar[str] = "scad"


@dataclass(frozen=True)
class SmoothedSCAD(SCAD):
    """SCAD with a parabola on ``[0, xi]`` in place of the kink: the paper's penalty (its equation 3)."""

    name: ClassVar[str] = "smoothed-scad"
    xi: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number("xi", self.xi)
        if self.lam > 0 and not 0 < self.xi < self.lam:
            raise FedfuseError(f"xi must lie between 0 and lambda = {self.lam:g}, got xi = {self.xi:g}")

    def value(self, t: npt.ArrayLike) -> Floats:
        t = np.asarray(t, dtype=np.float64)
        parabola = self.lam * t**2 / (2 * self.xi) + self.xi * self.lam / 2
        return np.where(t <= self.xi, parabola, super().value(t))

    def derivative(self, t: npt.ArrayLike) -> Floats:
        t = np.asarray(t, dtype=np.float64)
        return np.where(t <= self.xi, self.lam * t / self.xi, super().derivative(t))

    def _rows(self, rho: float) -> tuple[tuple[float, float, float], ...]:
        near = self.xi * rho / (self.lam + self.xi * rho)
        return (self.xi + self.lam / rho, near, 0.0), *super()._rows(rho)[1:]


@dataclass(frozen=True)
class MCP(_Concave):
    """Minimax concave penalty: like SCAD, but relaxing from the start; constant from ``a lam`` on."""

    name: ClassVar[str] = "mcp"
    knee: ClassVar[int] = 0
    a: float = 3.0


PENALTIES: dict[str, type[Penalty]] = {kind.name: kind for kind in (SmoothedSCAD, SCAD, L1, MCP, SquaredL2)}


def _check_number(name: str, number: float) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, float, np.number)) or not np.isfinite(number):
        raise FedfuseError(f"{name} must be a finite number, got {number!r}")
