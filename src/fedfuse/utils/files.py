"""Files that are written whole or not at all, and JSON, arrays and tables read with care.

Directories may come from strangers. Nothing is pickled, so nothing is executed when a file is read; what is read is a
regular file in its directory, and its size is known before memory is taken for it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any, TypeAlias, get_args, get_origin

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError

log = logging.getLogger(__name__)

NUMBER, NOTHING = (int, float), type(None)
Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
Kinds: TypeAlias = Any  # A type, list[int] or dict[str, int], or a tuple of these.
MAX_JSON_BYTES = 1 << 25
MAX_TABLE_BYTES = 1 << 28
MAX_HEADER_BYTES = 1 << 16  # Of a table: its first line, and so its number of columns.
MAX_UNPACKED_BYTES = 1 << 28  # Of all compressed arrays of a file; others have their size on disk.
MAX_INTEGER = 2**63 - 1
_HALF = ".half"
# A link is not followed, and a pipe without a reader is an error and not a wait. Windows has neither word.
_NO_LINK, _NO_WAIT = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)
_WORDS: dict[Any, str] = {dict: "an object", list: "a list", str: "text", int: "a whole number", float: "a number"}
_WORDS |= {bool: "true or false", NOTHING: "null", list[int]: "a list of whole numbers", list[str]: "a list of text"}


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes its name only when it is complete and on disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_HALF}")
    with _writing(path):
        try:
            with temporary.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def make_directory(path: Path) -> None:
    """Make a directory, unless it is there."""
    with _writing(path):
        path.mkdir(parents=True, exist_ok=True)


def append_text(path: Path, text: str) -> None:
    """Add text to a file, which is made if there is none."""
    with _writing(path):
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK | _NO_WAIT, 0o644)
        with os.fdopen(handle, "a", encoding="utf-8") as file:
            file.write(text)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say in one sentence why a file cannot be written: the disk is full, or nobody may."""
    try:
        yield
    except OSError as problem:
        raise FedfuseError(f"cannot write to {path}: {problem.strerror or problem}") from None


_held: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())


@contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Keep other processes out of a directory until this one ends; who holds the lock may take it again."""
    held, here = _held.get(), directory.resolve()
    try:
        import fcntl
    except ImportError:  # Windows has no such locks.
        yield
        return
    if here in held:
        yield
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FedfuseError(f"another process is using {directory}: wait until it ends, or stop it") from None
        except OSError:  # Some file systems have no locks.
            log.debug("no lock on %s", directory)
        _held.set(held | {here})
        yield
    finally:
        _held.set(held)
        os.close(handle)


def check_no_link(path: Path) -> None:
    """Refuse to write into a directory that is a link to another: a run directory may come from a stranger."""
    if path.is_symlink():
        raise FedfuseError(f"{path} is a link to {path.readlink()}, which is not followed: remove the link")


def write_json(path: Path, data: Any) -> None:
    """Write data as JSON; what JSON has no word for (nan) becomes null."""
    with atomic_write(path) as file:
        file.write((json.dumps(without_nan(data), indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file of a run directory."""
    return _read(path, lambda: json.loads(_text(path), parse_constant=_refuse_constant))


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read objects, one on each line, without a last line that is being written."""

    def read() -> list[dict[str, Any]]:
        return [check_fields(json.loads(line), {}, path) for line in _text(path).split("\n")[:-1]]

    rows: list[dict[str, Any]] = _read(path, read)
    return rows


def _text(path: Path) -> str:
    with _open(path, MAX_JSON_BYTES) as file:
        return file.read().decode()


def read_csv(path: Path, text: Sequence[str] = ()) -> Any:
    """Read a CSV file of a run directory as a data frame; columns of ``text`` are text, whatever they look like."""
    import pandas as pd

    def read() -> Any:
        with _open(path, MAX_TABLE_BYTES) as file:
            if len(file.readline(MAX_HEADER_BYTES)) == MAX_HEADER_BYTES:
                raise ValueError("its first line is too long")
            file.seek(0)
            words = dict.fromkeys(text, "str")
            # pandas 3 reads every digit; pandas 2 may change the last one, unless it is told.
            exact: dict[str, Any] = {"float_precision": "round_trip"} if pd.__version__ < "3" else {}
            return pd.read_csv(file, dtype=words, na_values=[""], keep_default_na=not text, **exact)

    return _read(path, read)


def write_csv(path: Path, table: Any, *, index: bool = False) -> None:
    """Write a data frame as CSV."""
    with atomic_write(path) as file:
        file.write(csv_text(table, index=index).encode())


def csv_text(table: Any, *, index: bool = False) -> str:
    """Return a data frame as CSV; no text in it is a formula to a spreadsheet.

    >>> import pandas as pd
    >>> csv_text(pd.DataFrame({"device": ["=1+1", "a", "-5"], "score": [-0.5, 1, 2]})).split()
    ['device,score', "'=1+1,-0.5", 'a,1.0', '-5,2.0']
    """
    table = table.map(_not_a_formula).rename(columns=_not_a_formula)
    text: str = table.rename(index=_not_a_formula).to_csv(index=index, lineterminator="\n")
    return text


def _not_a_formula(cell: Any) -> Any:
    """Put an apostrophe before text that a spreadsheet would compute (OWASP, CSV injection); numbers stay numbers."""
    if not isinstance(cell, str) or not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def check_fields(data: Any, kinds: Mapping[str, Kinds], where: object, *, whole: bool = True) -> dict[str, Any]:
    """Return an object of a JSON file whose fields are of these kinds, and with ``whole`` all there.

    >>> check_fields({"seed": "x"}, {"seed": int}, "summary.json")
    Traceback (most recent call last):
        ...
    fedfuse.errors.FedfuseError: summary.json is not as fedfuse writes it: 'seed' must be a whole number, got 'x'
    """
    wrong = f"{where} is not as fedfuse writes it: "
    if not isinstance(data, dict):
        raise FedfuseError(f"{wrong}it must be an object, got {_short(data)}")
    for name, kind in kinds.items():
        if name not in data:
            if whole:
                raise FedfuseError(f"{wrong}{name!r} is missing")
        elif not _fits(data[name], kind):
            allowed = [_WORDS.get(k) or str(k) for k in (kind if isinstance(kind, tuple) else (kind,))]
            raise FedfuseError(f"{wrong}{name!r} must be {' or '.join(allowed)}, got {_short(data[name])}")
    return data


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return any(_fits(value, each) for each in kind)
    if isinstance(value, NUMBER) and not abs(value) <= MAX_INTEGER:
        return False
    inside = value.values() if isinstance(value, dict) else value
    return isinstance(value, get_origin(kind) or kind) and all(
        _fits(each, of) for of in get_args(kind)[-1:] for each in inside
    )


def _short(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def write_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]], *, compress: bool = False) -> None:
    """Write named arrays (.npz, no pickles)."""
    with atomic_write(path) as file:
        (np.savez_compressed if compress else np.savez)(file, **arrays)  # type: ignore[arg-type]


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read named arrays; refuse anything that would have to be unpickled, or that is larger than its file says."""

    def read() -> dict[str, npt.NDArray[Any]]:
        with _open(path) as file, zipfile.ZipFile(file) as archive:
            members, size = archive.infolist(), os.fstat(file.fileno()).st_size
            plain = sum(member.file_size for member in members if member.compress_type == zipfile.ZIP_STORED)
            if plain > size or sum(member.file_size for member in members) - plain > MAX_UNPACKED_BYTES:
                raise ValueError("its arrays are larger than fedfuse writes them")
            return {member.filename.removesuffix(".npy"): _read_array(archive, member) for member in members}

    arrays: dict[str, npt.NDArray[Any]] = _read(path, read)
    return arrays


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> npt.NDArray[Any]:
    """Read one array; no memory is taken on the word of its header alone."""
    with archive.open(member) as file:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("it is in another version of NumPy's format")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects, which fedfuse never writes")
        if file.tell() + math.prod(shape) * dtype.itemsize != member.file_size:
            raise ValueError(f"an array of shape {shape} in {member.file_size} bytes")
    with archive.open(member) as file:
        array: npt.NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
        return array


@contextmanager
def naming_damage(path: Path) -> Iterator[None]:
    """Say that a directory holds no whole run where its files, each of which can be read, do not fit together."""
    try:
        yield
    except FedfuseError:
        raise
    except Exception as problem:  # As many kinds as there are ways to be damaged.
        raise FedfuseError(f"{path} contains no complete run of fedfuse: {problem}") from problem


def without_nan(data: Any) -> Any:
    """Return JSON-ready data with None in place of nan and infinity."""
    if isinstance(data, dict):
        return {key: without_nan(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [without_nan(value) for value in data]
    if isinstance(data, np.generic):
        return without_nan(data.item())
    if isinstance(data, float) and not np.isfinite(data):
        return None
    return data


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _open(path: Path, limit: int | None = None) -> IO[bytes]:
    """Open a regular file, which may be a link within its directory, of at most so many bytes."""
    if not path.resolve().is_relative_to(path.parent.resolve()):
        raise ValueError("it is a link to another directory, which is not followed")
    file = os.fdopen(os.open(path, os.O_RDONLY | _NO_WAIT), "rb")
    size = os.fstat(file.fileno()).st_size
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or (limit is not None and size > limit):
        file.close()
        raise ValueError(f"not a regular file of at most {limit or size:,} bytes")
    return file


def _read(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (FileNotFoundError, NotADirectoryError):
        raise FedfuseError(f"{path.parent} holds no run of fedfuse: {path.name} is missing") from None
    except Exception as problem:  # there is no end to what readers raise on damaged files
        raise FedfuseError(f"{path} is damaged or cut short ({problem})") from None


def prefixed(prefix: str, arrays: Arrays) -> Arrays:
    """Return arrays with a prefix before their names."""
    return {prefix + name: array for name, array in arrays.items()}


def within(prefix: str, arrays: Arrays) -> Arrays:
    """Return the arrays whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
