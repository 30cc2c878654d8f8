"""Who gets which rows, and what makes groups of devices differ: partitions of one data set over devices.

A partition is an array that names the device of every row, so parts are disjoint and complete by construction.
Everything here is a function of labels (class numbers) and a generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from fedfuse.data.table_columns import natural
from fedfuse.errors import FedfuseError
from fedfuse.utils.typing import Floats, Ints

TestPartition: TypeAlias = Literal["independent", "same_shares"]
Array: TypeAlias = npt.NDArray[Any]
TRIES = 100


@dataclass(frozen=True)
class Deal:
    """A partition of rows over devices.

    Attributes
    ----------
    owner
        The device of every row.
    shares
        Which share of each class each device was to get (classes x devices).
    """

    owner: Ints
    shares: Floats

    @property
    def counts(self) -> Ints:
        """Rows per device."""
        return np.bincount(self.owner, minlength=self.shares.shape[1]).astype(np.int64)

    def rows(self) -> list[Ints]:
        """Return each device's rows, in increasing order."""
        return np.split(np.argsort(self.owner, kind="stable"), np.cumsum(self.counts)[:-1])


class Partitioner(Protocol):
    """A rule that deals rows to devices."""

    @property
    def advice(self) -> str:
        """What gives small devices more rows."""
        ...

    def deal(self, labels: Ints, devices: int, rng: np.random.Generator) -> Deal:
        """Deal rows with these class numbers to so many devices."""
        ...


@dataclass(frozen=True)
class Dirichlet:
    """For each class one vector of device shares from Dirichlet(alpha, …, alpha).

    The smaller alpha, the more the devices differ in their classes and sizes.

    >>> deal = Dirichlet(1.0).deal(np.repeat([0, 1], 50), 4, np.random.default_rng(0))
    >>> int(deal.counts.sum()), deal.shares.shape
    (100, (2, 4))
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.alpha < np.inf:
            raise FedfuseError(f"alpha must be a number above 0, got {self.alpha!r}; for even shares leave it None")

    @property
    def advice(self) -> str:
        return f"a larger alpha (it is {self.alpha:g}), fewer devices, or another seed"

    def deal(self, labels: Ints, devices: int, rng: np.random.Generator) -> Deal:
        """Draw shares for every class, and cut the classes by them."""
        _check_devices(devices, len(labels))
        shares = rng.dirichlet(np.full(devices, self.alpha), size=_n_classes(labels))
        return deal_by_shares(labels, shares, rng)


@dataclass(frozen=True)
class Even:
    """Devices alike and of one size (to one row): every class evenly over all, or rows at random.

    >>> Even().deal(np.array([0, 0, 0, 1, 1, 1]), 3, np.random.default_rng(0)).counts.tolist()
    [2, 2, 2]
    """

    by_class: bool = True
    advice = "fewer devices"

    def deal(self, labels: Ints, devices: int, rng: np.random.Generator) -> Deal:
        """Deal rows like cards, one to each device in turn."""
        _check_devices(devices, len(labels))
        order = rng.permutation(len(labels))
        if self.by_class:
            order = order[np.argsort(labels[order], kind="stable")]
        owner = np.empty(len(labels), dtype=np.int64)
        owner[order] = np.arange(len(labels)) % devices
        return Deal(owner, shares_of(labels, owner, devices))


@dataclass(frozen=True)
class Shards:
    """Rows sorted by class and cut into shards of one size, a few to each device (McMahan et al., AISTATS 2017).

    With two shards a device knows about two classes.
    """

    per_device: int = 2
    advice = "fewer devices, or fewer shards"

    def deal(self, labels: Ints, devices: int, rng: np.random.Generator) -> Deal:
        """Cut the sorted rows into devices x per_device shards and give each device its number at random."""
        shards = devices * self.per_device
        if self.per_device < 1:
            raise FedfuseError(f"per_device must be at least 1 shard, got {self.per_device}")
        _check_devices(devices, len(labels))
        if shards > len(labels):
            raise FedfuseError(f"{shards} shards need as many rows, but there are {len(labels)}; use {self.advice}")
        order = rng.permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        shard = np.arange(len(labels)) * shards // len(labels)
        owner = np.empty(len(labels), dtype=np.int64)
        owner[order] = rng.permutation(np.arange(shards) % devices)[shard]
        return Deal(owner, shares_of(labels, owner, devices))


def by_column(values: Sequence[Any] | Array) -> tuple[tuple[str, ...], Ints]:
    """Return devices named by the values of a column, in natural order, and the device of every row.

    >>> names, owner = by_column(["site10", "site2", "site10"])
    >>> names, owner.tolist()
    (('site2', 'site10'), [1, 0, 1])
    """
    text = np.array([str(v) for v in values], dtype=object)
    names = sorted(set(text), key=natural)
    place = {name: i for i, name in enumerate(names)}
    return tuple(names), np.array([place[v] for v in text], dtype=np.int64)


def deal_by_shares(labels: Ints, shares: Floats, rng: np.random.Generator) -> Deal:
    """Permute the rows, and cut those of each class at floor(cumulative share x rows of the class).

    Parameters
    ----------
    labels
        The class number of every row.
    shares
        Classes x devices, each row summing to 1; what rounding leaves over goes to the last device.
    rng
        Draws the order of the rows.
    """
    n_classes = len(shares)
    if _n_classes(labels) > n_classes:
        raise FedfuseError(f"there are shares for {n_classes} classes, but a row has class {labels.max()}")
    order = rng.permutation(len(labels))
    owner = np.empty(len(labels), dtype=np.int64)
    for c in range(n_classes):
        rows = order[labels[order] == c]
        ends = np.floor(np.cumsum(shares[c])[:-1] * len(rows))
        owner[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    return Deal(owner, shares)


def shares_of(labels: Ints, owner: Ints, devices: int) -> Floats:
    """Return which share of each class each device has (even shares of a class that nobody has)."""
    n_classes = _n_classes(labels)
    counts = np.bincount(labels * devices + owner, minlength=n_classes * devices).reshape(n_classes, devices)
    total = counts.sum(axis=1, keepdims=True)
    return np.where(total > 0, counts / np.maximum(total, 1), 1 / devices)


def deal_enough(
    partitioner: Partitioner,
    labels: Ints,
    devices: int,
    rng: np.random.Generator,
    least: int = 1,
    what: str = "rows",
) -> Deal:
    """Deal until every device has at least so many rows; after `TRIES` times say who lacks what.

    ``what`` names the rows in the error.
    """
    best: Deal | None = None
    for _ in range(TRIES):
        deal = partitioner.deal(labels, devices, rng)
        if deal.counts.min() >= least:
            return deal
        best = deal if best is None or deal.counts.min() > best.counts.min() else best
    assert best is not None
    device = int(best.counts.argmin())
    raise FedfuseError(
        f"device {device} of {devices} got {best.counts[device]} {what}, but needs at least {least}, in the best of "
        f"{TRIES} tries to deal {len(labels):,} to {devices} devices; use {partitioner.advice}"
    )


def deal_test(
    train: Deal,
    partitioner: Partitioner,
    labels: Ints,
    rng: np.random.Generator,
    least: int = 1,
    test_partition: TestPartition = "independent",
) -> Deal:
    """Deal the test rows: by a new draw, or with the shares that the training rows were dealt with."""
    devices = train.shares.shape[1]
    if test_partition == "independent":
        return deal_enough(partitioner, labels, devices, rng, least, "test rows")
    if test_partition != "same_shares":
        known = " or ".join(map(repr, get_args(TestPartition)))
        raise FedfuseError(f"test_partition must be {known}, got {test_partition!r}")
    deal = deal_by_shares(labels, train.shares, rng)
    device = int(deal.counts.argmin())
    if deal.counts[device] < least:
        raise FedfuseError(
            f"device {device} of {devices} got {deal.counts[device]} test rows, but needs at least {least}: its share "
            f"of the training rows is small; use {partitioner.advice}, or test_partition='independent'"
        )
    return deal


class Grouping(Protocol):
    """A rule that makes devices of different groups differ."""

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        ...

    def apply(self, images: Array, labels: Array, group: int) -> tuple[Array, Array]:
        """Return images (n x … x height x width) and labels as devices of this group have them."""
        ...


@dataclass(frozen=True)
class LabelSwap:
    """Each group exchanges two labels; by default those of the paper, c and 8 - c in group c.

    >>> LabelSwap().apply(np.zeros((3, 2, 2)), np.array([1, 7, 5]), group=1)[1].tolist()
    [7, 1, 5]
    """

    swaps: tuple[tuple[int, int], ...] = ((0, 8), (1, 7), (2, 6), (3, 5))

    @property
    def n_groups(self) -> int:
        return len(self.swaps)

    def apply(self, images: Array, labels: Array, group: int) -> tuple[Array, Array]:
        """Exchange the group's labels; the images stay as they are."""
        return images, swap_labels(labels, *self.swaps[group])


