"""Distances of all pairs of devices: heat maps in the order of the groups, maps in the plane, and the dendrogram."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.linalg import eigh
from scipy.sparse.linalg import eigsh

from fedfuse.report.charts import SIDE, Axis
from fedfuse.report.palette import tone
from fedfuse.results.result import Result
from fedfuse.results.snapshots import DistanceSnapshot, thinned
from fedfuse.utils.typing import Floats, Ints

MAX_FRAMES = 16
MAX_CELLS = 300
# Colours tell this share of all pairs apart: a device that lies may be far out.
SHOWN_PERCENTILE = 99.5


@dataclass(frozen=True)
class PairFrame:
    """What the page draws of all pairs."""

    frames: tuple[DistanceSnapshot, ...]  # Rounds, one after the other.
    order: Ints  # The devices in the order of rows and columns: by group, and alike ones together.
    cells: Ints  # The first place in ``order`` of every row of cells.
    heat: npt.NDArray[np.uint8]  # For each frame the lower triangle of cells: 255 is ``tops`` or more.
    tops: Floats
    places: Floats  # For each frame the devices (by ``order``) on a map, from -1 to 1.

    @classmethod
    def of(cls, snapshots: Sequence[DistanceSnapshot], labels: Ints) -> PairFrame:
        """Prepare pictures of these rounds; ``labels`` are the groups found in the end."""
        frames = tuple(chosen(snapshots))
        order = by_group(labels[frames[0].devices], average_linkage(most_apart(frames)))
        cells = np.unique(np.linspace(0, len(order), min(len(order), MAX_CELLS), endpoint=False).astype(np.int64))
        heat, tops = zip(*(_cells(frame.matrix[np.ix_(order, order)], cells) for frame in frames), strict=True)
        return cls(frames, order, cells, np.stack(heat), np.array(tops), _maps([f.matrix for f in frames])[:, order])

    @property
    def devices(self) -> Ints:
        """The devices in the order of the page."""
        return self.frames[0].devices[self.order]

    def payload(self, outside: Sequence[int] | Ints = ()) -> dict[str, Any]:
        """Return what the page's script needs, as JSON-ready data; devices ``outside`` form no groups."""
        inside = ~np.isin(self.frames[0].devices, outside)
        scaled = np.rint(32767 * (1 + np.clip(self.places, -1, 1))).astype("<u2")
        return {
            "rounds": [f.round for f in self.frames],
            "groups": [len(np.unique(f.labels[inside])) for f in self.frames],
            "tops": [float(f"{top:.4g}") for top in self.tops],
            "devices": self.devices.tolist(),
            "cells": self.cells.tolist(),
            "heat": text_of(self.heat),
            "places": text_of(scaled),
        }


def chosen(snapshots: Sequence[DistanceSnapshot], most: int = MAX_FRAMES) -> list[DistanceSnapshot]:
    """Return at most so many snapshots: those that differ from the one before, evenly over the run, and the last."""
    new = [snapshots[0]]
    for before, now in pairwise(snapshots):
        if (before.labels != now.labels).any() or (before.levels != now.levels).any():
            new.append(now)
    new[-1] = snapshots[-1]
    return [new[i] for i in thinned(len(new), most)]


def snapshot_of(result: Result) -> DistanceSnapshot:
    """Return the distances between the models that were found."""
    # A module of one's own is not there after loading, and with it not the knowledge of what is fused.
    fused = result.models[:, result.model.fused] if result.model.d == result.models.shape[1] else result.models
    return DistanceSnapshot.of(result.rounds, fused, result.labels)


def most_apart(snapshots: Sequence[DistanceSnapshot]) -> DistanceSnapshot:
    """Return the last snapshot with the most groups: the devices' models before they were merged."""
    moving = [s for s in snapshots if s.largest > 0] or list(snapshots)
    return max(reversed(moving), key=lambda s: len(np.unique(s.labels)))


def average_linkage(snapshot: DistanceSnapshot) -> Floats:
    """Return the merges of average linkage, as scipy does."""
    if not snapshot.levels.size:
        return np.empty((0, 4))
    return np.asarray(linkage(snapshot.pairs, "average"))


def by_group(labels: Ints, merges: Floats) -> Ints:
    """Return the devices group by group, the largest first, and within a group as the tree has them."""
    if not len(merges):
        return np.arange(len(labels))
    return np.lexsort((np.argsort(leaves_list(merges)), numbers_by_size(labels)))


def numbers_by_size(labels: Ints) -> Ints:
    """Return the groups numbered by size, from 1 for the largest.

    >>> numbers_by_size(np.array([0, 1, 1, 2])).tolist()
    [2, 1, 1, 3]
    """
    by_size = np.argsort(-np.bincount(labels), kind="stable")
    return np.asarray(np.argsort(by_size)[labels] + 1)


