"""Encoders of table columns: numbers and dates are standardised, categories one-hot encoded, missing values filled.

Everything is learned from training rows only. Errors name the column, the device and the row.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedfuse.data.checks import natural_key
from fedfuse.data.federation import Goal
from fedfuse.data.text_values import are_numbers, plain_table
from fedfuse.errors import FedfuseError, guess
from fedfuse.utils.files import NUMBER, Kinds, check_fields
from fedfuse.utils.typing import Bools, Floats, Ints

log = logging.getLogger(__name__)

Kind: TypeAlias = Literal["number", "date", "level"]

OTHER = "other"
MISSING = "missing"
# A text column with more distinct values than this, in more than this ratio of its rows, holds identifiers.
MIN_IDENTIFIERS, MIN_IDENTIFIER_RATIO = 20, 0.9
# A column of numbers with a few words in it has at most this ratio of them; more are codes, as A12 and 7.
MAX_STRAY_RATIO = 0.05
# Cycles of the calendar that dates may have, in days. A cycle needs dates in this many of twelve equal parts of it.
CYCLES_DAYS = {"time of year": 365.2425, "time of day": 1.0}
MIN_CYCLE_PARTS = 4
WEEKEND = "weekend"

_OBJECT_KINDS: dict[str, Kind] = {
    **dict.fromkeys(("integer", "floating", "decimal", "mixed-integer-float"), "number"),
    **dict.fromkeys(("datetime", "datetime64", "date", "timedelta", "timedelta64"), "date"),
}
_SAVED: dict[str, Kinds] = {
    "version": int, "device": str, "target": str, "goal": str, "classes": list, "columns": list,
}  # fmt: skip
_SAVED_COLUMN: dict[str, Kinds] = {
    "name": str, "kind": str, "levels": list[str], "mean": NUMBER, "sd": NUMBER, "fill": NUMBER, "flag_missing": bool,
    "calendar": list[str],
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """Columns of a data frame, read as numbers, days or levels; its index has the numbers of the rows as given."""

    frame: pd.DataFrame
    device: str

    @classmethod
    def of(cls, frame: pd.DataFrame, device: str, as_given: Iterable[str] = ()) -> Table:
        """Return the table of a data frame, which is not changed; columns ``as_given`` and the device stay text."""
        if not isinstance(frame, pd.DataFrame):
            raise FedfuseError(f"expected a pandas DataFrame, got a {type(frame).__name__}")
        if not len(frame):
            raise FedfuseError("the table has no rows")
        names = pd.Index([str(name) for name in frame.columns])
        if names.has_duplicates:
            raise FedfuseError(f"two columns are called {names[names.duplicated()][0]!r}: rename one")
        shown = frame.copy(deep=False)
        shown.columns, shown.index = names, pd.RangeIndex(len(frame))
        return cls(plain_table(shown, as_given={device, *as_given}), device)

    def __len__(self) -> int:
        return len(self.frame)

    def at(self, rows: npt.NDArray[Any]) -> Table:
        """Return the table with these rows only, in this order."""
        return replace(self, frame=self.frame.iloc[rows])

    def require(self, names: Iterable[str], what: str = "column") -> None:
        """Refuse columns that the table does not have; suggest the nearest."""
        columns = list(self.frame.columns)
        for name in names:
            if name not in columns:
                known, question = ", ".join(map(repr, columns)), guess(str(name), columns)
                raise FedfuseError(f"the table has no {what} {name!r}; {question}its columns are {known}")

    def missing(self, name: str) -> Bools:
        return np.asarray(self.frame[name].isna(), dtype=np.bool_)

    def kind(self, name: str) -> Kind:
        """Tell what a column holds: numbers, dates or durations, or levels (text, booleans, …)."""
        types, dtype = pd.api.types, self.frame[name].dtype
        if isinstance(dtype, pd.CategoricalDtype) or types.is_bool_dtype(dtype):
            return "level"
        if types.is_complex_dtype(dtype):
            raise FedfuseError(f"column {name!r} holds complex numbers; split it into real and imaginary parts")
        if types.is_numeric_dtype(dtype):
            return "number"
        if types.is_datetime64_any_dtype(dtype) or types.is_timedelta64_dtype(dtype):
            return "date"
        return _OBJECT_KINDS.get(types.infer_dtype(self.frame[name], skipna=True), "level")

    def values(self, name: str, kind: Literal["number", "date"]) -> Floats:
        """Return a column as `numbers`, or as `days`."""
        return self.numbers(name) if kind == "number" else self.days(name)

    def numbers(self, name: str) -> Floats:
        """Return a column as float64, missing values as NaN."""
        series = self.frame[name]
        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(object)
        values = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        self._refuse(name, np.isnan(values) & ~self.missing(name), "numbers are needed")
        self._refuse(name, np.isinf(values), "finite numbers are needed (leave missing values empty)")
        return values

    def weights(self, name: str) -> Floats:
        """Return a column of numbers of at least 0, without missing ones."""
        values = self.numbers(name)
        self._refuse(name, ~(values >= 0), "weights are numbers of at least 0")
        return values

    def days(self, name: str) -> Floats:
        """Return dates as days since 1970-01-01 and durations as days; missing values as NaN."""
        series = self.frame[name]
        if self.has_durations(name):
            spans = pd.to_timedelta(series)
        else:
            dates = pd.to_datetime(series, format="ISO8601", utc=True, errors="coerce")
            self._refuse(name, np.asarray(dates.isna()) & ~self.missing(name), "dates like 2024-03-31 are needed")
            spans = dates - pd.Timestamp(0, tz="UTC")
        days: Floats = (spans / pd.Timedelta(days=1)).to_numpy(dtype=np.float64, na_value=np.nan)
        return days

    def has_durations(self, name: str) -> bool:
        return pd.api.types.infer_dtype(self.frame[name], skipna=True) in ("timedelta", "timedelta64")

    def levels(self, name: str) -> tuple[Ints, list[str]]:
        """Return the number of each row's level (-1: missing), and the levels as text."""
        try:
            codes, found = pd.factorize(self.frame[name])
        except TypeError:
            raise FedfuseError(f"column {name!r} holds lists or other objects; use numbers or text") from None
        merged, levels = pd.factorize(np.array([as_text(v) for v in found], dtype=object))
        # Code -1 picks the last entry.
        return np.append(merged, -1)[codes].astype(np.int64), list(levels)

    def _refuse(self, name: str, bad: Bools, need: str) -> None:
        if not bad.any():
            return
        row = self.frame.iloc[int(np.argmax(bad))]
        owner = f"device {as_text(row[self.device])!r}, " if self.device in row else ""
        raise FedfuseError(
            f"{owner}column {name!r}, row {row.name} (from 0): the value is {str(row[name])!r}, but {need}"
        )


