"""Charts of the report: paths in a box of 1000 x 1000 that the page stretches, with words beside it in HTML.

So a chart fits a phone and a wide screen alike, its letters keep their size, its lines their width, and it needs no
script to be seen. Templates escape all words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.utils.typing import Floats

SIDE = 1000


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where, from 0 to 100, and what it says."""

    at: float
    words: str


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers that runs from 0 to 1 on the page, evenly or by powers of ten."""

    low: float
    high: float
    log: bool = False
    percent: bool = False
    whole: bool = False  # numbers of things: nothing between two of them
    words: str = ""

    @classmethod
    def around(cls, values: npt.ArrayLike, *, margin: float = 0.04, **how: Any) -> Axis:
        """Return an axis with room for these values."""
        finite = np.asarray(values, float)
        finite = finite[np.isfinite(finite)]
        if how.get("log"):
            finite = finite[finite > 0]
        empty = (1.0, 10.0) if how.get("log") else (0.0, 1.0)
        low, high = (float(finite.min()), float(finite.max())) if finite.size else empty
        if how.get("log"):
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
        if self.log and 1e4 <= value < 1e6:  # marks are close together, and these long
            return f"{value / 1e3:.3g} k"
        return compact(value)


@dataclass(frozen=True)
class Layer:
    """Lines or dots of one colour."""

    kind: str  # line, step, dots, area
    tone: str
    d: str
    name: str = ""


@dataclass(frozen=True)
class Label:
    """A name beside a dot, in per cent of the box; to the left of it, where there is no room to the right."""

    x: float
    y: float
    text: str
    left: bool = False


# of a box on a phone, in per cent: what a letter and the gap beside a dot take along it, and what a line takes across
LETTER, GAP, LINE = 2.8, 4.0, 6.5


def spread_out(spots: Sequence[Label]) -> list[Label]:
    """Move names up and down until no two of them overlap, nor lie on the dot of another; dots stay where they are.

    >>> [round(label.y, 1) for label in spread_out([Label(10, 50, "one"), Label(11, 51, "two")])]
    [56.5, 44.5]
    """
    placed: list[Label] = []
    steps = [0.0, *(side * LINE * k for k in range(1, 12) for side in (1, -1))]
    for spot in spots:
        left = spot.x + GAP + LETTER * len(spot.text) > 100
        others = [s for s in spots if s is not spot]
        tries = [replace(spot, y=spot.y + step, left=left) for step in steps if 0 <= spot.y + step <= 100]
        free = (t for t in tries if not any(_overlap(t, o) for o in placed) and not any(_covers(t, o) for o in others))
        placed.append(next(free, replace(spot, left=left)))
    return placed


def _extent(label: Label) -> tuple[float, float]:
    width = GAP + LETTER * len(label.text)
    return (label.x - width, label.x) if label.left else (label.x, label.x + width)


def _overlap(one: Label, other: Label) -> bool:
    (a, b), (c, d) = _extent(one), _extent(other)
    return a < d and c < b and abs(one.y - other.y) < LINE


def _covers(label: Label, spot: Label) -> bool:
    low, high = _extent(label)
    return low - GAP / 2 < spot.x < high + GAP / 2 and abs(label.y - spot.y) < LINE * 0.75


@dataclass
class Chart:
    """A picture with two axes, what it says in words, and what a pointer or the arrow keys read off it."""

    words: str
    x: Axis
    y: Axis
    layers: list[Layer] = field(default_factory=list)
    height: int = 240
    readout: dict[str, Any] = field(default_factory=dict)
    names: bool = True  # whether layers with a name are in the key

    @property
    def key(self) -> list[Layer]:
        """The layers that have a name, each once."""
        return list({layer.name: layer for layer in self.layers if layer.name}.values())

    def line(self, x: npt.ArrayLike, y: npt.ArrayLike, tone: str, name: str = "") -> None:
        """Add a line through the points."""
        self.layers.append(Layer("line", tone, line_path(*self._places(x, y)), name))

    def step(self, x: npt.ArrayLike, y: npt.ArrayLike, tone: str, name: str = "") -> None:
        """Add a line that stays until the next point."""
        twice_x, twice_y = np.repeat(x, 2)[1:], np.repeat(y, 2)[:-1]
        self.layers.append(Layer("line", tone, line_path(*self._places(twice_x, twice_y)), name))

    def area(self, x: npt.ArrayLike, y: npt.ArrayLike, tone: str, name: str = "") -> None:
        """Add a line and the area below it."""
        px, py = self._places(x, y)
        if len(px):
            closed = f"{line_path(px, py)}L{px[-1]} {SIDE}L{px[0]} {SIDE}Z"
            self.layers.append(Layer("area", tone, closed))
        self.line(x, y, tone, name)

    def dots(self, x: npt.ArrayLike, y: npt.ArrayLike, tone: str, name: str = "") -> None:
        """Add dots."""
        px, py = self._places(x, y)
        self.layers.append(Layer("dots", tone, "".join(f"M{a} {b}h0" for a, b in zip(px, py, strict=True)), name))

    def bars(self, x: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike, tone: str, name: str = "") -> None:
        """Add upright lines from low to high."""
        one, other = self._places(x, low, keep=True), self._places(x, high, keep=True)
        d = "".join(f"M{a} {b}V{c}" for a, b, c in zip(*one, other[1], strict=True) if b is not None and c is not None)
        self.layers.append(Layer("thin", tone, d, name))

    def _places(self, x: npt.ArrayLike, y: npt.ArrayLike, *, keep: bool = False) -> tuple[list[Any], list[Any]]:
        px, py = SIDE * self.x.share(x), SIDE * (1 - self.y.share(y))
        good = np.isfinite(px) & np.isfinite(py)
        if keep:
            return px.round(1).tolist(), [v if ok else None for v, ok in zip(py.round(1).tolist(), good, strict=True)]
        return px[good].round(1).tolist(), py[good].round(1).tolist()


def line_path(x: Sequence[float], y: Sequence[float]) -> str:
    """Return an SVG path through points.

    >>> line_path([0, 10.5], [1, 2])
    'M0 1L10.5 2'
    """
    points = [f"{a:g} {b:g}" for a, b in zip(x, y, strict=True)]
    return "M" + "L".join(points) if points else ""


def compact(value: float) -> str:
    """Write a number shortly.

    >>> [compact(v) for v in (0, 0.25, 12, 1500, 2.5e6, 11_754_835, 3e9, 1e-7)]
    ['0', '0.25', '12', '1,500', '2.5 M', '11.8 M', '3 G', '1e-07']
    """
    for size, letter in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:.3g} {letter}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


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
