"""Tables from files: .csv, .csv.gz and .parquet."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import pandas as pd

from fedfuse.errors import FedfuseError

log = logging.getLogger(__name__)

SUFFIXES = (".csv", ".csv.gz", ".parquet")
_ENCODING = "utf-8-sig"  # Excel writes a mark at the beginning


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a .csv, .csv.gz or .parquet file.

    Raises
    ------
    FedfuseError
        If the file is missing, empty, cut short, of another kind, or Parquet without pyarrow.
    """
    path = Path(path).expanduser()
    if not path.name.lower().endswith(SUFFIXES):
        raise FedfuseError(f"cannot read {str(path)!r}: the name must end in {', '.join(SUFFIXES)}")
    if path.is_dir():
        raise FedfuseError(f"{str(path)!r} is a directory; give a file that ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise FedfuseError(f"there is no file {str(path)!r}; check the path")
    if path.stat().st_size == 0:
        raise FedfuseError(f"the file {str(path)!r} is empty")
    frame = _read_parquet(path) if path.name.lower().endswith(".parquet") else _read_csv(path)
    if not len(frame) or not len(frame.columns):
        raise FedfuseError(f"the file {str(path)!r} holds no rows")
    return frame


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        # one type per column over the whole file
        frame = pd.read_csv(path, low_memory=False, encoding=_ENCODING)
        _refuse_twice(path, frame)
    except pd.errors.EmptyDataError:
        raise FedfuseError(f"the file {str(path)!r} is empty") from None
    except (pd.errors.ParserError, UnicodeDecodeError, OSError, EOFError) as problem:
        raise _unreadable(path, problem) from None
    if len(frame.columns) == 1 and any(mark in str(frame.columns[0]) for mark in ";\t"):
        raise FedfuseError(f"the columns of {str(path)!r} are not separated by commas; save it with commas")
    return _without_saved_index(frame)


def _refuse_twice(path: Path, frame: pd.DataFrame) -> None:
    """Refuse two columns of one name: pandas calls the second a.1, and a second target would become a feature."""
    if not any(re.fullmatch(r".+\.\d+", str(name)) for name in frame.columns):
        return
    header = pd.read_csv(path, header=None, nrows=1, dtype=str, keep_default_na=False, encoding=_ENCODING).iloc[0]
    twice = header[header.duplicated() & (header != "")]
    if len(twice):
        raise FedfuseError(f"two columns of {str(path)!r} are called {twice.iloc[0]!r}: rename or remove one")


def _without_saved_index(frame: pd.DataFrame) -> pd.DataFrame:
    # DataFrame.to_csv writes row numbers as a first column without a name; they are no feature
    first = frame.columns[0]
    if first == "Unnamed: 0" and np.array_equal(frame[first], np.arange(len(frame))):
        log.warning("the first column has no name and numbers the rows: dropped")
        frame = frame.iloc[:, 1:]
    return frame


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        import pyarrow
    except ImportError:
        raise FedfuseError(
            f'reading {str(path)!r} needs pyarrow: pip install "fedfuse[parquet]", or use a .csv file'
        ) from None
    try:
        frame: pd.DataFrame = pd.read_parquet(path, engine="pyarrow")
    except (pyarrow.ArrowException, OSError) as problem:
        raise _unreadable(path, problem) from None
    return frame


def _unreadable(path: Path, problem: Exception) -> FedfuseError:
    reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
    return FedfuseError(f"cannot read {str(path)!r}: {reason}")