def as_text(value: Any) -> str:
    """Return a level or a device's name as text; 3.0 is "3": whole numbers turn float beside missing values."""
    whole = isinstance(value, (float, np.floating)) and float(value).is_integer()
    return str(int(value) if whole else value)


@dataclass(frozen=True)
class ScaledColumn:
    """Standardised numbers or dates (as days): ``(x - mean) / sd``, and a 0/1 feature for missing values.

    Missing values become ``fill``. A column that never varies (``sd`` 0) keeps the 0/1 feature only. ``calendar`` has
    the parts of dates that are features, too: sine and cosine of the cycles of `CYCLES_DAYS`, and a 0/1 for weekends.
    """

    name: str
    kind: Literal["number", "date"]
    mean: float
    sd: float
    fill: float
    flag_missing: bool
    calendar: tuple[str, ...] = ()

    @property
    def features(self) -> dict[str, tuple[float, float]]:
        """Offset and scale of each feature, by its name."""
        title = self.name if self.kind == "number" else f"{self.name} (days)"
        scaled = {title: (self.mean, self.sd)} if self.sd > 0 else {}
        for part in self.calendar:
            waves = [""] if part == WEEKEND else [", sin", ", cos"]
            scaled |= {f"{self.name} ({part}{wave})": (0.0, 1.0) for wave in waves}
        return scaled | ({f"{self.name} {MISSING}": (0.0, 1.0)} if self.flag_missing else {})

    def write(self, table: Table, out: Floats) -> None:
        """Write the features of each row into an array of zeros."""
        x = table.values(self.name, self.kind)
        gaps = np.isnan(x)
        if self.flag_missing:
            out[:, -1] = gaps
        if self.sd > 0:
            out[:, 0] = (np.where(gaps, self.fill, x) - self.mean) / self.sd
        if self.calendar:
            parts = np.column_stack([_calendar_part(part, x[~gaps]) for part in self.calendar])
            first = int(self.sd > 0)
            out[~gaps, first : first + parts.shape[1]] = parts


@dataclass(frozen=True)
class LevelColumn:
    """One-hot encoded categories: a 0/1 feature per level, or a single one for the second of two levels.

    A level that is not among ``levels`` counts as "other" where there is such a level; otherwise all features are 0
    (with two levels: as the first).
    """

    name: str
    levels: tuple[str, ...]
    kind: Literal["level"] = "level"

    @property
    def _shown(self) -> tuple[str, ...]:
        return self.levels[1:] if len(self.levels) <= 2 else self.levels

    @property
    def features(self) -> dict[str, tuple[float, float]]:
        return {f"{self.name}={level}": (0.0, 1.0) for level in self._shown}

    def write(self, table: Table, out: Floats) -> None:
        codes, found = table.levels(self.name)
        places = {level: j for j, level in enumerate(self._shown)}
        # An unknown level is "other"; where that level is not shown, no feature is set.
        other, known = places.get(OTHER, -1), set(self.levels)
        place = np.array([places.get(v, -1) if v in known else other for v in [*found, MISSING]])[codes]
        rows = np.flatnonzero(place >= 0)
        out[rows, place[rows]] = 1.0


