"""What benchmarks measure and how: sizes, figures, growth curves, clocks, and the machine's own limits."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numba
import numpy as np

from fedfuse.utils.threads import allowed, spread

MIN_TURN_SECONDS = 0.05
TRIAD_PASSES = 4  # In one call, so that starting threads does not count.
# Times as long as the last size, per ratio of sizes, that the next point of a curve may take.
MAX_GROWTH = 1.5


@dataclass(frozen=True)
class BenchSizes:
    """Sizes of all measured problems."""

    m: int = 100  # devices of the server step that races the textbook
    d: int = 610  # parameters
    share: float = 0.3  # of devices that are active
    large: int = 1000  # devices of the server step that is compared with the memory's bandwidth
    triad: int = 64_000_000  # numbers in each of the three arrays of the bandwidth test
    sgemm: int = 1536  # side of the square matrices whose product tells the rate of arithmetic
    seconds: float = 2.0  # about how long each contestant runs
    rounds: int = 200  # of the whole run
    over_m: tuple[int, ...] = (50, 100, 200, 400, 800)  # growth: devices
    over_d: tuple[int, ...] = (100, 300, 1000, 3000, 10_000)  # growth: parameters
    over_rows: tuple[int, ...] = (30, 100, 300, 1000, 3000)  # growth: rows of a device
    over_points: tuple[int, ...] = (100, 1000, 10_000, 100_000, 1_000_000)  # growth: points and devices of a graph
    linked: int = 10_000  # points that SciPy's linkage joins
    budget: float = 60.0  # seconds for a curve of a graph
    images: int = 500  # rows of each device that trains the paper's network for an epoch


FULL = BenchSizes()
QUICK = BenchSizes(
    m=40, d=210, large=200, triad=8_000_000, sgemm=512, seconds=0.3, rounds=20, over_m=(20, 40, 80),
    over_d=(50, 100, 200), over_rows=(20, 40, 80), over_points=(100, 1000, 10_000), linked=1000, budget=10.0,
    images=100,
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A measured number, what it is measured against, and their ratio."""

    name: str  # a few words for the table
    what: str  # what was measured, with its sizes
    against: str
    value: float
    reference: float
    unit: str  # of value and reference
    goal: float | None = None  # of the ratio; None for information only
    sense: Literal["at least", "at most"] = "at least"

    @property
    def ratio(self) -> float:
        """How many times as fast as the reference where seconds should be few; else the share of the reference."""
        faster = self.unit == "s" and self.sense == "at least"
        return self.reference / self.value if faster else self.value / self.reference

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal."""
        if self.goal is None:
            return None
        return bool(self.ratio >= self.goal if self.sense == "at least" else self.ratio <= self.goal)

    def to_dict(self, *, judged: bool) -> dict[str, Any]:
        """Return the figure for a JSON file."""
        numbers = {name: float(getattr(self, name)) for name in ("value", "reference", "ratio")}
        return {**asdict(self), **numbers, "met": self.met if judged else None}


def cells(figure: dict[str, Any]) -> tuple[str, str, str, str]:
    """Return value, reference, ratio and goal of a figure (`Figure.to_dict`) in words."""
    value, reference = (readable(figure[name], figure["unit"]) for name in ("value", "reference"))
    goal = "" if figure["goal"] is None else f"{figure['sense']} {figure['goal']:g}"
    return value, reference, f"{figure['ratio']:.3g}", goal


@dataclass(frozen=True)
class Curve:
    """Seconds of ``what`` for some values of ``over``."""

    what: str
    over: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]

    @classmethod
    def measured(
        cls, what: str, over: str, sizes: Sequence[int], case: Callable[[int], float], budget: float = np.inf
    ) -> Curve:
        """Measure what ``case`` takes for each size, as far as ``budget`` seconds last."""
        seconds: list[float] = []
        began = time.perf_counter()
        for n, following in zip(sizes, (*sizes[1:], sizes[-1]), strict=True):
            turn = time.perf_counter()
            seconds.append(case(n))
            now = time.perf_counter()
            if now - began + MAX_GROWTH * following / n * (now - turn) > budget:
                break
        return cls(what, over, tuple(sizes[: len(seconds)]), tuple(seconds))

    @property
    def exponent(self) -> float:
        """The growth exponent: the slope of the last three points on logarithmic axes.

        >>> round(Curve("steps", "devices", (10, 20, 40), (3, 12, 48)).exponent, 3)
        2.0
        """
        return float(np.polyfit(np.log(self.sizes[-3:]), np.log(self.seconds[-3:]), 1)[0])

    @property
    def points(self) -> str:
        """Sizes and seconds in words."""
        return ", ".join(f"{n:,}: {readable(took, 's')}" for n, took in zip(self.sizes, self.seconds, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return the curve for a JSON file."""
        return {**asdict(self), "exponent": self.exponent}


