"""Where data files are, and what to say when one is not there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from platformdirs import user_cache_dir

from fedfuse.errors import FedfuseError


def data_directory(explicit: str | Path | None = None) -> Path:
    """Return where data files are: what is given, else $FEDFUSE_DATA, else the user's cache directory."""
    chosen = explicit or os.environ.get("FEDFUSE_DATA") or user_cache_dir("fedfuse")
    return Path(chosen).expanduser()


def absent(files: Sequence[str], directory: Path) -> list[str]:
    """Return which of these files are not below a directory."""
    return [file for file in files if not (directory / file).is_file()]


def directory_with(files: Sequence[str], name: str, way: str, data_dir: str | Path | None) -> Path:
    """Return the data directory if it holds all files of a data set, else say how to come by them (``way``)."""
    directory = data_directory(data_dir)
    lacking = absent(files, directory)
    if lacking:
        raise FedfuseError(
            f"{name} needs the file {str(directory / lacking[0])!r}, which is not there; {way}, "
            f"or set FEDFUSE_DATA (or --data-dir) to the directory that holds {_listed(files)}"
        )
    return directory


def _listed(files: Sequence[str]) -> str:
    return " and ".join(files) if len(files) < 3 else f"{files[0]} and {len(files) - 1} more files"
