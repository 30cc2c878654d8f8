"""A federation whose rows are elsewhere: what its devices say of themselves is all that is known here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from fedfuse.data.federation import Federation, default_features
from fedfuse.errors import FedfuseError

MOST_CLASSES = 100_000
MOST_ROWS = 10**12


@dataclass(frozen=True, repr=False)
class RemoteFederation(Federation):
    """Devices with their numbers of rows, columns and classes, and no rows. Build one with `roster`.

    ``digests`` are the devices' own hashes of their rows.
    """

    digests: tuple[str, ...] = ()

    @property
    def here(self) -> bool:
        return False

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for word in (*self.names, *self.digests, *map(str, self.classes), str(self.cuts.tolist())):
            digest.update(word.encode() + b"\0")
        return digest.hexdigest()


def roster(facts: Mapping[str, Mapping[str, Any]]) -> RemoteFederation:
    """Return the federation of devices that say this of themselves (see `flower.device.facts_of`).

    >>> said = {"goal": "regression", "columns": 2, "classes": [], "rows": [6, 2, 2], "digest": "0"}
    >>> roster({"b": said, "a": said})
    Federation(2 devices, 20 rows (10 to 10 each), 2 features, regression)
    """
    names = tuple(sorted(facts, key=_natural))
    said = [checked(name, facts[name]) for name in names]
    first = said[0]
    for name, other in zip(names, said, strict=True):
        for key, hint in (("goal", "say goal in the run's configuration"), ("columns", "give all the same columns")):
            if other[key] != first[key]:
                words = f"device {name!r} has {key} {other[key]}, device {names[0]!r} {first[key]}"
                raise FedfuseError(f"{words}: {hint}")
        if other.get("features") != first.get("features") or other.get("shape") != first.get("shape"):
            raise FedfuseError(f"device {name!r} has other columns than device {names[0]!r}: give all the same columns")
    cuts = np.array([[0, *np.cumsum(s["rows"])] for s in said], np.int64)
    ends = np.cumsum(cuts[:, 3])
    p = int(first["columns"])
    return RemoteFederation(
        names=names,
        X=np.empty((0, p)),
        y=np.empty(0, np.int64 if first["goal"] == "classification" else np.float64),
        cuts=cuts + (ends - cuts[:, 3])[:, None],
        goal=first["goal"],
        classes=_union([s["classes"] for s in said]),
        features=tuple(first.get("features") or default_features(p)),
        shape=None if first.get("shape") is None else tuple(first["shape"]),
        digests=tuple(str(s["digest"]) for s in said),
    )


def checked(name: str, said: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a device says of itself, or raise an error if that cannot be."""
    rows, columns, classes, shape = (said.get(key) for key in ("rows", "columns", "classes", "shape"))
    good = (
        said.get("goal") in ("classification", "regression")
        and _counts(rows, 3, least=0, most=MOST_ROWS)
        and _counts([columns], 1, least=1, most=MOST_ROWS)
        and isinstance(classes, list)
        and len(classes) <= MOST_CLASSES
        and all(isinstance(c, (str, int, float, bool)) and c == c for c in classes)  # no nan
        and len(set(classes)) == len(classes)
        and bool(classes) == (said.get("goal") == "classification")
        and isinstance(said.get("digest"), str)
        and (shape is None or (_counts(shape, None, least=1, most=MOST_ROWS) and prod(shape) == columns))
        and (said.get("features") is None or _texts(said["features"], columns))
    )
    if not good:
        raise FedfuseError(f"device {name!r} says impossible things of its rows")
    return said


def _counts(values: Any, n: int | None, *, least: int, most: int) -> bool:
    if not isinstance(values, list) or (n is not None and len(values) != n):
        return False
    return all(type(v) is int and least <= v <= most for v in values)


def _texts(values: Any, n: Any) -> bool:
    return isinstance(values, list) and len(values) == n and all(isinstance(v, str) for v in values)


def _union(classes: list[list[Any]]) -> tuple[Any, ...]:
    found = {label for labels in classes for label in labels}
    if len({isinstance(label, str) for label in found}) > 1:
        raise FedfuseError("some devices have text for classes and others numbers: make them alike")
    return tuple(sorted(found))


def _natural(name: str) -> tuple[int, int, str]:
    """Sort numbers by size, and before words."""
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)
