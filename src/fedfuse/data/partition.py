"""Partitions of one data set over devices, and what makes groups of devices differ.

A partition is an array that names the device of every row, so parts are disjoint and complete by construction.
Everything here is a function of labels (class numbers) and a generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError
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
    def from_owner(cls, labels: Ints, owner: Ints, devices: int) -> Partition:
        """Return the partition with this owner of every row; a class without rows counts as evenly shared."""
        n_classes = _n_classes(labels)
        counts = np.bincount(labels * devices + owner, minlength=n_classes * devices).reshape(n_classes, devices)
        total = counts.sum(axis=1, keepdims=True)
        return cls(owner, np.where(total > 0, counts / np.maximum(total, 1), 1 / devices))

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


class Partitioner(Protocol):
    """A rule that gives rows to devices."""

    @property
    def advice(self) -> str:
        """What gives small devices more rows."""

    def partition(self, labels: Ints, devices: int, rng: np.random.Generator) -> Partition:
        """Give rows with these class numbers to so many devices."""


@dataclass(frozen=True)
class Dirichlet:
    """For each class one vector of device shares from Dirichlet(alpha, …, alpha).

    The smaller alpha, the more the devices differ in their classes and sizes.

    >>> partition = Dirichlet(1.0).partition(np.repeat([0, 1], 50), 4, np.random.default_rng(0))
    >>> int(partition.counts.sum()), partition.shares.shape
    (100, (2, 4))
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise FedfuseError(f"alpha must be a number above 0, got {self.alpha!r}; for even shares leave it None")

    @property
    def advice(self) -> str:
        return f"a larger alpha (it is {self.alpha:g}), fewer devices, or another seed"

    def partition(self, labels: Ints, devices: int, rng: np.random.Generator) -> Partition:
        """Draw shares for every class, and cut the classes by them."""
        _check_devices(devices, len(labels))
        shares = rng.dirichlet(np.full(devices, self.alpha), size=_n_classes(labels))
        return Partition.by_shares(labels, shares, rng)


@dataclass(frozen=True)
class Even:
    """Devices alike and of one size (to one row): every class evenly over all.

    >>> Even().partition(np.array([0, 0, 0, 1, 1, 1]), 3, np.random.default_rng(0)).counts.tolist()
    [2, 2, 2]
    """

    advice = "fewer devices"

    def partition(self, labels: Ints, devices: int, rng: np.random.Generator) -> Partition:
        """Give the rows of each class, in random order, to one device after the other."""
        _check_devices(devices, len(labels))
        owner = np.empty(len(labels), dtype=np.int64)
        owner[_sorted_by_class(labels, rng)] = np.arange(len(labels)) % devices
        return Partition.from_owner(labels, owner, devices)


@dataclass(frozen=True)
class Shards:
    """Rows sorted by class and cut into shards of one size, a few to each device (McMahan et al., AISTATS 2017).

    With two shards a device has about two classes.
    """

    per_device: int = 2
    advice = "fewer devices, or fewer shards"

    def partition(self, labels: Ints, devices: int, rng: np.random.Generator) -> Partition:
        """Cut the sorted rows into devices x per_device shards, and give each device its number at random."""
        shards = devices * self.per_device
        if self.per_device < 1:
            raise FedfuseError(f"per_device must be at least 1 shard, got {self.per_device}")
        _check_devices(devices, len(labels))
        if shards > len(labels):
            raise FedfuseError(f"{shards} shards need as many rows, but there are {len(labels)}; use {self.advice}")
        order = _sorted_by_class(labels, rng)
        shard = np.arange(len(labels)) * shards // len(labels)
        owner = np.empty(len(labels), dtype=np.int64)
        owner[order] = rng.permutation(np.arange(shards) % devices)[shard]
        return Partition.from_owner(labels, owner, devices)


def _sorted_by_class(labels: Ints, rng: np.random.Generator) -> Ints:
    order = rng.permutation(len(labels))
    return order[np.argsort(labels[order], kind="stable")]


def draw(
    partitioner: Partitioner,
    labels: Ints,
    devices: int,
    rng: np.random.Generator,
    min_rows: int = 1,
    what: str = "rows",
) -> Partition:
    """Draw partitions until every device has at least so many rows, at most `MAX_DRAWS`; ``what`` is for the error."""
    best = partitioner.partition(labels, devices, rng)
    for _ in range(MAX_DRAWS - 1):
        if best.counts.min() >= min_rows:
            break
        best = max(best, partitioner.partition(labels, devices, rng), key=lambda drawn: drawn.counts.min())
    tries = f"in the best of {MAX_DRAWS} tries to deal {len(labels):,} to {devices} devices"
    _check_min_rows(best, min_rows, what, f", {tries}; use {partitioner.advice}")
    return best


def draw_test(
    train: Partition,
    partitioner: Partitioner,
    labels: Ints,
    rng: np.random.Generator,
    min_rows: int = 1,
    test_partition: TestPartition = "independent",
) -> Partition:
    """Partition the test rows: by a new draw, or with the shares of the training rows."""
    if test_partition == "independent":
        return draw(partitioner, labels, train.shares.shape[1], rng, min_rows, "test rows")
    if test_partition != "same_shares":
        known = " or ".join(map(repr, get_args(TestPartition)))
        raise FedfuseError(f"test_partition must be {known}, got {test_partition!r}")
    drawn = Partition.by_shares(labels, train.shares, rng)
    advice = f"its share of the training rows is small; use {partitioner.advice}, or test_partition='independent'"
    _check_min_rows(drawn, min_rows, "test rows", f": {advice}")
    return drawn


def _check_min_rows(partition: Partition, min_rows: int, what: str, advice: str) -> None:
    counts = partition.counts
    i = int(counts.argmin())
    if counts[i] < min_rows:
        raise FedfuseError(f"device {i} of {len(counts)} got {counts[i]} {what}, but needs at least {min_rows}{advice}")


class Grouping(Protocol):
    """A rule that makes devices of different groups differ."""

    @property
    def n_groups(self) -> int:
        """Number of groups."""

    def apply(self, images: Array, labels: Array, group: int) -> tuple[Array, Array]:
        """Return the images (n x … x height x width) and labels that devices of this group have."""


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


def _check_devices(devices: int, rows: int) -> None:
    if not 1 <= devices <= rows:
        raise FedfuseError(f"{rows:,} rows cannot be dealt to {devices} devices; use 1 to {rows:,} devices")
