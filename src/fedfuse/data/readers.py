"""Readers of table files: .csv with any usual delimiter, decimal mark and encoding, .tsv, .xlsx and .parquet.

What can be told from a file safely is not asked for. What was assumed is logged where it could be wrong.
"""

from __future__ import annotations

import csv
import gzip
import logging
import re
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedfuse.errors import FedfuseError

log = logging.getLogger(__name__)

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".xlsx", ".parquet")
DELIMITERS = (";", "\t", "|", ",")  # The first of equals is taken: headers have commas more often than semicolons.
# Excel writes a byte order mark; cp1252 is what Windows calls latin-1, and leaves five bytes undefined.
_ENCODINGS = ("utf-8-sig", "cp1252", "latin-1")
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_SAMPLE_BYTES, _SAMPLE_ROWS, _SAMPLE_VALUES = 65_536, 50, 1_000
_COMMA_NUMBER = r"\s*[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d+)?(?:[eE][+-]?\d+)?\s*"
# Dates with points have the day first everywhere; those with slashes do not, and stay text.
_POINT_DATE = r"\s*\d{1,2}\.\d{1,2}\.\d{4}(?: \d{1,2}:\d\d(?::\d\d)?)?\s*"
_EXTRAS = {".parquet": ("pyarrow", "parquet"), ".xlsx": ("openpyxl", "excel")}


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a .csv, .csv.gz, .tsv, .xlsx or .parquet file; raise a `FedfuseError` that says what is wrong with it.

    The delimiter of text (comma, semicolon, tab or bar), decimal commas, dates such as 31.12.2024 and the encoding
    (UTF-8, UTF-16, Windows-1252 or latin-1) are told from the file. Of a workbook the first sheet is read.
    """
    path = Path(path).expanduser()
    if not is_table(path):
        raise FedfuseError(f"cannot read {str(path)!r}: the name must end in {', '.join(SUFFIXES)}")
    if path.is_dir():
        raise FedfuseError(f"{str(path)!r} is a directory; give a file that ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise FedfuseError(f"there is no file {str(path)!r}; check the path")
    frame = _read(path)
    if not len(frame) or not len(frame.columns):
        raise FedfuseError(f"the file {str(path)!r} holds no rows")
    # DataFrame.to_csv writes row numbers as a first column without a name.
    if frame.columns[0] == "Unnamed: 0" and np.array_equal(frame.iloc[:, 0], np.arange(len(frame))):
        log.warning("the first column has no name and numbers the rows: dropped")
        frame = frame.iloc[:, 1:]
    return frame


def is_table(path: str | Path) -> bool:
    """Return whether a name ends as those of table files do."""
    return str(path).lower().endswith(SUFFIXES)


def _read(path: Path) -> pd.DataFrame:
    suffix = path.suffix.lower()
    try:
        if suffix == ".parquet":
            return pd.read_parquet(path, engine="pyarrow")
        if suffix != ".xlsx":
            return _read_text(path)
        with pd.ExcelFile(path, engine="openpyxl") as book:
            frame: pd.DataFrame = pd.read_excel(book)
            header = pd.read_excel(book, header=None, nrows=1, dtype=str, na_filter=False)
            _refuse_repeated_names(path, header.iloc[0])
            if len(book.sheet_names) > 1:
                log.warning("sheet %r is read, the first of %d", book.sheet_names[0], len(book.sheet_names))
        return frame
    except FedfuseError:
        raise
    except ImportError:
        package, extra = _EXTRAS[suffix]
        message = f'reading {str(path)!r} needs {package}: pip install "fedfuse[{extra}]", or use a .csv file'
        raise FedfuseError(message) from None
    except pd.errors.EmptyDataError:
        raise FedfuseError(f"the file {str(path)!r} is empty") from None
    except Exception as problem:  # Readers raise many kinds of errors on damaged files.
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise FedfuseError(f"cannot read {str(path)!r}: {reason}") from None


def _read_text(path: Path) -> pd.DataFrame:
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        sample = file.read(_SAMPLE_BYTES)
    encodings = ("utf-16",) if sample.startswith(_UTF16_MARKS) else _ENCODINGS
    if encodings == _ENCODINGS and b"\0" in sample:
        raise FedfuseError(f"{str(path)!r} is not text: it holds zero bytes; save it as CSV UTF-8")
    text = sample.decode(encodings[0], errors="replace")
    delimiter = find_delimiter(text, whole=len(sample) < _SAMPLE_BYTES)
    # pandas is twenty times as fast as we are in reading decimal commas, but must be told.
    cells = (cell for row in _first_rows(text, delimiter) for cell in row)
    marks = {match[1] for cell in cells if (match := re.fullmatch(r"\s*[+-]?\d+([.,])\d+\s*", cell))}
    decimal = "," if delimiter != "," and marks == {","} else "."
    for encoding in encodings:
        how: dict[str, Any] = {"encoding": encoding, "sep": delimiter, "decimal": decimal}
        try:
            # One type per column over the whole file, not per chunk.
            frame = pd.read_csv(path, low_memory=False, **how)
        except UnicodeDecodeError:
            continue
        _refuse_repeated_names(path, pd.read_csv(path, header=None, nrows=1, dtype=str, na_filter=False, **how).iloc[0])
        if encoding in _ENCODINGS[1:]:
            log.warning("%s is not UTF-8 text: read as %s (Western European)", path.name, encoding)
        # Between commas, "1,234" in quotes is more often a thousand than a decimal.
        return _with_dates(frame if delimiter == "," else _with_decimal_points(frame))
    raise FedfuseError(f"{str(path)!r} is not text in {' or '.join(encodings)}; save it as CSV UTF-8")


def find_delimiter(text: str, whole: bool = True) -> str:
    r"""Return the delimiter with which most rows have as many fields as the header; a comma where there is none.

    >>> find_delimiter("site;dose, mg\na;1,5\n"), find_delimiter("a\tb\n1\t2\n"), find_delimiter("only\n1\n")
    (';', '\t', ',')
    """

    def fit(delimiter: str) -> tuple[float, int]:
        rows = _first_rows(text, delimiter)
        rows = rows if whole or len(rows) == _SAMPLE_ROWS else rows[:-1]  # The last row of a sample is cut.
        fields = len(rows[0]) if rows else 0
        return (sum(len(row) == fields for row in rows) / len(rows), fields) if fields > 1 else (0.0, 0)

    try:
        best = max(DELIMITERS, key=fit)
        return best if any(fit(best)) else ","
    except csv.Error:
        return ","


def _first_rows(text: str, delimiter: str) -> list[list[str]]:
    return [row for row in islice(csv.reader(StringIO(text), delimiter=delimiter), _SAMPLE_ROWS) if row]


def _with_decimal_points(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with numbers such as 1.234,5 read; beside them a few other values stay, as text."""
    found = []
    for name in frame.columns:
        if pd.api.types.is_numeric_dtype(frame[name]):  # Booleans, too.
            continue
        if not frame[name].dropna()[:_SAMPLE_VALUES].astype(str).str.fullmatch(_COMMA_NUMBER).any():
            continue
        text = frame[name].astype(object)
        numbers = frame[name].astype(str).str.fullmatch(_COMMA_NUMBER) & text.notna()
        if 2 * numbers.sum() <= text.notna().sum() or not text[numbers].str.contains(",").any():
            continue
        text[numbers] = text[numbers].str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
        frame[name] = pd.to_numeric(text) if numbers.sum() == text.notna().sum() else text
        found.append(name)
    others = frame.drop(columns=found).select_dtypes("float")
    points = others.columns[(others % 1 > 0).any()]
    if found and len(points):
        log.warning("decimal commas in column %r, but points in %r: both are taken as decimals", found[0], points[0])
    return frame


def _with_dates(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table with columns of dates such as 31.12.2024 read."""
    for name in frame.columns:
        head = frame[name].dropna()[:_SAMPLE_VALUES]
        if len(head) and not pd.api.types.is_numeric_dtype(head) and head.astype(str).str.fullmatch(_POINT_DATE).all():
            dates = pd.to_datetime(frame[name], dayfirst=True, format="mixed", errors="coerce")
            if dates.notna().equals(frame[name].notna()):
                frame[name] = dates
    return frame


def _refuse_repeated_names(path: Path, header: pd.Series[Any]) -> None:
    # pandas renames a second column "a" to "a.1"; a second target would become a feature.
    twice = header[header.duplicated() & (header != "")]
    if len(twice):
        raise FedfuseError(f"two columns of {str(path)!r} are called {twice.iloc[0]!r}: rename or remove one")
