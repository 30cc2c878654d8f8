"""Dendrogram of the devices' own models: at which distance groups merge (average linkage)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import leaves_list

from fedfuse.core.partitions import adjusted_rand
from fedfuse.report.charts import SIDE, Axis
from fedfuse.report.distance_frames import average_linkage
from fedfuse.report.palette import tone
from fedfuse.results.snapshots import DistanceSnapshot
from fedfuse.utils.typing import Floats, Ints

AXIS = "distance at which groups merge"


@dataclass(frozen=True)
class DendrogramChart:
    """A tree to draw, from the left (every device alone) to the right (all together).

    Attributes
    ----------
    paths
        (colour, SVG path) for each group, and for what joins groups.
    heights
        Where two groups merge, increasing.
    cut
        Where the groups of the tree agree best with those found (adjusted Rand index).
    exact
        Whether they are the same there.
    leaves
        The devices from top to bottom.
    """

    paths: list[tuple[str, str]]
    x: Axis
    heights: Floats
    cut: float
    exact: bool
    leaves: Ints

    @classmethod
    def of(cls, alone: DistanceSnapshot, groups: Ints) -> DendrogramChart | None:
        """Build the tree of devices' own models; None where all are the same."""
        merges = average_linkage(alone)
        if not len(merges) or alone.largest == 0:
            return None
        heights = merges[:, 2]
        axis = Axis(0.0, 1.03 * float(heights[-1]), words=AXIS)
        shown = groups[alone.devices]
        paths, leaves = _drawn(merges, shown, axis)
        return cls(paths, axis, heights, *_best_cut(merges, shown), alone.devices[leaves])

    @property
    def groups_at_cut(self) -> int:
        return len(self.heights) + 1 - int((self.heights <= self.cut).sum())


def merged_groups(merges: Floats, groups: Ints) -> Ints:
    """Return the group of every node of a tree, leaves first; -1 for nodes with devices of several groups."""
    owner = np.concatenate([groups, np.full(len(merges), -1)])
    for k, (left, right) in enumerate(merges[:, :2].astype(np.int64)):
        owner[len(groups) + k] = owner[left] if owner[left] == owner[right] else -1
    return owner


def _best_cut(merges: Floats, groups: Ints) -> tuple[float, bool]:
    """Return the middle of the stretch in which the tree agrees best with the groups, and whether it has these."""
    heights = merges[:, 2]
    ends = np.concatenate([[0.0], heights, [1.03 * heights[-1]]])
    agreement = np.array([adjusted_rand(groups, labels) for labels in _levels(merges, len(groups))], float)
    stretch = np.diff(ends)
    agreement[stretch <= 0] = -1.0  # nothing lies between two merges at one height
    best = np.flatnonzero(agreement == agreement.max())
    place = best[np.argmax(stretch[best])]
    return float((ends[place] + ends[place + 1]) / 2), bool(agreement[place] == 1)


def _levels(merges: Floats, n: int) -> Iterator[Ints]:
    """Yield the groups of a tree's leaves after no merge, after the first, and so on."""
    labels = np.arange(n)
    yield labels
    for k, (left, right) in enumerate(merges[:, :2].astype(np.int64)):
        labels = np.where((labels == left) | (labels == right), n + k, labels)
        yield labels


def _drawn(merges: Floats, groups: Ints, axis: Axis) -> tuple[list[tuple[str, str]], Ints]:
    """Return the tree as paths by colour, and the leaves from top to bottom."""
    n, leaves = len(groups), leaves_list(merges).astype(np.int64)
    x = np.concatenate([np.zeros(n), SIDE * axis.share(merges[:, 2])])
    y = np.zeros(2 * n - 1)
    y[leaves] = (np.arange(n) + 0.5) / n * SIDE
    tones = [tone(max(int(group), 0)) for group in merged_groups(merges, groups)]
    pieces: dict[str, list[str]] = {name: [] for name in tones}
    for node, (left, right) in enumerate(merges[:, :2].astype(np.int64), n):
        y[node] = (y[left] + y[right]) / 2
        # Each branch has the colour of what is below it, the joint that of both together.
        for child in (left, right):
            pieces[tones[child]].append(f"M{x[child]:.1f} {y[child]:.1f}H{x[node]:.1f}")
        pieces[tones[node]].append(f"M{x[node]:.1f} {y[left]:.1f}V{y[right]:.1f}")
    pieces[tones[-1]].append(f"M{x[-1]:.1f} {y[-1]:.1f}H{SIDE}")
    return [(name, "".join(lines)) for name, lines in sorted(pieces.items())], leaves
