"""Snapshots of all pairwise distances during a run, one byte per pair.

A snapshot costs one matrix product and 500 kB for 1,000 devices. The rounds between two of them grow with their number,
so that a run of thousands of rounds has about thirty. They are in ``snapshots.npz``, without a compression until the
end.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy

from fedfuse.errors import FedfuseError
from fedfuse.utils.files import read_arrays, write_arrays
from fedfuse.utils.typing import Floats, Ints

log = logging.getLogger(__name__)

FILE = "snapshots.npz"
_COLUMNS = ("round", "levels", "largest", "labels")
MAX_DEVICES = 1000  # Of more devices, so many are sampled evenly.
GROWTH_RATIO = 1.3  # Rounds of a snapshot, in multiples of those of the one before.
BLOCK_COLUMNS = 1 << 16  # Parameters at a time: networks have many.

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class DistanceSnapshot:
    """Distances of all pairs of the sampled devices after a round.

    ``levels`` has for each pair (in the order of scipy's condensed matrices) the root of its distance, in steps of
    1/255 of the root of the largest: lying devices may be far out, and the others must still be told apart.
    """

    round: int
    levels: Bytes
    largest: float
    labels: Ints  # The group of every sampled device after that round.
    devices: Ints  # Which devices these are.

    @classmethod
    def of(cls, k: int, models: Floats, labels: Ints) -> DistanceSnapshot:
        """Take a snapshot of the devices' parameters (m x d) after k rounds."""
        devices = thinned(len(models), MAX_DEVICES)
        pairs = distances(np.asarray(models)[devices])
        largest = float(pairs.max(initial=0.0))
        levels = np.sqrt(pairs / largest) if largest > 0 else np.zeros_like(pairs)
        return cls(k, np.rint(255 * levels).astype(np.uint8), largest, np.asarray(labels)[devices], devices)

    @property
    def pairs(self) -> Floats:
        """The distance of every pair (condensed)."""
        return np.asarray(np.square(self.levels / 255.0) * self.largest)

    @property
    def matrix(self) -> Floats:
        """The distances as a matrix."""
        return np.asarray(scipy.spatial.distance.squareform(self.pairs)) if self.levels.size else np.zeros((1, 1))


def thinned(n: int, most: int) -> Ints:
    """Return at most so many positions of n, evenly from the first to the last.

    >>> thinned(3, 5).tolist(), thinned(101, 3).tolist()
    ([0, 1, 2], [0, 50, 100])
    """
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64))


def distances(points: Floats) -> Floats:
    """Return the distance of every pair of rows (condensed); what is not finite counts as zero.

    >>> distances(np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0]])).tolist()
    [5.0, 5.0, 0.0]
    """
    m = len(points)
    squares = np.zeros((m, m))
    for start in range(0, points.shape[1], BLOCK_COLUMNS):
        block = np.nan_to_num(points[:, start : start + BLOCK_COLUMNS].astype(np.float64), posinf=0.0, neginf=0.0)
        block -= block.mean(axis=0)  # less cancellation in the products
        squares += block @ block.T
    lengths = np.diag(squares)
    apart = np.sqrt(np.maximum(lengths[:, None] + lengths - 2 * squares, 0.0))
    # Equal rows have distance zero, whatever rounding leaves.
    apart[apart < 1e-7 * np.sqrt(lengths.max(initial=0.0))] = 0.0
    return np.asarray(apart[np.triu_indices(m, 1)])


def due(k: int, last: int | None, new_stage: bool = False) -> bool:
    """Whether a snapshot is due after k rounds, when the last one was taken after ``last``.

    >>> seen = [0]
    >>> for k in range(1, 40):
    ...     if due(k, seen[-1]):
    ...         seen.append(k)
    >>> seen
    [0, 1, 2, 3, 4, 6, 8, 11, 15, 20, 26, 34]
    """
    return last is None or (k > last and (new_stage or k >= max(last + 1, ceil(GROWTH_RATIO * last))))


class SnapshotFile:
    """The snapshots of a run directory."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE

    def save(self, pages: Sequence[DistanceSnapshot], *, compress: bool = False) -> None:
        """Write all snapshots so far."""
        columns = {name: np.stack([getattr(page, name) for page in pages]) for name in _COLUMNS}
        write_arrays(self.path, {**columns, "devices": pages[0].devices}, compress=compress)

    def load(self) -> list[DistanceSnapshot]:
        """Return all snapshots; a file that cannot be read is left out, with a note, as no result depends on it."""
        if not self.path.exists():
            return []
        try:
            arrays = read_arrays(self.path)
            devices = arrays["devices"]
            m = len(devices)
            if arrays["levels"].shape[1:] != (m * (m - 1) // 2,) or arrays["labels"].shape[1:] != (m,):
                raise ValueError(f"levels of shape {arrays['levels'].shape} for {m} devices")
            rows = zip(*(arrays[name] for name in _COLUMNS), strict=True)
            return [DistanceSnapshot(int(k), seen, float(top), labels, devices) for k, seen, top, labels in rows]
        except FedfuseError as problem:
            why = str(problem)
        except (KeyError, TypeError, ValueError) as gap:
            why = f"{self.path} holds no snapshots of fedfuse: {gap}"
        log.warning("snapshots are left out: %s", why)
        return []
