"""Data files: where they are, their checksums, and downloads (mirror after mirror, never over a file)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeAlias

from platformdirs import user_cache_dir

from fedfuse.errors import FedfuseError

# The file, bytes so far, and bytes in all where the server says.
Progress: TypeAlias = Callable[[str, int, int | None], None]

# Seconds without a byte after which a mirror is given up.
TIMEOUT_SECONDS = 30.0
_CHUNK_BYTES = 1 << 16

# The checksums of every file below the data directory, the mirrors' first, as sha256sum prints them. The second ones of
# MNIST are the same images and labels in another gzip; those of Fashion-MNIST all images in another stratified split.
CHECKSUMS: dict[str, list[str]] = {}
for _line in Path(__file__).with_name("checksums.txt").read_text(encoding="ascii").splitlines():
    CHECKSUMS.setdefault(_line[66:], []).append(_line[:64])
# The addresses that have the files of a folder.
MIRRORS: dict[str, tuple[str, ...]] = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion-mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
}
_FOLDERS = {"housing-bodyfat": "tabular"}


def data_directory(explicit: str | Path | None = None) -> Path:
    """Return where data files are: what is given, else $FEDFUSE_DATA, else the user's cache directory."""
    chosen = explicit or os.environ.get("FEDFUSE_DATA") or user_cache_dir("fedfuse")
    return Path(chosen).expanduser()


def files_of(name: str) -> tuple[str, ...]:
    """Return the files of a data set, below the data directory; those of ``mnist:rotated`` are those of ``mnist``."""
    folder = _FOLDERS.get(name, name.partition(":")[0])
    return tuple(file for file in CHECKSUMS if file.startswith(f"{folder}/"))


def missing_files(name: str, data_dir: str | Path | None = None) -> list[str]:
    """Return the files of a data set that are not in the data directory."""
    return [file for file in files_of(name) if not (data_directory(data_dir) / file).is_file()]


def directory_with(name: str, data_dir: str | Path | None = None) -> Path:
    """Return the data directory if it holds all files of a data set; otherwise raise an error that says what to do."""
    directory, missing, files = data_directory(data_dir), missing_files(name, data_dir), files_of(name)
    if missing:
        what = f"get it with 'fedfuse data fetch {name}'" if name.partition(":")[0] in MIRRORS else "put it there"
        listed = " and ".join(files) if len(files) < 3 else f"{files[0]} and {len(files) - 1} more files"
        raise FedfuseError(
            f"{name} needs the file {str(directory / missing[0])!r}, which is not there; {what}, "
            f"or set FEDFUSE_DATA (or --data-dir) to the directory that holds {listed}"
        )
    return directory


class Fetched(NamedTuple):
    """What `fetch` did: the directory, the files downloaded, and those that were there."""

    directory: Path
    new: tuple[str, ...]
    present: tuple[str, ...]


def fetch(name: str, data_dir: str | Path | None = None, progress: Progress | None = None) -> Fetched:
    """Download the files of a named data set that are not there yet; a wrong file that is there is an error."""
    from fedfuse.data.catalog import check_name

    check_name(name)
    directory, mirrors = data_directory(data_dir), MIRRORS.get(name.partition(":")[0], ())
    present = tuple(file for file in files_of(name) if (directory / file).exists())
    missing = tuple(file for file in files_of(name) if file not in present)
    for file in present:
        if (found := _sha256(directory / file)) not in CHECKSUMS[file]:
            advice = "move it away or delete it, then fetch again" if mirrors else "see that its columns are right"
            raise FedfuseError(
                f"{str(directory / file)!r} exists, but it is not the file of {name} (its sha256 is {found}, "
                f"expected is {CHECKSUMS[file][0]}); {advice}"
            )
    if missing and not mirrors:
        files = " and ".join(repr(str(directory / file)) for file in missing)
        raise FedfuseError(
            f"{name} cannot be downloaded, because no permanent source has its tables in this form; put {files} "
            "there by hand ('fedfuse run' says which columns they need)"
        )
    for file in missing:
        reasons = []
        for mirror in mirrors:
            problem = _download(mirror + Path(file).name, directory / file, CHECKSUMS[file][0], progress)
            if problem is None:
                break
            reasons.append(f"{mirror}: {problem}")
        else:
            raise FedfuseError(
                f"no mirror sent {file}: {'; '.join(reasons)}; try again later, or put the file into "
                f"{str((directory / file).parent)!r} yourself"
            )
    return Fetched(directory, missing, present)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _download(url: str, path: Path, sha256: str, progress: Progress | None) -> str | None:
    """Download a file by way of another one beside it; return why that failed, None if it did not."""
    import requests
    import urllib3

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    try:
        # Without compression on the way, the bytes counted are those of the file.
        headers = {"Accept-Encoding": "identity"}
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as answer, part.open("wb") as out:
            answer.raise_for_status()
            length = answer.headers.get("Content-Length", "")
            for chunk in answer.raw.stream(_CHUNK_BYTES, decode_content=False):
                out.write(chunk)
                if progress:
                    progress(path.name, out.tell(), int(length) if length.isdigit() else None)
        if _sha256(part) != sha256:
            return "sent other bytes than expected (the checksum is wrong)"
        part.replace(path)
        return None
    except (requests.RequestException, urllib3.exceptions.HTTPError) as problem:
        return " ".join(str(problem).split())
    finally:
        part.unlink(missing_ok=True)
