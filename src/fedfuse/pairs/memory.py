"""Rows that are handed out and given back, in memory that is taken only where rows are in use.

Space for all rows that may ever be in memory is reserved at once. That costs nothing: the system provides a page when
it is first written to. So rows need not move when more are needed, and kernels see one array, however few there are.

Providing a page can take much longer than writing to it, above all where the machine is a virtual one whose host has to
find it first (seen: 0.25 GB/s). So whoever knows how many rows will soon be needed says so (`Pool.provide`).
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError
from fedfuse.utils.threads import spread
from fedfuse.utils.typing import Floats, Ints

Numbers = npt.NDArray[np.int32]

# Bytes below which giving rows back to the system is not worth moving others.
SLACK = 1 << 26
# Share of the memory that is free when a pool is made, and that it may take where nobody sets a limit.
MODEST = 0.9
# Bytes that one thread provides at a time.
PORTION = 1 << 25


class Pool:
    """Up to ``capacity`` rows of ``width`` numbers; numbers 0 … ``used`` - 1 have been handed out at some time.

    Parameters
    ----------
    capacity, width, dtype
        How many rows there may be, and what they are.
    limit
        Bytes of memory that the rows in use may take; nine tenths of what is free by default.
    directory
        Where to put the rows into a file when they would take more than ``limit``; without it that is an error.
    """

    def __init__(
        self, capacity: int, width: int, dtype: npt.DTypeLike, limit: int | None = None, directory: Path | None = None
    ) -> None:
        self.limit, self.directory = limit, directory
        self._allowed = _free_memory() if limit is None else limit
        self.capacity = capacity
        row = width * np.dtype(dtype).itemsize
        here = min(capacity, self._allowed // max(row, 1))
        self._space = _reserve(here * row)
        self.rows = _rows(self._space, here, width, dtype)
        self.used, self._on_disk = 0, False
        self._provided = 0
        self._given_back: Numbers = np.empty(0, np.int32)

    @property
    def row_bytes(self) -> int:
        return int(self.rows.shape[1] * self.rows.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that have been handed out, or provided to be."""
        return max(self.used, self._provided) * self.row_bytes

    @property
    def live(self) -> int:
        """How many rows are in use."""
        return self.used - int(self._given_back.size)

    @property
    def on_disk(self) -> bool:
        return self._on_disk

    def take(self, n: int) -> Numbers:
        """Hand out the numbers of ``n`` rows; what is in them is not defined."""
        old = min(n, self._given_back.size)
        again, self._given_back = self._given_back[:old], self._given_back[old:]
        fresh = np.arange(self.used, self.used + n - old, dtype=np.int32)
        self._make_room(self.used + n - old)
        self.used += n - old
        return np.concatenate([again, fresh])

    def provide(self, n: int) -> None:
        """See to it that the next ``n`` rows are in memory before they are taken, where they are large and allowed."""
        n = self.used + n - self._given_back.size
        done, size = max(self.used, self._provided) * self.row_bytes, n * self.row_bytes
        if self._on_disk or size > self._allowed or size - done < SLACK:
            return
        pages = np.frombuffer(self._space, np.uint8, size)[done :: mmap.PAGESIZE]
        step = PORTION // mmap.PAGESIZE

        def touch(portions: Ints) -> None:
            for k in portions:
                pages[k * step : (k + 1) * step] = 0  # of a row that nobody has

        spread(touch, np.full(-(-len(pages) // step), float(PORTION)))
        self._provided = n

    def give_back(self, numbers: Numbers) -> None:
        """Take these rows back."""
        self._given_back = np.sort(np.concatenate([self._given_back, numbers]))

    @property
    def sparse(self) -> bool:
        """Whether `squeeze` would give enough memory back to the system."""
        idle = self._given_back.size
        return idle > self.used // 2 and idle * self.row_bytes > SLACK

    def squeeze(self, places: Numbers) -> None:
        """Move rows to the front, into the gaps between them; ``places`` are the rows in use, and are changed."""
        live = self.live
        back, gaps = np.flatnonzero(places >= live), self._given_back[self._given_back < live]
        self.rows[gaps] = self.rows[places[back]]
        places[back] = gaps
        first, last = (-(-live * self.row_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE, self.nbytes
        if last > first and hasattr(mmap, "MADV_DONTNEED") and not self._on_disk:
            self._space.madvise(mmap.MADV_DONTNEED, first, last - first)
        self.used, self._provided, self._given_back = live, live, np.empty(0, np.int32)

    def grown(self, capacity: int) -> Pool:
        """Return a pool with the same rows and room for more."""
        if capacity <= self.capacity:
            return self
        pool = Pool(capacity, self.rows.shape[1], self.rows.dtype, self.limit, self.directory)
        pool._allowed, pool._given_back = self._allowed, self._given_back
        pool._make_room(self.used)
        pool.used = self.used
        pool.rows[: self.used] = self.rows[: self.used]
        return pool

    def _make_room(self, n: int) -> None:
        """Make sure that ``n`` rows may be in use."""
        if n * self.row_bytes <= self._allowed or self._on_disk:
            return
        if self.directory is None:
            raise FedfuseError(
                f"{n:,} pairs of devices are within reach of the penalty; their vectors of {self.rows.shape[1]:,} "
                f"numbers take {_text(n * self.row_bytes)}, and {_text(self._allowed)} are allowed: start warm, take a "
                "smaller lambda, raise memory, or name a directory for spill"
            )
        space = _reserve_file(self.capacity * self.row_bytes, self.directory)
        rows = _rows(space, self.capacity, self.rows.shape[1], self.rows.dtype)
        rows[: self.used] = self.rows[: self.used]
        self._space, self.rows, self._on_disk = space, rows, True


def _rows(space: Any, n: int, width: int, dtype: npt.DTypeLike) -> Floats:
    return np.frombuffer(space, dtype, count=n * width).reshape(n, width)


def _reserve(size: int) -> mmap.mmap:
    """Return so many zeros, of which no page is in memory yet."""
    if os.name != "posix":
        return mmap.mmap(-1, max(size, 1))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if sys.platform == "linux":
        flags |= 0x4000  # MAP_NORESERVE, which older Pythons have no name for
    space = mmap.mmap(-1, max(size, 1), flags=flags)
    if hasattr(mmap, "MADV_HUGEPAGE") and size >= SLACK // 32:  # rows are visited far apart
        space.madvise(mmap.MADV_HUGEPAGE)
    return space


def _reserve_file(size: int, directory: Path) -> mmap.mmap:
    """Return so many zeros in a file that is gone with this process."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=directory, prefix="pairs-") as file:
        file.truncate(max(size, 1))
        return mmap.mmap(file.fileno(), max(size, 1))


def _free_memory() -> int:
    """Return the bytes that a pool may take where nobody says."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        known = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
        return int(MODEST * known["MemAvailable"])
    except (OSError, KeyError, ValueError):
        return 1 << 62  # not Linux: the system itself will say


def _text(size: float) -> str:
    """Return a number of bytes as people write it.

    >>> _text(19_764_000_000)
    '19.8 GB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
