"""The data of a run, described so that the description can be hashed: a name, and how much of it is used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from fedfuse.data.catalog import load
from fedfuse.data.federation import Federation
from fedfuse.data.images import image_federation, read_images
from fedfuse.data.partition import Dirichlet
from fedfuse.utils.random import generator
from fedfuse.utils.typing import Ints

TEST = 0.4  # test images for each training image, where only some are used: few would say little
DEVICES = 20
_MNIST = ("mnist", "fashion-mnist")


@dataclass(frozen=True)
class Data:
    """A data set of the paper, or a part of it.

    Attributes
    ----------
    name
        As for `data.load`.
    rows
        At most so many training rows of a device, and a quarter of that for validation and test each.
    images
        So many training images in all, dealt by the same rule as all of them.
    """

    name: str
    rows: int | None = None
    images: int | None = None

    @property
    def kind(self) -> str:
        """``"synthetic"``, ``"housing-bodyfat"`` or ``"images"``."""
        return "images" if self.name in (*_MNIST, "digits") else self.name.partition(":")[0]

    @property
    def words(self) -> str:
        """What the data are called in tables and pictures."""
        if self.images:
            return f"{self.name}, {self.images:,} images"
        return f"{self.name}, at most {self.rows} rows" if self.rows else self.name

    def load(self, seed: int, data_dir: str | None = None) -> Federation:
        """Return the federation of a seed."""
        return _loaded(self, seed, data_dir)


@lru_cache(maxsize=2)
def _loaded(data: Data, seed: int, data_dir: str | None) -> Federation:
    if data.images is not None and data.name in _MNIST:
        train, test = read_images(data.name, data_dir)
        some = (np.arange(min(data.images, len(train.labels))), np.arange(min(int(TEST * data.images), 10_000)))
        return image_federation(
            train.at(some[0]), test.at(some[1]), seed=seed, devices=DEVICES, groups="swap", partition=Dirichlet(1.0),
            min_rows=5,
        )  # fmt: skip
    whole = load(data.name, seed=seed, data_dir=data_dir)
    return whole if data.rows is None else fewer_rows(whole, data.rows)


def fewer_rows(federation: Federation, rows: int) -> Federation:
    """Return a federation whose devices have at most so many training rows, and a quarter of that for the rest each.

    The rows of each part lie at random, so that the first ones are a sample.
    """
    rest, kept, cuts, end = max(1, rows // 4), [], [], 0
    for bounds in federation.cuts:
        begin, most = bounds[:3], np.minimum(np.diff(bounds), (rows, rest, rest))
        kept += [np.arange(a, a + n) for a, n in zip(begin, most, strict=True)]
        cuts.append([end, *(end + np.cumsum(most))])
        end = cuts[-1][-1]
    some = np.concatenate(kept)
    return replace(federation, X=federation.X[some], y=federation.y[some], cuts=np.array(cuts, dtype=np.int64))


def late(truth: Ints, share: float, seed: int) -> Ints:
    """Return the devices that come late: this share of every group, drawn by the seed."""
    rng, groups = generator(seed, "newcomers"), [np.flatnonzero(truth == g) for g in np.unique(truth)]
    return np.sort(np.concatenate([rng.choice(g, max(1, round(share * len(g))), replace=False) for g in groups]))
