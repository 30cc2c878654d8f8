"""Charts of the report: SVG paths in a box of 1000 x 1000 that the page stretches, with text beside it in HTML.

A chart so fits a phone and a wide screen, text and lines keep their size, and it is seen without a script. Templates
escape all text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.results.formatting import compact
from fedfuse.utils.files import without_nan
from fedfuse.utils.typing import Floats

SIDE = 1000


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where, from 0 to 100, and what it says."""

    at: float
    words: str


@dataclass(frozen=True)
class Axis:
    """A linear or logarithmic scale; ``whole`` has marks at whole numbers only."""

    low: float
    high: float
    log: bool = False
    percent: bool = False
    whole: bool = False
    words: str = ""

    @classmethod
    def around(cls, values: npt.ArrayLike, *, margin: float = 0.04, **how: Any) -> Axis:
        """Return an axis with room for these values."""
        log, finite = how.get("log", False), np.asarray(values, float)
        finite = finite[np.isfinite(finite) & ((finite > 0) | (not log))]
        empty = (1.0, 10.0) if log else (0.0, 1.0)
        low, high = (float(finite.min()), float(finite.max())) if finite.size else empty
        if log:
            return cls(low / 1.3, high * 1.3, **how)
        room = margin * (high - low) or 0.05 * abs(high) or 0.5
        return cls(low - room, high + room, **how)

    def share(self, values: npt.ArrayLike) -> Floats:
        """Return where values are, from 0 to 1."""
        numbers, low, high = np.asarray(values, float), self.low, self.high
        if self.log:
            with np.errstate(divide="ignore", invalid="ignore"):
                numbers, low, high = np.log10(numbers), np.log10(low), np.log10(high)
        return np.asarray((numbers - low) / (high - low))

    def ticks(self, most: int = 5) -> list[Tick]:
        """Return round numbers along the axis."""
        steps = _powers(self.low, self.high, most) if self.log else _steps(self.low, self.high, most)
        if self.whole:
            steps = [x for x in steps if x == round(x)]
        return [Tick(round(100 * float(self.share(x)), 3), self.say(x)) for x in steps]

    def say(self, value: float) -> str:
        """Write a number of this axis."""
        if self.percent:
            return f"{100 * value:.4g} %"
        if self.log and 1e4 <= value < 1e6:  # logarithmic marks are close together
            return f"{value / 1e3:.3g} k"
        return compact(value)


@dataclass(frozen=True)
class Layer:
    """Points of one colour: a ``line`` through them, ``thin`` or ``step``, ``dots``, or ``bars`` from ``low`` on."""

    kind: str
    tone: str
    x: Floats
    y: Floats
    name: str = ""
    low: Floats | None = None


@dataclass
class Chart:
    """A picture with two axes, in words too, and what is read off it; drawn by the page, or by `report.plots`."""

    words: str
    x: Axis
    y: Axis
    layers: list[Layer] = field(default_factory=list)
    height: int = 240
    readout: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> list[Layer]:
        """The layers that have a name, each once."""
        return list({layer.name: layer for layer in self.layers if layer.name}.values())

    def add(
        self, kind: str, x: npt.ArrayLike, y: npt.ArrayLike, tone: str, name: str = "", low: npt.ArrayLike | None = None
    ) -> None:
        """Add a layer."""
        columns = [None if values is None else np.asarray(values, float) for values in (x, y, low)]
        self.layers.append(Layer(kind, tone, columns[0], columns[1], name, columns[2]))  # type: ignore[arg-type]

    def read_off(self, x: npt.ArrayLike, series: Mapping[str, npt.ArrayLike], **more: Any) -> None:
        """Let a pointer or the arrow keys read off these values at every x."""
        rounded = {name: [float(f"{v:.5g}") for v in np.asarray(values, float)] for name, values in series.items()}
        columns = without_nan([{"name": name, "y": y} for name, y in rounded.items()])
        self.readout = {"x": np.asarray(x).tolist(), "low": self.x.low, "high": self.x.high, "series": columns}
        self.readout |= {"percent": self.y.percent, **more}

    def path(self, layer: Layer) -> str:
        """Return a layer as an SVG path; points without a place are left out."""
        x, y = layer.x, layer.y
        if layer.kind == "step":
            x, y = np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]
        low = [] if layer.low is None else [1 - self.y.share(layer.low)]
        places = SIDE * np.array([self.x.share(x), 1 - self.y.share(y), *low])
        px, py, *bottom = places[:, np.isfinite(places).all(axis=0)].round(1).tolist()
        if layer.kind == "dots":
            return "".join(f"M{a} {b}h0" for a, b in zip(px, py, strict=True))
        if bottom:
            return "".join(f"M{a} {c}V{b}" for a, b, c in zip(px, py, bottom[0], strict=True))
        points = [f"{a:g} {b:g}" for a, b in zip(px, py, strict=True)]
        return "M" + "L".join(points) if points else ""


def _steps(low: float, high: float, most: int) -> list[float]:
    """Return multiples of 1, 2, 2.5 or 5 times a power of ten, at most so many.

    >>> _steps(0.03, 0.97, 5), _steps(-1, 41, 5)
    ([0.2, 0.4, 0.6, 0.8], [0.0, 10.0, 20.0, 30.0, 40.0])
    """
    rough = (high - low) / most
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * (1 - 1e-9))
    first, last = int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9))
    return [float(f"{k * step:.10g}") for k in range(first, last + 1)]


def _powers(low: float, high: float, most: int = 5) -> list[float]:
    """Return powers of ten; where there are fewer than three, twice and five times them as well, or even steps.

    >>> _powers(50, 2e4), _powers(3e4, 6e5)
    ([100.0, 1000.0, 10000.0], [50000.0, 100000.0, 200000.0, 500000.0])
    >>> _powers(120, 180)
    [120.0, 140.0, 160.0, 180.0]
    """
    first, last = int(np.ceil(np.log10(low))), int(np.floor(np.log10(high)))
    if last - first > 1:
        return [10.0**k for k in range(first, last + 1, (last - first) // most + 1)]
    finer = [m * 10.0**k for k in range(first - 1, last + 1) for m in (1, 2, 5) if low <= m * 10.0**k <= high]
    return finer if len(finer) > 1 else _steps(low, high, most)
