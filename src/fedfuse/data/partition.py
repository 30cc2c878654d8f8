"""Partitions of one data set over devices, and what makes groups of devices differ.

A partition is an array that names the device of every row, so parts are disjoint and complete by construction.
Everything here is a function of labels (class numbers) and a generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError, check_choice
from fedfuse.utils.typing import Floats, Ints

TestPartition: TypeAlias = Literal["independent", "same_shares"]
Array: TypeAlias = npt.NDArray[Any]
MAX_DRAWS = 100


@dataclass(frozen=True)
class Partition:
    """A partition of rows: the device of each, and each device's intended share of each class (classes x devices)."""

    owner: Ints
    shares: Floats

    @property
    def counts(self) -> Ints:
        """Rows per device."""
        return np.bincount(self.owner, minlength=self.shares.shape[1]).astype(np.int64)

    def rows(self) -> list[Ints]:
        """Return each device's rows, in increasing order."""
        return np.split(np.argsort(self.owner, kind="stable"), np.cumsum(self.counts)[:-1])

    @classmethod
    def by_shares(cls, labels: Ints, shares: Floats, rng: np.random.Generator) -> Partition:
        """Permute the rows, and cut those of each class at floor(cumulative share x rows of the class).

        Each row of ``shares`` (classes x devices) sums to 1; what rounding leaves over goes to the last device.
        """
        if _n_classes(labels) > len(shares):
            raise FedfuseError(f"there are shares for {len(shares)} classes, but a row has class {labels.max()}")
        order = rng.permutation(len(labels))
        owner = np.empty(len(labels), dtype=np.int64)
        for c, share in enumerate(shares):
            rows = order[labels[order] == c]
            ends = np.floor(np.cumsum(share)[:-1] * len(rows))
            owner[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
        return cls(owner, shares)


def deal(labels: Ints, devices: int, alpha: float | None, rng: np.random.Generator) -> Partition:
    """Give rows with these class numbers to devices: each class by shares from Dirichlet(alpha, …, alpha).

    The smaller alpha, the more the devices differ in their classes and sizes. With None they are alike and of one size
    (to one row): the rows of each class, in random order, go to one device after the other.

    >>> partition = deal(np.repeat([0, 1], 50), 4, 1.0, np.random.default_rng(0))
    >>> int(partition.counts.sum()), partition.shares.shape
    (100, (2, 4))
    >>> deal(np.array([0, 0, 0, 1, 1, 1]), 3, None, np.random.default_rng(0)).counts.tolist()
    [2, 2, 2]
    """
    rows = len(labels)
    if not 1 <= devices <= rows:
        raise FedfuseError(f"{rows:,} rows cannot be dealt to {devices} devices; use 1 to {rows:,} devices")
    if alpha is None:
        order, owner = rng.permutation(rows), np.empty(rows, dtype=np.int64)
        owner[order[np.argsort(labels[order], kind="stable")]] = np.arange(rows) % devices
        return Partition(owner, np.full((_n_classes(labels), devices), 1 / devices))
    if not 0 < alpha < np.inf:
        raise FedfuseError(f"alpha must be a number above 0, got {alpha!r}; for even shares leave it None")
    return Partition.by_shares(labels, rng.dirichlet(np.full(devices, alpha), size=_n_classes(labels)), rng)


def draw(
    labels: Ints, devices: int, alpha: float | None, rng: np.random.Generator, min_rows: int = 1, what: str = "rows"
) -> Partition:
    """Draw partitions until every device has at least so many rows, at most `MAX_DRAWS`; ``what`` is for the error."""
    best = deal(labels, devices, alpha, rng)
    for _ in range(MAX_DRAWS - 1):
        if best.counts.min() >= min_rows:
            break
        best = max(best, deal(labels, devices, alpha, rng), key=lambda drawn: drawn.counts.min())
    tries = f"in the best of {MAX_DRAWS} tries to deal {len(labels):,} to {devices} devices"
    _check_min_rows(best, min_rows, what, f", {tries}; use {_advice(alpha)}")
    return best


def draw_test(
    train: Partition,
    labels: Ints,
    alpha: float | None,
    rng: np.random.Generator,
    min_rows: int = 1,
    test_partition: TestPartition = "independent",
) -> Partition:
    """Partition the test rows: by a new draw, or with the shares of the training rows."""
    check_choice("test_partition", test_partition, TestPartition)
    if test_partition == "independent":
        return draw(labels, train.shares.shape[1], alpha, rng, min_rows, "test rows")
    drawn = Partition.by_shares(labels, train.shares, rng)
    advice = f"its share of the training rows is small; use {_advice(alpha)}, or test_partition='independent'"
    _check_min_rows(drawn, min_rows, "test rows", f": {advice}")
    return drawn


def _advice(alpha: float | None) -> str:
    """Say what gives small devices more rows."""
    return "fewer devices" if alpha is None else f"a larger alpha (it is {alpha:g}), fewer devices, or another seed"


def _check_min_rows(partition: Partition, min_rows: int, what: str, advice: str) -> None:
    counts = partition.counts
    i = int(counts.argmin())
    if counts[i] < min_rows:
        raise FedfuseError(f"device {i} of {len(counts)} got {counts[i]} {what}, but needs at least {min_rows}{advice}")


@dataclass(frozen=True)
class LabelSwap:
    """Each group exchanges two labels: c and 8 - c in group c, as in the paper, by default.

    >>> LabelSwap().apply(np.zeros((3, 2, 2)), np.array([1, 7, 5]), group=1)[1].tolist()
    [7, 1, 5]
    """

    swaps: tuple[tuple[int, int], ...] = ((0, 8), (1, 7), (2, 6), (3, 5))

    @property
    def n_groups(self) -> int:
        return len(self.swaps)

    def apply(self, images: Array, labels: Array, group: int) -> tuple[Array, Array]:
        """Exchange the group's two labels; leave the images."""
        a, b = self.swaps[group]
        return images, np.where(labels == a, b, np.where(labels == b, a, labels)).astype(labels.dtype)


@dataclass(frozen=True)
class Rotation:
    """Each group rotates its images counter-clockwise by its number of degrees (multiples of 90).

    >>> Rotation().apply(np.array([[[1, 2], [3, 4]]]), np.array([0]), group=1)[0].tolist()
    [[[2, 4], [1, 3]]]
    """

    degrees: tuple[int, ...] = (0, 90, 180, 270)

    @property
    def n_groups(self) -> int:
        return len(self.degrees)

    def apply(self, images: Array, labels: Array, group: int) -> tuple[Array, Array]:
        """Rotate the images, as a view; leave the labels."""
        turns, rest = divmod(self.degrees[group], 90)
        height, width = images.shape[-2:]
        if rest:
            raise FedfuseError(f"images are turned by multiples of 90 degrees, got {self.degrees[group]}")
        if turns % 2 and height != width:
            raise FedfuseError(f"images of {height} x {width} pixels are not square: turn them by 0 or 180 degrees")
        return np.rot90(images, turns, axes=(-2, -1)), labels


# What makes devices of different groups differ.
Grouping: TypeAlias = LabelSwap | Rotation


def consecutive_groups(devices: int, n_groups: int) -> Ints:
    """Return the group of every device: consecutive devices together, sizes as even as possible.

    >>> consecutive_groups(5, 2).tolist()
    [0, 0, 0, 1, 1]
    """
    if devices < n_groups:
        raise FedfuseError(f"{n_groups} groups need at least as many devices, got devices={devices}")
    return np.sort(np.arange(devices) % n_groups)


def _n_classes(labels: Ints) -> int:
    return int(labels.max(initial=-1)) + 1
