"""Partitions of labelled rows over devices.

A partition is an array that names the device of every row, so parts are disjoint and complete by construction.
Everything here is a function of labels (class numbers) and a generator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from fedfuse.errors import FedfuseError, check_choice
from fedfuse.utils.typing import Floats, Ints

TestPartition: TypeAlias = Literal["independent", "same_shares"]
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

    def check(self, min_rows: int, what: str, advice: str) -> Partition:
        """Return the partition, or raise an error where a device has fewer rows."""
        counts = self.counts
        i = int(counts.argmin())
        if counts[i] < min_rows:
            few = f"device {i} of {len(counts)} got {counts[i]} {what}, but needs at least {min_rows}"
            raise FedfuseError(f"{few}; use fewer devices, {advice}")
        return self

    @classmethod
    def by_shares(cls, labels: Ints, shares: Floats, rng: np.random.Generator) -> Partition:
        """Permute the rows, and cut those of each class at floor(cumulative share x rows of the class).

        Each row of ``shares`` (classes x devices) sums to 1; what rounding leaves over goes to the last device.
        """
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

    >>> deal(np.array([0, 0, 0, 1, 1, 1]), 3, None, np.random.default_rng(0)).counts.tolist()
    [2, 2, 2]
    """
    rows, classes = len(labels), int(labels.max(initial=-1)) + 1
    if not 1 <= devices <= rows:
        raise FedfuseError(f"{rows:,} rows cannot be divided between {devices} devices; use 1 to {rows:,} devices")
    if alpha is None:
        order, owner = rng.permutation(rows), np.empty(rows, dtype=np.int64)
        owner[order[np.argsort(labels[order], kind="stable")]] = np.arange(rows) % devices
        return Partition(owner, np.full((classes, devices), 1 / devices))
    if not 0 < alpha < np.inf:
        raise FedfuseError(f"alpha must be a number above 0, got {alpha!r}; for equal shares, leave it None")
    return Partition.by_shares(labels, rng.dirichlet(np.full(devices, alpha), size=classes), rng)


def draw(
    labels: Ints, devices: int, alpha: float | None, rng: np.random.Generator, min_rows: int = 1, what: str = "rows"
) -> Partition:
    """Draw partitions until every device has at least so many rows, at most `MAX_DRAWS`; ``what`` is for the error."""
    best = deal(labels, devices, alpha, rng)
    for _ in range(MAX_DRAWS - 1):
        if best.counts.min() >= min_rows:
            break
        best = max(best, deal(labels, devices, alpha, rng), key=lambda drawn: drawn.counts.min())
    return best.check(min_rows, what, f"a larger alpha (it is {alpha}) or another seed")


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
    return drawn.check(min_rows, "test rows", "or test_partition='independent'")
