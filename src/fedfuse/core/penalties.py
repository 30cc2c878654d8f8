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
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError
from fedfuse.utils.typing import Floats


class Pieces(NamedTuple):
    """The shrink factor ``s(r) = c0[k] + c1[k] / r`` for ``ends[k-1] < r <= ends[k]``; the last end is inf."""

    ends: Floats
    c0: Floats
    c1: Floats


def _pieces(*rows: tuple[float, float, float]) -> Pieces:
    ends, c0, c1 = np.array(rows, dtype=np.float64).T
    return Pieces(ends.copy(), c0.copy(), c1.copy())


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
    def pieces(self, rho: float) -> Pieces:
        """Return the shrink factor of the proximal map with weight ``rho`` in its compiled form."""

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
        # the first piece of every penalty is constant, so r = 0 never divides
        return np.asarray(c0[k] + c1[k] / np.where(c1[k] == 0, 1.0, r))

    def to_config(self) -> dict[str, Any]:
        """Return what `from_config` needs to build this penalty again."""
        return {"penalty": self.name, **self.__dict__}


@dataclass(frozen=True)
class SquaredL2(Penalty):
    """``lam t^2``: pulls devices towards each other but never fuses them."""

    name: ClassVar[str] = "l2"

    def value(self, t: npt.ArrayLike) -> Floats:
        return np.asarray(self.lam * np.square(t))

    def derivative(self, t: npt.ArrayLike) -> Floats:
        return np.asarray(2 * self.lam * np.asarray(t, dtype=np.float64))

    def pieces(self, rho: float) -> Pieces:
        return _pieces((np.inf, rho / (rho + 2 * self.lam), 0.0))


@dataclass(frozen=True)
class L1(Penalty):
    """``lam t``: fuses, but pulls on far pairs as hard as on near ones and so biases every model."""

    name: ClassVar[str] = "l1"

    def value(self, t: npt.ArrayLike) -> Floats:
        return np.asarray(self.lam * np.asarray(t, dtype=np.float64))

    def derivative(self, t: npt.ArrayLike) -> Floats:
        return np.full(np.shape(t), self.lam)

    def pieces(self, rho: float) -> Pieces:
        pull = self.lam / rho
        return _pieces((pull, 0.0, 0.0), (np.inf, 1.0, -pull)) if self.lam else _free()


@dataclass(frozen=True)
class SCAD(Penalty):
    """Smoothly clipped absolute deviation: ``lam t`` near zero, constant from ``a lam`` on."""

    name: ClassVar[str] = "scad"
    a: float = 3.7

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number("a", self.a)
        if self.a <= 2:
            raise FedfuseError(f"SCAD needs a > 2, got a = {self.a:g}; 3.7 is the usual choice")

    @property
    def reach(self) -> float:
        return self.a * self.lam

    def value(self, t: npt.ArrayLike) -> Floats:
        lam, a, t = self.lam, self.a, np.asarray(t, dtype=np.float64)
        middle = (a * lam * t - (t**2 + lam**2) / 2) / (a - 1)
        return np.select([t <= lam, t <= a * lam], [lam * t, middle], lam**2 * (a + 1) / 2)

    def derivative(self, t: npt.ArrayLike) -> Floats:
        lam, a, t = self.lam, self.a, np.asarray(t, dtype=np.float64)
        return np.where(t <= lam, lam, np.maximum(a * lam - t, 0.0) / (a - 1))

    def check(self, rho: float) -> None:
        super().check(rho)
        _check_curvature(rho, 1 / (self.a - 1), "1/(a - 1)", self.a)

    def pieces(self, rho: float) -> Pieces:
        return _pieces((self.lam / rho, 0.0, 0.0), *self._tail(rho)) if self.lam else _free()

    def _tail(self, rho: float) -> tuple[tuple[float, float, float], ...]:
        """From where the penalty is ``lam t``: soft threshold, its unbiased stretch, and nothing."""
        lam, a = self.lam, self.a
        stretch = 1 / (1 - 1 / ((a - 1) * rho))
        return (
            (lam + lam / rho, 1.0, -lam / rho),
            (a * lam, stretch, -stretch * a * lam / ((a - 1) * rho)),
            (np.inf, 1.0, 0.0),
        )


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

    def pieces(self, rho: float) -> Pieces:
        if not self.lam:
            return _free()
        near = self.xi * rho / (self.lam + self.xi * rho)
        return _pieces((self.xi + self.lam / rho, near, 0.0), *self._tail(rho))


@dataclass(frozen=True)
class MCP(Penalty):
    """Minimax concave penalty: like SCAD, but relaxing from the start; constant from ``a lam`` on."""

    name: ClassVar[str] = "mcp"
    a: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number("a", self.a)
        if self.a <= 0:
            raise FedfuseError(f"MCP needs a > 0, got a = {self.a:g}; 3 is the usual choice")

    @property
    def reach(self) -> float:
        return self.a * self.lam

    def value(self, t: npt.ArrayLike) -> Floats:
        lam, a, t = self.lam, self.a, np.asarray(t, dtype=np.float64)
        return np.where(t <= a * lam, lam * t - t**2 / (2 * a), a * lam**2 / 2)

    def derivative(self, t: npt.ArrayLike) -> Floats:
        return np.maximum(self.lam - np.asarray(t, dtype=np.float64) / self.a, 0.0)

    def check(self, rho: float) -> None:
        super().check(rho)
        _check_curvature(rho, 1 / self.a, "1/a", self.a)

    def pieces(self, rho: float) -> Pieces:
        if not self.lam:
            return _free()
        pull, stretch = self.lam / rho, 1 / (1 - 1 / (self.a * rho))
        return _pieces((pull, 0.0, 0.0), (self.reach, stretch, -stretch * pull), (np.inf, 1.0, 0.0))


PENALTIES: dict[str, type[Penalty]] = {kind.name: kind for kind in (SmoothedSCAD, SCAD, L1, MCP, SquaredL2)}


def from_config(config: dict[str, Any]) -> Penalty:
    """Build the penalty that `Penalty.to_config` described."""
    settings = dict(config)
    name = settings.pop("penalty")
    if name not in PENALTIES:
        raise FedfuseError(f"unknown penalty {name!r}; known: {', '.join(PENALTIES)}")
    return PENALTIES[name](**settings)


def _free() -> Pieces:
    """No penalty at all: theta = delta (an empty first piece keeps r = 0 away from the others)."""
    return _pieces((np.inf, 1.0, 0.0))


def _check_number(name: str, number: float) -> None:
    if isinstance(number, bool) or not isinstance(number, (int, float, np.number)) or not np.isfinite(number):
        raise FedfuseError(f"{name} must be a finite number, got {number!r}")


def _check_curvature(rho: float, least: float, formula: str, a: float) -> None:
    if rho <= least:
        raise FedfuseError(
            f"rho must exceed {formula} = {least:.4g} for a = {a:g} (else the proximal map is not unique), got {rho:g}"
        )
