"""The one place that saves: a run is a directory of plain files, each written whole or not at all.

``config.json`` (what was asked for), ``checkpoint/latest.npz`` while the run goes on, and at the end what
`Result.save` writes. Nothing is pickled, so nothing is executed when a directory is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError

Kinds: TypeAlias = type | tuple[type, ...]

NUMBER, NOTHING = (int, float), type(None)
CONFIG: dict[str, Kinds] = {
    "dataset": str, "source": (dict, NOTHING), "fingerprint": str, "model": (dict, str), "method": dict,
    "settings": dict, "engine": dict, "version": str,
}  # fmt: skip
_WORDS = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
_META = "meta"
_HALF = ".half"


class Store:
    """A run directory."""

    def __init__(self, directory: str | PathLike[str]) -> None:
        self.directory = Path(directory)
        self._made: list[Path] = []  # directories that were not there before this run

    def check_free(self) -> None:
        """Refuse a directory that holds a run already."""
        if self.directory.exists() and not self.directory.is_dir():
            raise FedfuseError(f"{self.directory} is a file; a run needs a directory")
        if self.started:
            advice = "choose another directory"
            if not self.finished:
                advice = f"go on with it by 'fedfuse resume {self.directory}' or {advice}"
            raise FedfuseError(f"{self.directory} already holds a run: {advice}")

    def create(self, config: dict[str, Any]) -> None:
        """Begin a run here; refuse to write over another."""
        self.check_free()
        self._made = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            write_json(self.directory / "config.json", config)
        except OSError as problem:
            raise FedfuseError(f"cannot write to {self.directory}: {problem.strerror}") from None

    def config(self) -> dict[str, Any]:
        """Return what the run was asked to do."""
        path = self.directory / "config.json"
        config = read_json(path)
        if not isinstance(config, dict):
            raise FedfuseError(f"{self.directory} holds no run of fedfuse: config.json says something else")
        return check_fields(config, CONFIG, path, whole=False)

    def withdraw(self) -> None:
        """Take back `create`, and remove the directories that were made for the run, if nothing else is in them."""
        (self.directory / "config.json").unlink(missing_ok=True)
        self.tidy()
        for path in self._made:
            if any(path.iterdir()):
                break
            path.rmdir()

    @property
    def under_way(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return self._checkpoint.exists()

    @property
    def started(self) -> bool:
        return (self.directory / "config.json").exists() or self.finished

    @property
    def finished(self) -> bool:
        return (self.directory / "summary.json").exists()

    def save_checkpoint(self, meta: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Replace the last checkpoint."""
        (self.directory / "checkpoint").mkdir(exist_ok=True)
        text = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
        write_arrays(self._checkpoint, {_META: text, **arrays})

    def load_checkpoint(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]] | None:
        """Return the last checkpoint, or None if there is none yet."""
        if not self._checkpoint.exists():
            return None
        try:
            arrays = read_arrays(self._checkpoint)
        except FedfuseError as problem:
            raise FedfuseError(f"{problem}; remove it to begin the run anew") from None
        try:
            meta = json.loads(arrays.pop(_META).tobytes())
        except (KeyError, ValueError):
            raise FedfuseError(f"{self._checkpoint} is not a checkpoint of fedfuse") from None
        return meta, arrays

    def tidy(self) -> None:
        """Remove the checkpoint of a finished run, and what a killed process left half-written."""
        self._checkpoint.unlink(missing_ok=True)
        for folder in (self._checkpoint.parent, self.directory):
            for rest in folder.glob(f".*{_HALF}"):
                rest.unlink(missing_ok=True)
        if self._checkpoint.parent.exists() and not any(self._checkpoint.parent.iterdir()):
            self._checkpoint.parent.rmdir()

    @property
    def _checkpoint(self) -> Path:
        return self.directory / "checkpoint" / "latest.npz"


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
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
    with written_whole(path) as file:
        file.write((json.dumps(without_nan(data), indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file of a run directory."""
    return _read(path, lambda: json.loads(path.read_text(encoding="utf-8")))


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
        elif not isinstance(data[name], kind):
            allowed = [_WORDS.get(k, "null") for k in (kind if isinstance(kind, tuple) else (kind,))]
            raise FedfuseError(f"{wrong}{name!r} must be {' or '.join(allowed)}, got {_short(data[name])}")
    return data


def check_list(data: Sequence[Any], kinds: Kinds, n: int | None, name: str, where: object) -> None:
    """Refuse a list of a JSON file with values of another kind, or with other than n of them."""
    wrong = f"{where} is not as fedfuse writes it: {name!r}"
    if n is not None and len(data) != n:
        raise FedfuseError(f"{wrong} must have {n} values, got {len(data)}")
    odd = [value for value in data if not isinstance(value, kinds)]
    if odd:
        raise FedfuseError(f"{wrong} holds {_short(odd[0])}")


def _short(value: Any) -> str:
    text = json.dumps(value) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def write_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    """Write named arrays (.npz, no pickles)."""
    with written_whole(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


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
