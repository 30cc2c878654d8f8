"""Files that are written whole or not at all, and JSON and arrays read with care.

Nothing is pickled, so nothing is executed when a file is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias, get_args, get_origin

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError

NUMBER, NOTHING = (int, float), type(None)
Kinds: TypeAlias = Any  # A type, list[int] or dict[str, int], or a tuple of these.
_HALF = ".half"
_WORDS: dict[Any, str] = {dict: "an object", list: "a list", str: "text", int: "a whole number", float: "a number"}
_WORDS |= {bool: "true or false", NOTHING: "null", list[int]: "a list of whole numbers", list[str]: "a list of text"}


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes its name only when it is complete and on disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_HALF}")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Write data as JSON; what JSON has no word for (nan) becomes null."""
    with atomic_write(path) as file:
        file.write((json.dumps(without_nan(data), indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file of a run directory."""
    return _read(path, lambda: json.loads(path.read_text(encoding="utf-8")))


def write_csv(path: Path, table: Any, *, index: bool = False) -> None:
    """Write a data frame as CSV."""
    with atomic_write(path) as file:
        file.write(table.to_csv(index=index, lineterminator="\n").encode())


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
    inside = value.values() if isinstance(value, dict) else value
    return isinstance(value, get_origin(kind) or kind) and all(
        isinstance(each, of) for of in get_args(kind)[-1:] for each in inside
    )


def _short(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def write_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]], *, compress: bool = False) -> None:
    """Write named arrays (.npz, no pickles)."""
    with atomic_write(path) as file:
        (np.savez_compressed if compress else np.savez)(file, **arrays)  # type: ignore[arg-type]


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Read named arrays; refuse anything that would have to be unpickled."""

    def read() -> dict[str, npt.NDArray[Any]]:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:  # np.load leaves bad files open
            return dict(arrays)

    arrays: dict[str, npt.NDArray[Any]] = _read(path, read)
    return arrays


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


def _read(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (FileNotFoundError, NotADirectoryError):
        raise FedfuseError(f"{path.parent} holds no run of fedfuse: {path.name} is missing") from None
    except Exception as problem:  # there is no end to what readers raise on damaged files
        raise FedfuseError(f"{path} is damaged or cut short ({problem})") from None