def readable(value: float, unit: str) -> str:
    """Write a number with its unit.

    >>> readable(0.00042, "s"), readable(1234567.0, "bytes"), readable(31.25, "GB/s")
    ('420 us', '1.23 MB', '31.2 GB/s')
    """
    scales = {"s": ((1e-6, "us"), (1e-3, "ms"), (1.0, "s")), "bytes": ((1e6, "MB"), (1e9, "GB"))}
    steps = scales.get(unit, ((1.0, unit),))
    power, name = next((step for step in steps if value < 1e3 * step[0]), steps[-1])
    return f"{value / power:.3g} {name}".rstrip()


def once(run: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how many seconds one call takes."""
    start = clock()
    run()
    return clock() - start


def race(
    *runs: Callable[[], object], seconds: float, burst: int = 3, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the best time of each contestant: other processes only ever make things slower.

    They take turns, so that a busy moment of the machine hits all alike. In its turn each runs ``burst`` times, so
    that it finds its own data in the caches, and for at least `MIN_TURN_SECONDS`: the best of few short calls would
    owe more to luck than the best of as many long ones.
    """
    best = [once(run, clock) for run in runs]  # This also compiles.
    spent = 0.0
    while spent < seconds * len(runs):
        for i, run in enumerate(runs):
            turn, calls = 0.0, 0
            while calls < burst or turn < min(MIN_TURN_SECONDS, seconds):
                took = once(run, clock)
                best[i] = min(best[i], took)
                turn, calls = turn + took, calls + 1
            spent += turn
    return best


class Triad:
    """a <- b + 3 c on three arrays of float32: the memory's bandwidth as STREAM counts it."""

    def __init__(self, size: int) -> None:
        self._arrays = tuple(np.full(size, x, np.float32) for x in (0.0, 1.0, 2.0))
        self._parts = np.linspace(0, size, 2 * allowed() + 1).astype(np.int64)
        self.bytes = TRIAD_PASSES * sum(array.nbytes for array in self._arrays)

    def run(self) -> None:
        """Move `bytes`."""
        a, b, c = self._arrays
        spread(lambda jobs: _triad(a, b, c, self._parts, jobs), np.diff(self._parts) * float(TRIAD_PASSES))


@numba.njit(cache=True, nogil=True)
def _triad(a: Any, b: Any, c: Any, parts: Any, jobs: Any) -> None:
    scalar = np.float32(3)
    for _ in range(TRIAD_PASSES):
        for job in jobs:
            first, last = parts[job], parts[job + 1]
            x, y, z = a[first:last], b[first:last], c[first:last]
            for e in range(x.size):
                x[e] = y[e] + scalar * z[e]


def describe_machine() -> dict[str, Any]:
    """Return what the figures depend on; None for what this system does not tell."""
    try:
        memory: int | None = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        memory = None
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": allowed(),
        "memory_bytes": memory,
        "system": platform.platform(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that the figures depend on."""
    names = ("fedfuse", "numpy", "numba", "llvmlite", "scipy")
    return {"python": sys.version.split()[0], **{name: importlib.metadata.version(name) for name in names}}


def _processor() -> str:
    """Return the processor's name, which Python knows on some systems alone."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
