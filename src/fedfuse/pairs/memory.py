"""Pool of pair vectors: rows are handed out and returned; memory is used only where rows are in use.

Address space for all rows is reserved at once and costs nothing: the system provides a page when it is first written.
So rows never move when more are needed, and kernels see one array.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError
from fedfuse.utils.typing import Floats

Numbers = npt.NDArray[np.int32]

# Below so many bytes, returning rows to the system is not worth moving others.
MIN_RETURNED_BYTES = 1 << 26
# Share of the free memory that a pool may take.
MAX_MEMORY_RATIO = 0.9


class Pool:
    """At most ``capacity`` rows of ``width`` numbers, as memory is free; ``used`` have been handed out at some time."""

    def __init__(self, capacity: int, width: int, dtype: npt.DTypeLike) -> None:
        self._allowed = free_memory()
        row = width * np.dtype(dtype).itemsize
        here = min(capacity, self._allowed // max(row, 1))
        self._space = _reserve(here * row)
        self.rows: Floats = np.frombuffer(self._space, dtype, count=here * width).reshape(here, width)
        self.used = 0
        self._returned: Numbers = np.empty(0, np.int32)

    @property
    def row_bytes(self) -> int:
        return int(self.rows.shape[1] * self.rows.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that have been handed out."""
        return self.used * self.row_bytes

    @property
    def live(self) -> int:
        """Number of rows in use."""
        return self.used - int(self._returned.size)

    def take(self, n: int) -> Numbers:
        """Hand out the numbers of ``n`` rows; until some are returned they are zeros, then undefined."""
        old = min(n, self._returned.size)
        fresh = np.arange(self.used, self.used + n - old, dtype=np.int32)
        if (total := self.used + fresh.size) > len(self.rows):
            raise FedfuseError(
                f"{total:,} pairs of devices are within reach of the penalty; their vectors of {self.rows.shape[1]:,} "
                f"numbers take {total * self.row_bytes / 1e3:,.0f} kB, and {self._allowed / 1e3:,.0f} kB are free: "
                "use a warm start, a smaller lambda, or fuse only neighbours with graph='knn:10'"
            )
        again, self._returned, self.used = self._returned[:old], self._returned[old:], total
        return np.concatenate([again, fresh])

    def give_back(self, numbers: Numbers) -> None:
        """Take these rows back."""
        self._returned = np.sort(np.concatenate([self._returned, numbers]))

    def compact(self, where: Numbers) -> None:
        """Move rows to the front where much is idle, and return memory; changes ``where`` (negative: no row)."""
        idle, live = self._returned.size, self.live
        if idle <= self.used // 2 or idle * self.row_bytes <= MIN_RETURNED_BYTES:
            return
        moving, gaps = np.flatnonzero(where >= live), self._returned[self._returned < live]
        self.rows[gaps] = self.rows[where[moving]]
        where[moving] = gaps
        first, last = (-(-live * self.row_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE, self.nbytes
        if last > first and hasattr(mmap, "MADV_DONTNEED"):
            self._space.madvise(mmap.MADV_DONTNEED, first, last - first)
        self.used, self._returned = live, np.empty(0, np.int32)


def free_memory() -> int:
    """Return the bytes that a pool may take."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        known = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
        return int(MAX_MEMORY_RATIO * known["MemAvailable"])
    except (OSError, KeyError, ValueError):
        return 1 << 62  # not Linux: the system itself will say


def _reserve(size: int) -> mmap.mmap:
    """Reserve zeros without a page in memory."""
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
    space = mmap.mmap(-1, max(size, 1), **private)
    if hasattr(mmap, "MADV_HUGEPAGE") and size >= MIN_RETURNED_BYTES // 32:  # rows are visited far apart
        space.madvise(mmap.MADV_HUGEPAGE)
    return space
