"""How one column of a table becomes features, learned from training rows only."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from fedfuse.data.table_columns import Table, natural
from fedfuse.errors import FedfuseError
from fedfuse.utils.typing import Floats, Ints

log = logging.getLogger(__name__)

OTHER = "other"
MISSING = "missing"


@dataclass(frozen=True)
class ScaledColumn:
    """Numbers or dates (as days): ``(x - mean) / sd``, missing as ``fill``, and a 0/1 column for missing.

    A column that never varies (``sd`` 0) is kept only for what its missing values say.
    """

    name: str
    kind: Literal["number", "date"]
    mean: float
    sd: float
    fill: float
    flag_missing: bool

    @property
    def features(self) -> tuple[str, ...]:
        title = self.name if self.kind == "number" else f"{self.name} (days)"
        return (title,) * (self.sd > 0) + (f"{self.name} {MISSING}",) * self.flag_missing

    @property
    def offsets(self) -> list[float]:
        return [self.mean] * (self.sd > 0) + [0.0] * self.flag_missing

    @property
    def scales(self) -> list[float]:
        return [self.sd] * (self.sd > 0) + [1.0] * self.flag_missing

    def write(self, table: Table, out: Floats) -> None:
        x = _values(table, self.name, self.kind)
        gaps = np.isnan(x)
        if self.flag_missing:
            out[:, -1] = gaps
        if self.sd > 0:
            out[:, 0] = (np.where(gaps, self.fill, x) - self.mean) / self.sd


@dataclass(frozen=True)
class LevelColumn:
    """One 0/1 column per level, or a single one for the second of two levels.

    A level not among ``levels`` counts as "other" where there is such a level, else all columns are 0 (with
    two levels: as the first).
    """

    name: str
    levels: tuple[str, ...]
    kind: Literal["level"] = "level"

    @property
    def _shown(self) -> tuple[str, ...]:
        return self.levels[1:] if len(self.levels) <= 2 else self.levels

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={level}" for level in self._shown)

    @property
    def offsets(self) -> list[float]:
        return [0.0] * len(self._shown)

    @property
    def scales(self) -> list[float]:
        return [1.0] * len(self._shown)

    def write(self, table: Table, out: Floats) -> None:
        codes, found = table.levels(self.name)
        places = {level: j for j, level in enumerate(self._shown)}
        # an unknown level is "other"; where that level is not shown, no column is set
        other = places.get(OTHER, -1)
        known = set(self.levels)
        lookup = np.array([places.get(v, -1) if v in known else other for v in [*found, MISSING]])
        place = lookup[codes]
        rows = np.flatnonzero(place >= 0)
        out[rows, place[rows]] = 1.0


Column: TypeAlias = ScaledColumn | LevelColumn


def fit_column(table: Table, name: str, train: Ints) -> Column | None:
    """Learn a column from the training rows; None if it tells nothing, which is logged."""
    if table.missing(name)[train].all():
        log.warning("column %r is dropped: it is empty in all training rows", name)
        return None
    kind = table.kind(name)
    column = _fit_levels(table, name, train) if kind == "level" else _fit_scaled(table, name, kind, train)
    if column is not None and not column.features:
        log.warning("column %r is dropped: all its training rows say the same, or only rare things", name)
        return None
    return column


def _values(table: Table, name: str, kind: Literal["number", "date"]) -> Floats:
    return table.numbers(name) if kind == "number" else table.days(name)


def _fit_scaled(table: Table, name: str, kind: Literal["number", "date"], train: Ints) -> ScaledColumn:
    x = _values(table, name, kind)[train]
    seen = x[~np.isnan(x)]
    # not sd == 0, which rounding can miss
    varies = seen.min() < seen.max()
    with np.errstate(over="ignore"):
        mean, sd = float(seen.mean()), float(seen.std()) if varies else 0.0
    if not np.isfinite([mean, sd]).all():
        raise FedfuseError(f"column {name!r} holds values up to {np.abs(seen).max():g}, too large to standardise")
    return ScaledColumn(name, kind, mean, sd, float(np.median(seen)), len(seen) < len(x))


def _fit_levels(table: Table, name: str, train: Ints) -> LevelColumn | None:
    codes, found = table.levels(name)
    counts = np.bincount(codes[train] + 1, minlength=len(found) + 1)
    gaps, counts = int(counts[0]), counts[1:]
    if _like_identifier(counts):
        _refuse_numbers_as_text(table, name)
        log.warning("column %r is dropped: nearly every row has a value of its own", name)
        return None
    common = counts >= rare_below(len(train))
    levels = sorted((found[j] for j in np.flatnonzero(common)), key=natural)
    # text that says "other" or "missing" joins the pool of that name
    pooled = bool(counts[~common].any()) or OTHER in levels
    empty = gaps > 0 or MISSING in levels
    kept = tuple(v for v in levels if v not in (OTHER, MISSING))
    return LevelColumn(name, kept + (OTHER,) * pooled + (MISSING,) * empty)


def rare_below(n: int) -> float:
    """Return how many of n training rows a level needs: 1 %, and at least 10 (in a small table 5 %).

    >>> rare_below(100), rare_below(500), rare_below(10_000)
    (5.0, 10.0, 100.0)
    """
    return max(0.01 * n, min(10.0, 0.05 * n))


def _like_identifier(counts: Ints) -> bool:
    distinct, rows = np.count_nonzero(counts), counts.sum()
    return bool(distinct > 20 and distinct > 0.9 * rows)


def _refuse_numbers_as_text(table: Table, name: str) -> None:
    # a single "?" turns a column of numbers into text; dropping it silently would be a trap
    values = table.series(name).dropna()
    bad = pd.to_numeric(values.astype(object), errors="coerce").isna()
    if bad.mean() < 0.5:
        example: Any = values[bad].iloc[0] if bad.any() else values.iloc[0]
        raise FedfuseError(
            f"column {name!r} looks like numbers but holds text such as {str(example)!r}; "
            "convert it to numbers, and leave missing values empty"
        )


def column_from_json(spec: dict[str, Any]) -> Column:
    """Return the column that this plain dict describes."""
    if spec["kind"] == "level":
        return LevelColumn(spec["name"], tuple(spec["levels"]))
    return ScaledColumn(**spec)