def text_of(array: npt.NDArray[Any]) -> str:
    """Return an array's bytes as text."""
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _cells(matrix: Floats, cells: Ints) -> tuple[npt.NDArray[np.uint8], float]:
    """Return mean distances in cells, in 256 steps, and the distance that the last of them stands for."""
    sizes = np.diff([*cells, len(matrix)])
    means = np.add.reduceat(np.add.reduceat(matrix, cells, axis=0), cells, axis=1) / np.outer(sizes, sizes)
    shown = means[np.tril_indices(len(means))]
    top = float(np.percentile(shown, SHOWN_PERCENTILE)) or float(shown.max())
    levels = np.rint(255 * np.clip(shown / top, 0, 1)) if top > 0 else np.zeros_like(shown)
    return levels.astype(np.uint8), top


def _maps(matrices: Sequence[Floats]) -> Floats:
    """Return a map for each matrix of distances, each rotated onto the next (Procrustes)."""
    places = [plane(matrix) for matrix in matrices]
    for i in range(len(places) - 2, -1, -1):
        u, _, vt = np.linalg.svd(places[i].T @ places[i + 1])
        places[i] = places[i] @ (u @ vt)
    return np.stack([_within(p) for p in places])


def plane(matrix: Floats) -> Floats:
    """Return principal coordinates in the plane (classical multidimensional scaling; Torgerson, 1952)."""
    squares = np.square(matrix)
    inner = -0.5 * (squares - squares.mean(axis=0) - squares.mean(axis=1)[:, None] + squares.mean())
    m = len(inner)
    if m < 3 or not inner.any():
        line = np.zeros((m, 2))
        line[:, 0] = matrix[0] - matrix[0].mean()
        return line
    if m > 200:
        start = np.random.default_rng(0).normal(size=m)
        values, vectors = eigsh(inner, k=2, which="LA", v0=start, tol=1e-4)
    else:  # Where all devices are in two points, eigsh draws the second vector at random.
        values, vectors = eigh(inner, subset_by_index=(m - 2, m - 1))
    flat = vectors * np.sqrt(np.maximum(values, 0.0))
    # The sign of an eigenvector is arbitrary: the device furthest out is put on the right.
    lead = flat[np.abs(flat).argmax(axis=0), [0, 1]]
    return np.asarray((flat * np.where(lead < 0, -1, 1))[:, ::-1])


def _within(places: Floats) -> Floats:
    """Scale a map so that nearly all of it is between -1 and 1; devices further out are put at the border."""
    radius = np.abs(places).max(axis=1)
    usual = float(np.percentile(radius, SHOWN_PERCENTILE)) or float(radius.max(initial=0.0))
    return np.asarray(np.clip(places / (1.05 * usual), -1, 1)) if usual > 0 else places


@dataclass(frozen=True)
class DendrogramChart:
    """A tree to draw, from the left (every device alone) to the right (all together)."""

    paths: list[tuple[str, str]]  # (Colour, SVG path) for each group, and for what joins groups.
    x: Axis
    leaves: Ints  # The devices from top to bottom.

    @classmethod
    def of(cls, alone: DistanceSnapshot, groups: Ints) -> DendrogramChart | None:
        """Build the tree of devices' own models; None where all are the same."""
        merges = average_linkage(alone)
        if not len(merges) or alone.largest == 0:
            return None
        axis = Axis(0.0, 1.03 * float(merges[-1, 2]), words="distance at which groups merge")
        paths, leaves = _drawn(merges, groups[alone.devices], axis)
        return cls(paths, axis, alone.devices[leaves])


def _drawn(merges: Floats, groups: Ints, axis: Axis) -> tuple[list[tuple[str, str]], Ints]:
    """Return the tree as paths by colour, and the leaves from top to bottom."""
    n, leaves = len(groups), leaves_list(merges).astype(np.int64)
    x = np.concatenate([np.zeros(n), SIDE * axis.share(merges[:, 2])])
    y = np.zeros(2 * n - 1)
    y[leaves] = (np.arange(n) + 0.5) / n * SIDE
    owner = np.concatenate([groups, np.zeros(n - 1, np.int64)])  # Of every node; 0 for devices of several groups.
    for node, (left, right) in enumerate(merges[:, :2].astype(np.int64), n):
        owner[node] = owner[left] if owner[left] == owner[right] else 0
    tones = [tone(int(group)) for group in owner]
    pieces: dict[str, list[str]] = {name: [] for name in tones}
    for node, (left, right) in enumerate(merges[:, :2].astype(np.int64), n):
        y[node] = (y[left] + y[right]) / 2
        # Each branch has the colour of what is below it, the joint that of both together.
        for child in (left, right):
            pieces[tones[child]].append(f"M{x[child]:.1f} {y[child]:.1f}H{x[node]:.1f}")
        pieces[tones[node]].append(f"M{x[node]:.1f} {y[left]:.1f}V{y[right]:.1f}")
    pieces[tones[-1]].append(f"M{x[-1]:.1f} {y[-1]:.1f}H{SIDE}")
    return [(name, "".join(lines)) for name, lines in sorted(pieces.items())], leaves
