"""Distances of all pairs of devices for the page: heat maps in the order of the groups, and maps in the plane."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.linalg import eigh
from scipy.sparse.linalg import eigsh

from fedfuse.results.snapshots import DistanceSnapshot
from fedfuse.utils.typing import Floats, Ints

MAX_FRAMES = 16
MAX_CELLS = 300
# Colours tell this share of all pairs apart: a device that lies may be far out.
SHOWN_PERCENTILE = 99.5


@dataclass(frozen=True)
class PairFrame:
    """What the page draws of all pairs.

    Attributes
    ----------
    frames
        Rounds, one after the other.
    order
        The devices in the order of rows and columns: by group, and alike ones together.
    cells
        The first place in ``order`` of every row of cells.
    heat
        For each frame the lower triangle of cells, 0 for no distance, 255 for that of ``tops`` or more.
    places
        For each frame the devices (by ``order``) on a map, from -1 to 1.
    """

    frames: tuple[DistanceSnapshot, ...]
    order: Ints
    cells: Ints
    heat: npt.NDArray[np.uint8]
    tops: Floats
    places: Floats

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
    new = [s for before, s in zip([None, *snapshots], snapshots, strict=False) if not _alike(before, s)]
    if new[-1] is not snapshots[-1]:
        new[-1] = snapshots[-1]
    if len(new) <= most:
        return new
    return [new[i] for i in np.unique(np.linspace(0, len(new) - 1, most).round().astype(int))]


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
    sizes = np.bincount(labels)
    rank = np.empty(len(sizes), np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(len(sizes))
    leaf = np.empty(len(labels), np.int64)
    leaf[leaves_list(merges)] = np.arange(len(labels))
    return np.lexsort((leaf, rank[labels]))


def text_of(array: npt.NDArray[Any]) -> str:
    """Return an array's bytes as text."""
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _alike(before: DistanceSnapshot | None, now: DistanceSnapshot) -> bool:
    if before is None:
        return False
    same_labels = bool((before.labels == now.labels).all())
    return same_labels and bool((before.levels == now.levels).all())


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
    else:
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