Column: TypeAlias = ScaledColumn | LevelColumn


def fit_column(table: Table, name: str, train: Ints, scale: bool = True) -> Column | None:
    """Learn a column from training rows, in units unless ``scale``; None, and a warning, if it tells nothing."""
    if table.missing(name)[train].all():
        log.warning("column %r is dropped: it is empty in all training rows", name)
        return None
    kind = table.kind(name)
    column = _fit_levels(table, name, train) if kind == "level" else _fit_scaled(table, name, kind, train)
    if isinstance(column, ScaledColumn) and not scale:
        column = replace(column, mean=0.0, sd=1.0)
    if column is not None and not column.features:
        log.warning("column %r is dropped: it is constant over the training rows, or has rare levels only", name)
        return None
    return column


def _fit_scaled(table: Table, name: str, kind: Literal["number", "date"], train: Ints) -> ScaledColumn:
    x = table.values(name, kind)[train]
    seen = x[~np.isnan(x)]
    varies = seen.min() < seen.max()  # Rounding can give a constant column an sd above 0.
    with np.errstate(over="ignore"):
        mean, sd = float(seen.mean()), float(seen.std()) if varies else 0.0
    if not np.isfinite([mean, sd]).all():
        raise FedfuseError(f"column {name!r} holds values up to {np.abs(seen).max():g}, too large to standardise")
    calendar = _fit_calendar(seen) if kind == "date" and not table.has_durations(name) else ()
    return ScaledColumn(name, kind, mean, sd, float(np.median(seen)), len(seen) < len(x), calendar)


def _fit_calendar(days: Floats) -> tuple[str, ...]:
    """Return the parts of the calendar that dates can tell: they go through the cycle at least twice, in many places.

    >>> _fit_calendar(np.arange(0, 800.0)), _fit_calendar(np.arange(0, 50, 0.2)), _fit_calendar(np.arange(5) * 365.0)
    (('time of year', 'weekend'), ('time of day', 'weekend'), ())
    """
    span, dates = np.ptp(days), np.unique(np.floor(days))
    parts = [
        name
        for name, period in CYCLES_DAYS.items()
        if span >= 2 * period and len(np.unique(np.floor(12 * (days / period % 1)))) >= MIN_CYCLE_PARTS
    ]
    weekends = _calendar_part(WEEKEND, days).mean()
    # Dates must be more frequent than once a week; the first days of months are weekends by chance.
    if span >= 14 and len(dates) > span / 7 and 0.01 <= weekends <= 0.99:
        parts.append(WEEKEND)
    return tuple(parts)


def _calendar_part(part: str, days: Floats) -> Floats:
    """Return the features of a part of the calendar (rows x 1 or 2); 1970-01-01, day 0, was a Thursday."""
    if part == WEEKEND:
        return ((np.floor(days) + 3) % 7 >= 5).astype(np.float64)[:, None]
    angle = 2 * np.pi * days / CYCLES_DAYS[part]
    return np.stack([np.sin(angle), np.cos(angle)], axis=1)


def _fit_levels(table: Table, name: str, train: Ints) -> LevelColumn | None:
    codes, found = table.levels(name)
    counts = np.bincount(codes[train] + 1, minlength=len(found) + 1)
    gaps, counts = int(counts[0]), counts[1:]
    distinct = np.count_nonzero(counts)
    if distinct > MIN_IDENTIFIERS:
        # A single ">90" turns a column of numbers into text; dropping it with a warning only would be a trap.
        numbers = are_numbers(pd.Series(found)).to_numpy()
        rows = np.bincount(codes[codes >= 0], minlength=len(found))
        others = float(rows[~numbers].sum() / rows.sum())
        identifiers = distinct > MIN_IDENTIFIER_RATIO * counts.sum()
        if (identifiers and others < 0.5) or (numbers.sum() > MIN_IDENTIFIERS and 0 < others <= MAX_STRAY_RATIO):
            example = found[int(np.argmin(numbers))]  # The first if all are numbers, which were text on purpose.
            raise FedfuseError(
                f"column {name!r} looks like numbers but holds text such as {example!r}; "
                "convert it to numbers, and leave missing values empty"
            )
        if identifiers:
            log.warning("column %r is dropped: nearly every row has a different value, as identifiers have", name)
            return None
    # A level needs 1 % of the training rows, and at least 10 (in a small table 5 %).
    common = counts >= max(0.01 * len(train), min(10.0, 0.05 * len(train)))
    levels = sorted((found[j] for j in np.flatnonzero(common)), key=natural_key)
    # Text that says "other" or "missing" joins the level of that name.
    pooled = bool(counts[~common].any()) or OTHER in levels
    empty = gaps > 0 or MISSING in levels
    kept = tuple(v for v in levels if v not in (OTHER, MISSING))
    return LevelColumn(name, kept + (OTHER,) * pooled + (MISSING,) * empty)


