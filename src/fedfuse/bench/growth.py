"""How cost grows: a server step with devices and with parameters, local steps with rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from fedfuse.bench.local import WORK
from fedfuse.bench.server import APART, PENALTY, grouped, some_rounds
from fedfuse.bench.sizes import BenchSizes
from fedfuse.bench.timing import race
from fedfuse.data.federation import Rows
from fedfuse.models import SoftmaxRegression
from fedfuse.pairs.state import FusionState

DEVICES, FEATURES, CLASSES = 10, 60, 10


@dataclass(frozen=True)
class Curve:
    """Seconds of ``what`` for some values of ``over``, and the bytes of pairs where there are any."""

    what: str
    over: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    nbytes: tuple[int, ...] = ()

    @property
    def exponent(self) -> float:
        return exponent(self.sizes, self.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return the curve for a JSON file."""
        return {**asdict(self), "exponent": self.exponent}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Curve:
        """Undo `to_dict`."""
        many = (tuple(content[name]) for name in ("sizes", "seconds", "nbytes"))
        return cls(content["what"], content["over"], *many)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of the last three points on logarithmic axes.

    >>> round(exponent([10, 20, 40], [3, 12, 48]), 3)
    2.0
    """
    return float(np.polyfit(np.log(sizes[-3:]), np.log(values[-3:]), 1)[0])


def curves(sizes: BenchSizes) -> Iterator[Curve]:
    """Measure everything."""
    for over, values in (("devices", sizes.over_m), ("parameters", sizes.over_d)):
        points = [_server(n, sizes.d, sizes) if over == "devices" else _server(sizes.m, n, sizes) for n in values]
        still = f"d = {sizes.d}" if over == "devices" else f"m = {sizes.m}"
        what = f"server step, {still}, 4 groups, {sizes.share:.0%} active"
        yield Curve(what, over, values, tuple(p[0] for p in points), tuple(p[1] for p in points))
    seconds = tuple(_local(n, sizes) for n in sizes.over_rows)
    what = f"{WORK.steps} softmax steps of {DEVICES} devices, {FEATURES} features, {CLASSES} classes"
    yield Curve(what, "rows of a device", sizes.over_rows, seconds)


def _server(m: int, d: int, sizes: BenchSizes) -> tuple[float, int]:
    start = grouped(m, d, APART)
    state, rounds = FusionState(start, PENALTY, warm=True), cycle(some_rounds(start, sizes.share))
    (took,) = race(lambda: state.update(*next(rounds)), seconds=sizes.seconds / 4, burst=8)
    return took, state.nbytes


def _local(n: int, sizes: BenchSizes) -> float:
    rng, start = np.random.default_rng(0), n * np.arange(DEVICES)
    X = rng.normal(size=(DEVICES * n, FEATURES)).astype(np.float32)
    model = SoftmaxRegression().sized(FEATURES, CLASSES)
    data = model.load(Rows(X, rng.integers(0, CLASSES, len(X)), start, start + n), np.float32)
    w, everyone = np.zeros((DEVICES, model.d), np.float32), np.arange(DEVICES)
    (took,) = race(lambda: model.train(data, everyone, w, w, 1.0, WORK), seconds=sizes.seconds / 4)
    return took


def draw(curves: list[Curve], path: Path) -> None:
    """Draw all curves on logarithmic axes, with their exponents."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, len(curves), figsize=(4 * len(curves), 3.4), layout="constrained", squeeze=False)
    for ax, curve in zip(axes[0], curves, strict=True):
        ax.loglog(curve.sizes, np.array(curve.seconds) * 1e3, marker="o", label=f"exponent {curve.exponent:.2f}")
        ax.set(xlabel=curve.over, ylabel="milliseconds", title=curve.what.split(",")[0])
        ax.set_xticks(curve.sizes, [f"{size:,}" for size in curve.sizes])
        ax.set_xticks([], minor=True)
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter(lambda y, _: f"{y:g}" if f"{y:.0e}"[0] in "25" else "")
        ax.grid(alpha=0.3)
        ax.legend()
    figure.savefig(path, dpi=130)
    plt.close(figure)
