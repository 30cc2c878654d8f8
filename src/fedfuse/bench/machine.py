"""The machine: what it is, and what it can do at best."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np

from fedfuse.utils.threads import allowed, spread

PASSES = 4


def describe() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": allowed(),
        "memory_bytes": _memory(),
        "system": platform.platform(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of what the figures depend on."""
    names = ("fedfuse", "numpy", "numba", "llvmlite", "scipy")
    return {"python": sys.version.split()[0], **{name: importlib.metadata.version(name) for name in names}}


class Triad:
    """a <- b + 3 c on three arrays of float32: the memory's bandwidth as STREAM counts it."""

    def __init__(self, size: int) -> None:
        self._arrays = tuple(np.full(size, x, np.float32) for x in (0.0, 1.0, 2.0))
        self._parts = np.linspace(0, size, 2 * allowed() + 1).astype(np.int64)
        self.bytes = PASSES * sum(array.nbytes for array in self._arrays)

    def run(self) -> None:
        """Move `bytes`."""
        a, b, c = self._arrays
        cost = np.diff(self._parts) * float(PASSES)
        spread(lambda jobs: _triad(a, b, c, self._parts, jobs), cost)


class Sgemm:
    """A product of square float32 matrices: the rate of arithmetic."""

    def __init__(self, side: int) -> None:
        self._matrix = np.random.default_rng(0).normal(size=(side, side)).astype(np.float32)
        self.operations = 2.0 * side**3

    def run(self) -> None:
        """Do `operations`."""
        self._matrix @ self._matrix


@numba.njit(cache=True, nogil=True)
def _triad(a: Any, b: Any, c: Any, parts: Any, jobs: Any) -> None:
    # several passes in one go: starting threads should not count
    scalar = np.float32(3)
    for _ in range(PASSES):
        for job in jobs:
            first, last = parts[job], parts[job + 1]
            x, y, z = a[first:last], b[first:last], c[first:last]
            for e in range(x.size):
                x[e] = y[e] + scalar * z[e]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
