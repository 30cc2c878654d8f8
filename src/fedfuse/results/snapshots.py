"""How far devices are from each other as a run goes on: a few pictures of all pairs, in a byte each.

A picture is cheap (one matrix product) and small (500 kB for 1,000 devices), and rounds between two of them grow with
their number, so that a run of thousands has about thirty. While the run goes on each is a file in ``snapshots/``; at
the end they are put together in ``snapshots.npz``.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from fedfuse.errors import FedfuseError
from fedfuse.utils.files import atomic_write, read_arrays
from fedfuse.utils.typing import Floats, Ints

log = logging.getLogger(__name__)

FILE, FOLDER = "snapshots.npz", "snapshots"
MOST = 1000  # devices that are looked at, evenly over all
GROWTH = 1.3  # from one picture to the next, in rounds
BLOCK = 1 << 16  # parameters at a time: networks have many

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class DistanceSnapshot:
    """All pairs after a round.

    Attributes
    ----------
    round
        Rounds that were done.
    levels
        For each pair (in the order of scipy's condensed matrices) the root of its distance, in steps of 1/255 of the
        root of the largest: devices that lie may be far out, and the others must still be told apart.
    largest
        The largest distance.
    labels
        The cluster of every device that is looked at, as the method saw it then.
    devices
        Who is looked at.
    """

    round: int
    levels: Bytes
    largest: float
    labels: Ints
    devices: Ints

    @classmethod
    def of(cls, k: int, models: Floats, labels: Ints) -> DistanceSnapshot:
        """Look at the devices' parameters (m x d) after k rounds."""
        devices = looked_at(len(models))
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


def looked_at(m: int) -> Ints:
    """Return the devices of a picture.

    >>> looked_at(3).tolist(), len(looked_at(4321))
    ([0, 1, 2], 1000)
    """
    return np.unique(np.linspace(0, m - 1, min(m, MOST)).round().astype(np.int64))


def distances(points: Floats) -> Floats:
    """Return the distance of every pair of rows (condensed); what is not finite counts as zero.

    >>> distances(np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0]])).tolist()
    [5.0, 5.0, 0.0]
    """
    m = len(points)
    squares = np.zeros((m, m))
    for start in range(0, points.shape[1], BLOCK):
        block = np.nan_to_num(points[:, start : start + BLOCK].astype(np.float64), posinf=0.0, neginf=0.0)
        block -= block.mean(axis=0)  # products of small numbers cancel less
        squares += block @ block.T
    lengths = np.diag(squares)
    apart = np.sqrt(np.maximum(lengths[:, None] + lengths - 2 * squares, 0.0))
    # what rounding leaves between two equal rows
    apart[apart < 1e-7 * np.sqrt(lengths.max(initial=0.0))] = 0.0
    return np.asarray(apart[np.triu_indices(m, 1)])


def due(k: int, last: int | None, new_stage: bool = False) -> bool:
    """Whether there should be a picture after k rounds, the last being of ``last``.

    >>> seen = [0]
    >>> for k in range(1, 40):
    ...     if due(k, seen[-1]):
    ...         seen.append(k)
    >>> seen
    [0, 1, 2, 3, 4, 6, 8, 11, 15, 20, 26, 34]
    """
    return last is None or (k > last and (new_stage or k >= max(last + 1, ceil(GROWTH * last))))


class SnapshotFile:
    """The pictures of a run directory."""

    def __init__(self, directory: Path) -> None:
        self.file, self.folder = directory / FILE, directory / FOLDER

    def rounds(self) -> list[int]:
        """Return the rounds that single files are of."""
        return sorted(int(path.stem) for path in self.folder.glob("*.npz") if path.stem.isdigit())

    def add(self, snapshot: DistanceSnapshot) -> None:
        """Write one picture."""
        self.folder.mkdir(exist_ok=True)
        _write(self._path(snapshot.round), _packed([snapshot]))

    def forget_after(self, k: int) -> None:
        """Remove what is of later rounds: a resumed run comes there again."""
        for later in self.rounds():
            if later > k:
                self._path(later).unlink()
        if self.folder.exists() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    def bind(self) -> None:
        """Put all pictures of a finished run in one file."""
        if pages := self.load():
            _write(self.file, _packed(pages))
        shutil.rmtree(self.folder, ignore_errors=True)  # with what a killed process may have left half-written

    def load(self) -> list[DistanceSnapshot]:
        """Return all pictures, of a run that goes on or of a finished one; none where none were made.

        What cannot be read is left out, with a note: no result depends on it.
        """
        if not self.folder.exists() and self.file.exists():
            return _readable(self.file)
        pages = [page for k in self.rounds() for page in _readable(self._path(k))]
        return [page for page in pages if np.array_equal(page.devices, pages[-1].devices)]

    def _path(self, k: int) -> Path:
        return self.folder / f"{k:08d}.npz"


def _write(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    with atomic_write(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _packed(pages: Sequence[DistanceSnapshot]) -> dict[str, npt.NDArray[Any]]:
    columns = {name: np.stack([getattr(page, name) for page in pages]) for name in ("round", "levels", "largest")}
    return {**columns, "labels": np.stack([page.labels for page in pages]), "devices": pages[0].devices}


def _readable(path: Path) -> list[DistanceSnapshot]:
    try:
        return _unpacked(path)
    except FedfuseError as problem:
        log.warning("a picture is left out: %s", problem)
        return []


def _unpacked(path: Path) -> list[DistanceSnapshot]:
    arrays = read_arrays(path)
    try:
        devices = arrays["devices"]
        m = len(devices)
        if arrays["levels"].shape[1:] != (m * (m - 1) // 2,) or arrays["labels"].shape[1:] != (m,):
            raise ValueError(f"levels of shape {arrays['levels'].shape} for {m} devices")
        rows = zip(*(arrays[name] for name in ("round", "levels", "largest", "labels")), strict=True)
        return [
            DistanceSnapshot(int(k), levels, float(largest), labels, devices) for k, levels, largest, labels in rows
        ]
    except (KeyError, TypeError, ValueError) as gap:
        raise FedfuseError(f"{path} holds no snapshots of fedfuse: {gap}") from None