@dataclass(frozen=True)
class Rotation:
    """Each group turns its images, counter-clockwise, by its number of degrees (multiples of 90).

    >>> Rotation().apply(np.array([[[1, 2], [3, 4]]]), np.array([0]), group=1)[0].tolist()
    [[[2, 4], [1, 3]]]
    """

    degrees: tuple[int, ...] = (0, 90, 180, 270)

    @property
    def n_groups(self) -> int:
        return len(self.degrees)

    def apply(self, images: Array, labels: Array, group: int) -> tuple[Array, Array]:
        """Turn the images; the labels stay as they are."""
        return rotate(images, self.degrees[group]), labels


def swap_labels(labels: Array, a: int, b: int) -> Array:
    """Return labels with a and b exchanged."""
    return np.where(labels == a, b, np.where(labels == b, a, labels)).astype(labels.dtype)


def rotate(images: Array, degrees: int) -> Array:
    """Return images (… x height x width) turned counter-clockwise, as a view."""
    turns, rest = divmod(degrees, 90)
    if rest:
        raise FedfuseError(f"images are turned by multiples of 90 degrees, got {degrees}")
    if turns % 2 and images.shape[-1] != images.shape[-2]:
        raise FedfuseError(
            f"images of {images.shape[-2]} x {images.shape[-1]} pixels are not square: turn them by 0 or 180 degrees"
        )
    return np.rot90(images, turns, axes=(-2, -1))


def in_groups(devices: int, n_groups: int) -> Ints:
    """Return the group of every device: neighbours are together, sizes as even as can be.

    >>> in_groups(5, 2).tolist()
    [0, 0, 0, 1, 1]
    """
    if devices < n_groups:
        raise FedfuseError(f"{n_groups} groups need at least as many devices, got devices={devices}")
    sizes = [len(part) for part in np.array_split(np.arange(devices), n_groups)]
    return np.repeat(np.arange(n_groups), sizes)


def _n_classes(labels: Ints) -> int:
    return int(labels.max(initial=-1)) + 1


def _check_devices(devices: int, rows: int) -> None:
    if not 1 <= devices <= rows:
        raise FedfuseError(f"{rows:,} rows cannot be dealt to {devices} devices; use 1 to {rows:,} devices")
