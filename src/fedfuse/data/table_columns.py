"""A table's columns as numbers, days or levels; every complaint names the column, the device and the row."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from fedfuse.errors import FedfuseError, guess
from fedfuse.utils.typing import Bools, Floats, Ints

Kind: TypeAlias = Literal["number", "date", "level"]

_OBJECT_KINDS: dict[str, Kind] = {
    "integer": "number",
    "floating": "number",
    "decimal": "number",
    "mixed-integer-float": "number",
    "datetime": "date",
    "datetime64": "date",
    "date": "date",
    "timedelta": "date",
    "timedelta64": "date",
}
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class Table:
    """Columns of a data frame by name, and optionally which rows, in which order."""

    columns: dict[str, pd.Series[Any]]
    device: str
    n: int
    rows: Ints | None = None

    @classmethod
    def of(cls, frame: pd.DataFrame, device: str) -> Table:
        """Look at a data frame without copying it."""
        if not isinstance(frame, pd.DataFrame):
            raise FedfuseError(f"expected a pandas DataFrame, got a {type(frame).__name__}")
        names = [str(c) for c in frame.columns]
        twice = sorted({c for c in names if names.count(c) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise FedfuseError(f"two columns are called {twice[0]!r}: rename one")
        if not len(frame):
            raise FedfuseError("the table has no rows")
        return cls({c: frame.iloc[:, j] for j, c in enumerate(names)}, device, len(frame))

    def at(self, rows: Ints) -> Table:
        """Return the table with these rows of the frame only, in this order."""
        return replace(self, rows=rows, n=len(rows))

    def require(self, names: Iterable[str], what: str = "column") -> None:
        """Refuse columns that the table does not have; suggest the nearest."""
        for name in names:
            if name not in self.columns:
                known = ", ".join(map(repr, self.columns))
                question = guess(str(name), self.columns)
                raise FedfuseError(f"the table has no {what} {name!r}; {question}its columns are {known}")

    def series(self, name: str) -> pd.Series[Any]:
        column = self.columns[name]
        return column if self.rows is None else column.iloc[self.rows]

    def missing(self, name: str) -> Bools:
        return np.asarray(self.series(name).isna(), dtype=np.bool_)

    def kind(self, name: str) -> Kind:
        """Tell what a column holds: numbers, dates (also as ISO text), or levels (text, booleans, …)."""
        series, types = self.series(name), pd.api.types
        if isinstance(series.dtype, pd.CategoricalDtype) or types.is_bool_dtype(series.dtype):
            return "level"
        if types.is_complex_dtype(series.dtype):
            raise FedfuseError(f"column {name!r} holds complex numbers; split it into real and imaginary parts")
        if types.is_numeric_dtype(series.dtype):
            return "number"
        if types.is_datetime64_any_dtype(series.dtype) or types.is_timedelta64_dtype(series.dtype):
            return "date"
        found = types.infer_dtype(series, skipna=True)
        return "date" if found == "string" and _all_iso_dates(series) else _OBJECT_KINDS.get(found, "level")

    def numbers(self, name: str) -> Floats:
        """Return a column as float64, missing values as NaN."""
        series = self.series(name)
        if isinstance(series.dtype, pd.CategoricalDtype):
            series = series.astype(object)
        values = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        self._refuse(name, np.isnan(values) & ~self.missing(name), "numbers are needed")
        self._refuse(name, np.isinf(values), "finite numbers are needed (leave missing values empty)")
        return values

    def days(self, name: str) -> Floats:
        """Return a column of dates as days since 1970-01-01, of durations as days; missing values as NaN."""
        series = self.series(name)
        if pd.api.types.infer_dtype(series, skipna=True) in ("timedelta", "timedelta64"):
            spans = pd.to_timedelta(series)
        else:
            dates = pd.to_datetime(series, format="ISO8601", utc=True, errors="coerce")
            self._refuse(name, np.asarray(dates.isna()) & ~self.missing(name), "dates like 2024-03-31 are needed")
            spans = dates - pd.Timestamp(0, tz="UTC")
        days: Floats = (spans / pd.Timedelta(days=1)).to_numpy(dtype=np.float64, na_value=np.nan)
        return days

    def levels(self, name: str) -> tuple[Ints, list[str]]:
        """Return for each row the number of its level (-1: missing), and the levels as text."""
        try:
            codes, found = pd.factorize(self.series(name))
        except TypeError:
            raise FedfuseError(f"column {name!r} holds lists or the like; numbers or text are needed") from None
        merged, levels = pd.factorize(np.array([as_text(v) for v in found], dtype=object))
        # code -1 picks the last entry
        return np.append(merged, -1)[codes].astype(np.int64), list(levels)

    def _refuse(self, name: str, bad: Bools, need: str) -> None:
        if not bad.any():
            return
        at = int(np.argmax(bad))
        row = at if self.rows is None else int(self.rows[at])
        value = self.columns[name].iloc[row]
        device = f"device {self._device_at(row)!r}, " if self.device in self.columns else ""
        raise FedfuseError(f"{device}column {name!r}, row {row} (from 0): the value is {str(value)!r}, but {need}")

    def _device_at(self, row: int) -> str:
        return as_text(self.columns[self.device].iloc[row])


def as_text(value: Any) -> str:
    """Write a level or a device's name; 3.0 is 3, as a whole number turns float beside missing values."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


def natural(name: str) -> tuple[list[Any], str]:
    """Return a sort key that puts site2 before site10.

    >>> sorted(["site10", "site2", "7"], key=natural)
    ['7', 'site2', 'site10']
    """
    parts: list[Any] = re.split(r"(\d+)", name)
    parts[1::2] = map(int, parts[1::2])
    return parts, name


def text_array(codes: Ints, levels: list[str]) -> npt.NDArray[np.object_]:
    """Return the text of every row, "" where it is missing."""
    return np.array([*levels, ""], dtype=object)[codes]


def _all_iso_dates(series: pd.Series[Any]) -> bool:
    present = series.dropna()
    if present.empty or not _ISO_DATE.match(present.iloc[0]):
        return False
    return bool(pd.to_datetime(present, format="ISO8601", utc=True, errors="coerce").notna().all())
