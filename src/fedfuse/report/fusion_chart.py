"""The fusion path as a tree: which devices meet as lambda grows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import leaves_list

from fedfuse.core.partitions import adjusted_rand
from fedfuse.report.charts import SIDE, Axis
from fedfuse.report.distance_frames import tree_of
from fedfuse.report.palette import tone
from fedfuse.results.snapshots import DistanceSnapshot
from fedfuse.utils.typing import Floats, Ints

LEAVES = 40  # devices whose names have room beside the tree


@dataclass(frozen=True)
class FusionPath:
    """A tree to draw, from the left (every device alone) to the right (all together).

    Attributes
    ----------
    paths
        (colour, SVG path) for each group, and for what joins groups.
    x
        Distances, or lambdas where the penalty reaches ``a`` times as far.
    heights
        Where two groups meet, increasing.
    cut
        Where the groups of the tree agree best with those found (adjusted Rand index),
    exact
        and whether they are the same.
    leaves
        The devices from top to bottom.
    """

    paths: list[tuple[str, str]]
    x: Axis
    heights: Floats
    cut: float
    exact: bool
    leaves: Ints
    a: float | None

    @classmethod
    def of(cls, alone: DistanceSnapshot, labels: Ints, a: float | None) -> FusionPath | None:
        """Build the tree of devices' own models; None where there is none to see."""
        merges = tree_of(alone)
        if not len(merges) or alone.largest == 0:
            return None
        unit = a or 1.0
        heights = merges[:, 2] / unit
        axis = Axis(0.0, 1.03 * float(heights[-1]), words="lambda" if a else "distance")
        groups = labels[alone.devices]
        paths, leaves = _drawn(merges, groups, axis, unit)
        return cls(paths, axis, heights, *_cut(merges, heights, groups), alone.devices[leaves], a)

    @property
    def groups_at_cut(self) -> int:
        return len(self.heights) + 1 - int((self.heights <= self.cut).sum())


def _cut(merges: Floats, heights: Floats, groups: Ints) -> tuple[float, bool]:
    """Return the middle of the stretch in which the tree agrees best with the groups, and whether it has these."""
    ends = np.concatenate([[0.0], heights, [1.03 * heights[-1]]])
    agreement = np.array([adjusted_rand(groups, labels) for labels in _levels(merges, len(groups))], float)
    stretch = np.diff(ends)
    agreement[stretch <= 0] = -1.0  # merges at one height: nothing can be between them
    best = np.flatnonzero(agreement == agreement.max())
    place = best[np.argmax(stretch[best])]  # of equals, the longest
    return float((ends[place] + ends[place + 1]) / 2), bool(agreement[place] == 1)


def _levels(merges: Floats, n: int) -> Iterator[Ints]:
    """Yield the groups of a tree's leaves after no merge, after the first, and so on."""
    labels = np.arange(n)
    yield labels
    for k, (left, right) in enumerate(merges[:, :2].astype(np.int64)):
        labels = np.where((labels == left) | (labels == right), n + k, labels)
        yield labels


def _drawn(merges: Floats, groups: Ints, axis: Axis, unit: float) -> tuple[list[tuple[str, str]], Ints]:
    """Return the tree as paths by colour, and the leaves from top to bottom."""
    n = len(groups)
    leaves = leaves_list(merges).astype(np.int64)
    x, y, owner = np.zeros(2 * n - 1), np.zeros(2 * n - 1), np.full(2 * n - 1, -1)
    y[leaves] = (np.arange(n) + 0.5) / n * SIDE
    owner[:n] = groups
    pieces: dict[str, list[str]] = {}
    for k, (left, right) in enumerate(merges[:, :2].astype(np.int64)):
        node = n + k
        x[node] = SIDE * float(axis.share(merges[k, 2] / unit))
        y[node] = (y[left] + y[right]) / 2
        owner[node] = owner[left] if owner[left] == owner[right] else -1
        # each branch in the colour of what is below it, the joint in that of what comes of it
        for child in (left, right):
            pieces.setdefault(_tone(owner[child]), []).append(f"M{x[child]:.1f} {y[child]:.1f}H{x[node]:.1f}")
        pieces.setdefault(_tone(owner[node]), []).append(f"M{x[node]:.1f} {y[left]:.1f}V{y[right]:.1f}")
    pieces.setdefault(_tone(owner[-1]), []).append(f"M{x[-1]:.1f} {y[-1]:.1f}H{SIDE}")
    return [(colour, "".join(lines)) for colour, lines in sorted(pieces.items())], leaves


def _tone(owner: int) -> str:
    return "between" if owner < 0 else tone(int(owner))
