"""Readers of table files: .csv with any usual delimiter, decimal mark and encoding, .tsv, .txt, .xlsx and .parquet.

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

from fedfuse.data.text_values import plain_table
from fedfuse.errors import FedfuseError

log = logging.getLogger(__name__)

SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".xlsx", ".parquet")
DELIMITERS = (";", "\t", "|", ",")  # The first of equals is taken: headers have commas more often than semicolons.
# Excel writes a byte order mark; cp1252 is what Windows calls latin-1, and leaves five bytes undefined.
_ENCODINGS = ("utf-8-sig", "cp1252", "latin-1")
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_SAMPLE_BYTES, _SAMPLE_ROWS = 65_536, 50
_EXTRAS = {".parquet": ("pyarrow", "parquet"), ".xlsx": ("openpyxl", "excel")}


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a .csv, .tsv, .txt (also .gz), .xlsx or .parquet file; raise a `FedfuseError` that says what is wrong.

    Delimiter, encoding and the row of column names are told from the file; numbers, dates and durations are read as
    people write them (`text_values`). Of a workbook the largest sheet is read.
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
        log.warning("the first column has no name and numbers the rows: it is dropped")
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
        frame = _read_workbook(path) if suffix == ".xlsx" else _read_text(path)
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
        reason = reason.removeprefix("Error tokenizing data. C error: ")
        raise FedfuseError(f"cannot read {str(path)!r}: {reason}") from None
    frame.columns = pd.Index([str(name).strip() or str(name) for name in frame.columns])
    for name in frame.columns[[pd.api.types.is_string_dtype(dtype) for dtype in frame.dtypes]]:
        frame[name] = frame[name].str.strip()  # " a" is no other device than "a".
    return plain_table(frame, digits=True)


def _read_workbook(path: Path) -> pd.DataFrame:
    with pd.ExcelFile(path, engine="openpyxl") as book:
        sheet = max(book.sheet_names, key=lambda name: book.book[name].max_row or 0)
        if len(book.sheet_names) > 1:
            log.warning("sheet %r is read, the longest of %d", sheet, len(book.sheet_names))
        top = pd.read_excel(book, sheet, header=None, nrows=_SAMPLE_ROWS, dtype=str, na_filter=False)
        filled = (top != "").sum(axis=1).to_numpy()
        if not filled.any():
            raise pd.errors.EmptyDataError
        header = int(np.argmax(2 * filled > filled.max()))
        _check_header(path, top.iloc[header], header)
        frame: pd.DataFrame = pd.read_excel(book, sheet, skiprows=header)
        return frame


def _read_text(path: Path) -> pd.DataFrame:
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        sample = file.read(_SAMPLE_BYTES)
    encodings = ("utf-16",) if sample.startswith(_UTF16_MARKS) else _ENCODINGS
    if encodings == _ENCODINGS and b"\0" in sample:
        raise FedfuseError(f"{str(path)!r} is not text: it holds zero bytes; save it as CSV UTF-8")
    text = sample.decode(encodings[0], errors="replace")
    delimiter, skipped = find_delimiter(text, whole=len(sample) < _SAMPLE_BYTES)
    # pandas is twenty times as fast as we are in reading decimal commas, but must be told.
    cells = (cell for row, _ in _first_rows(text, delimiter) for cell in row)
    marks = {match[1] for cell in cells if (match := re.fullmatch(r"\s*[+-]?\d+([.,])\d+\s*", cell))}
    if delimiter != "," and len(marks) > 1:
        log.warning("%s has numbers with commas and with points: both are taken as decimals", path.name)
    decimal = "," if delimiter != "," and marks == {","} else "."
    for encoding in encodings:
        how: dict[str, Any] = {"encoding": encoding, "sep": delimiter, "decimal": decimal, "skiprows": skipped}
        try:
            # One type per column over the whole file, not per chunk.
            frame: pd.DataFrame = pd.read_csv(path, low_memory=False, **how)
        except UnicodeDecodeError:
            continue
        header = pd.read_csv(path, header=None, nrows=1, dtype=str, na_filter=False, **how).iloc[0]
        _check_header(path, header, skipped)
        if encoding in _ENCODINGS[1:]:
            log.warning("%s is not UTF-8 text: read as %s (Western European)", path.name, encoding)
        return frame
    raise FedfuseError(f"{str(path)!r} is not text in {' or '.join(encodings)}; save it as CSV UTF-8")


def find_delimiter(text: str, whole: bool = True) -> tuple[str, int]:
    r"""Return the delimiter with which most rows have as many fields, and the number of lines before the header.

    >>> find_delimiter("site;dose, mg\na;1,5\n"), find_delimiter("Report\n\na\tb\n1\t2\n"), find_delimiter("only\n1\n")
    ((';', 0), ('\t', 2), (',', 0))
    """

    def fit(delimiter: str) -> tuple[float, int, int]:
        rows = _first_rows(text, delimiter)
        rows = rows if whole or len(rows) == _SAMPLE_ROWS else rows[:-1]  # The last row of a sample is cut.
        counts = [len(row) for row, _ in rows]
        fields = max(counts, key=counts.count, default=0)
        if fields < 2:
            return 0.0, 0, 0
        # R leaves out the name of the row names.
        header = next(i for i, count in enumerate(counts) if count >= max(fields - 1, 2))
        return counts.count(fields) / len(counts), fields, rows[header][1]

    try:
        best = max(DELIMITERS, key=fit)
        return (best, fit(best)[2]) if any(fit(best)) else (",", 0)
    except csv.Error:
        return ",", 0


def _first_rows(text: str, delimiter: str) -> list[tuple[list[str], int]]:
    """Return the first rows that are not empty, and the number of lines before each."""
    reader, rows, line = csv.reader(StringIO(text), delimiter=delimiter), [], 0
    for row in islice(reader, _SAMPLE_ROWS):
        rows += [(row, line)] if row else []
        line = reader.line_num
    return rows


def _check_header(path: Path, header: pd.Series[Any], skipped: int) -> None:
    """Refuse names that occur twice; log how many lines before them are left out."""
    # pandas renames a second column "a" to "a.1"; a second target would become a feature.
    names = header.str.strip()
    twice = names[names.duplicated() & (names != "")]
    if len(twice):
        raise FedfuseError(f"two columns of {str(path)!r} are called {twice.iloc[0]!r}: rename or remove one")
    if skipped:
        log.warning("%s: the table begins on line %d; the lines before it are skipped", path.name, skipped + 1)