@dataclass(frozen=True)
class Encoder:
    """What was learned of a table's columns: plain data, saved as JSON, enough to predict for new tables.

    >>> from fedfuse.data import federation_from_frame
    >>> frame = pd.DataFrame({"site": ["a"] * 8 + ["b"] * 8, "age": [30, 50] * 8, "y": ["no", "yes"] * 8})
    >>> encoder = federation_from_frame(frame, device="site", target="y").encoder
    >>> encoder.features, encoder.transform(frame[:2]).ravel().tolist()
    (('age',), [-1.0, 1.0])
    >>> Encoder.from_json(encoder.to_json()) == encoder
    True
    """

    device: str
    target: str
    goal: Goal
    classes: tuple[Any, ...]  # labels behind class numbers; none for regression
    columns: tuple[Column, ...]

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the columns of `transform`."""
        return tuple(name for column in self.columns for name in column.features)

    def transform(self, table: pd.DataFrame | Table) -> Floats:
        """Return the features of each row of a table (rows x features). The target need not be there.

        Missing numbers become the training median. A level never seen in training counts as "other" where training
        had rare levels; otherwise all 0/1 features of that column are 0.
        """
        if not isinstance(table, Table):
            table = Table.of(table, self.device, [self.target, *(c.name for c in self.columns if c.kind == "level")])
        table.require([column.name for column in self.columns])
        X = np.zeros((len(table), len(self.features)))
        first = 0
        for column in self.columns:
            last = first + len(column.features)
            column.write(table, X[:, first:last])
            first = last
        return X

    def devices(self, frame: pd.DataFrame) -> npt.NDArray[np.object_]:
        """Return the device name of each row of a table, "" where it is missing."""
        table = Table.of(frame, self.device)
        table.require([self.device], "device column")
        codes, names = table.levels(self.device)
        return np.array([*names, ""], dtype=object)[codes]

    def targets(self, frame: pd.DataFrame) -> npt.NDArray[Any]:
        """Return the target of each row of a table: class numbers (-1: unknown), or values (NaN: missing)."""
        table = Table.of(frame, self.device)
        table.require([self.target], "target column")
        if self.goal == "regression":
            return table.numbers(self.target)
        codes, found = table.levels(self.target)
        known = {as_text(c): k for k, c in enumerate(self.classes)}
        return np.array([*(known.get(v, -1) for v in found), -1], dtype=np.int64)[codes]

    def unscale(self, coef: Floats) -> Floats:
        """Return coefficients (outputs x features and intercept) in the table's own units, for the same predictions."""
        offsets, scales = np.array([pair for column in self.columns for pair in column.features.values()]).T
        slopes = np.asarray(coef)[..., :-1] / scales
        intercept = np.asarray(coef)[..., -1:] - slopes @ offsets[:, None]
        return np.concatenate([slopes, intercept], axis=-1)

    def to_json(self) -> dict[str, Any]:
        """Return plain dicts, lists, numbers and text, as JSON has them."""
        fields: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {"version": 1, **fields}

    @classmethod
    def from_json(cls, spec: dict[str, Any]) -> Encoder:
        """Return the encoder that `to_json` wrote."""
        check_fields(spec, _SAVED, "the encoder", whole=False)
        try:
            if spec["version"] != 1:
                raise FedfuseError(f"this encoder is of version {spec['version']}; fedfuse here reads version 1")
            for column in spec["columns"]:
                check_fields(column, _SAVED_COLUMN, "a column of the encoder", whole=False)
            columns = tuple(
                LevelColumn(column["name"], tuple(column["levels"]))
                if column["kind"] == "level"
                else ScaledColumn(**{**column, "calendar": tuple(column.get("calendar", ()))})
                for column in spec["columns"]
            )
            return cls(spec["device"], spec["target"], spec["goal"], tuple(spec["classes"]), columns)
        except (KeyError, TypeError) as problem:
            raise FedfuseError(f"this is not the description of an encoder ({problem!r} is wrong)") from None


def unscaled_encoder(frame: pd.DataFrame, left_out: Iterable[str]) -> Encoder:
    """Learn all columns but those left out, as table files are read; numbers and dates keep their units."""
    table, columns = Table.of(frame.drop(columns=list(left_out)), ""), []
    for name in table.frame.columns:
        column = fit_column(table, name, np.arange(len(table)), scale=False)
        columns += [] if column is None else [column]
    return Encoder("", "", "regression", (), tuple(columns))
