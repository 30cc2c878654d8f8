"""Data files: where they are, their checksums, and downloads (resumable, mirror after mirror, never over a file)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from platformdirs import user_cache_dir

from fedfuse.errors import FedfuseError

# The file, bytes so far, and bytes in all where the server says.
Progress: TypeAlias = Callable[[str, int, int | None], None]

TIMEOUT_SECONDS = 30.0
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class FileSpec:
    """A file of a data set: its place below the data directory, and its checksums.

    Mirrors have it under its last name, with the first checksum; the others are those of copies that are as good.
    """

    file: str
    sha256: tuple[str, ...]


@dataclass(frozen=True)
class Collection:
    """The files of a data set, and the mirrors (addresses that end in /) that are tried in turn."""

    files: tuple[FileSpec, ...] = ()
    mirrors: tuple[str, ...] = ()


# As sha256sum prints them. The second lines of MNIST are the same images and labels in another gzip; those of
# Fashion-MNIST all 70,000 images in another stratified split.
_CHECKSUMS = """
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609  mnist/train-images-idx3-ubyte.gz
0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971  mnist/train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c  mnist/train-labels-idx1-ubyte.gz
1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203  mnist/train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6  mnist/t10k-images-idx3-ubyte.gz
1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be  mnist/t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6  mnist/t10k-labels-idx1-ubyte.gz
b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b  mnist/t10k-labels-idx1-ubyte.gz
3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84  fashion-mnist/train-images-idx3-ubyte.gz
c76353bd679da070dcaddee8c8c0e277b149281a1de3df8030c687694fad5be4  fashion-mnist/train-images-idx3-ubyte.gz
a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845  fashion-mnist/train-labels-idx1-ubyte.gz
346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073  fashion-mnist/t10k-images-idx3-ubyte.gz
52f5d53f8e160594d0d4a3d5da6ad460bc6edce201b862ca35279c74118562f5  fashion-mnist/t10k-images-idx3-ubyte.gz
67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5  fashion-mnist/t10k-labels-idx1-ubyte.gz
de34377a9f15b743089e8ff434fc6792f668c7e7c0219fb13c5b8aa6cd7b7cb2  tabular/housing.csv
2bb020cc52d6ce86e82d71f0c0d197cfd22763a9223cf26ae7a7d63a540c9085  tabular/bodyfat.csv
"""


def _collection(folder: str, *mirrors: str) -> Collection:
    sums: dict[str, list[str]] = {}
    for sha256, file in map(str.split, _CHECKSUMS.strip().splitlines()):
        if file.startswith(f"{folder}/"):
            sums.setdefault(file, []).append(sha256)
    return Collection(tuple(FileSpec(file, tuple(found)) for file, found in sums.items()), mirrors)


COLLECTIONS: dict[str, Collection] = {
    "mnist": _collection(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion-mnist": _collection(
        "fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    "housing-bodyfat": _collection("tabular"),  # No mirror has these tables in this form.
}


def data_directory(explicit: str | Path | None = None) -> Path:
    """Return where data files are: what is given, else $FEDFUSE_DATA, else the user's cache directory."""
    chosen = explicit or os.environ.get("FEDFUSE_DATA") or user_cache_dir("fedfuse")
    return Path(chosen).expanduser()


def files_of(name: str) -> tuple[str, ...]:
    """Return the files of a data set, below the data directory; those of ``mnist:rotated`` are those of ``mnist``."""
    return tuple(spec.file for spec in _collection_of(name).files)


def missing_files(name: str, data_dir: str | Path | None = None) -> list[str]:
    """Return the files of a data set that are not in the data directory."""
    return [file for file in files_of(name) if not (data_directory(data_dir) / file).is_file()]


def directory_with(name: str, data_dir: str | Path | None = None) -> Path:
    """Return the data directory if it holds all files of a data set; otherwise raise an error that says what to do."""
    directory, missing, files = data_directory(data_dir), missing_files(name, data_dir), files_of(name)
    if missing:
        what = f"get it with 'fedfuse data fetch {name}'" if _collection_of(name).mirrors else "put it there"
        listed = " and ".join(files) if len(files) < 3 else f"{files[0]} and {len(files) - 1} more files"
        raise FedfuseError(
            f"{name} needs the file {str(directory / missing[0])!r}, which is not there; {what}, "
            f"or set FEDFUSE_DATA (or --data-dir) to the directory that holds {listed}"
        )
    return directory


def _collection_of(name: str) -> Collection:
    return COLLECTIONS.get(name.partition(":")[0], Collection())


@dataclass(frozen=True)
class Fetched:
    """What `fetch` did: the directory, the files downloaded, and those that were there."""

    directory: Path
    new: tuple[str, ...]
    present: tuple[str, ...]


def fetch(
    name: str,
    data_dir: str | Path | None = None,
    *,
    mirrors: Sequence[str] | None = None,
    timeout: float = TIMEOUT_SECONDS,
    progress: Progress | None = None,
) -> Fetched:
    """Download the files of a named data set that are not there yet.

    A wrong file that is there is left alone and raises a `FedfuseError`; so does a file that no mirror sends.

    Parameters
    ----------
    name, data_dir
        ``"mnist"``, ``"fashion-mnist"`` or ``"housing-bodyfat"``, and where to put the files; see `data_directory`.
    mirrors
        Addresses to try in turn instead of the known ones.
    timeout
        Seconds without a byte after which a mirror is given up.
    progress
        Called with a file, its bytes so far, and its bytes in all (None where unknown).
    """
    from fedfuse.data.catalog import check_name

    check_name(name)
    collection, directory = _collection_of(name), data_directory(data_dir)
    chosen = tuple(mirrors) if mirrors is not None else collection.mirrors
    present = [spec for spec in collection.files if (directory / spec.file).exists()]
    for spec in present:
        _check_present(spec, directory / spec.file, name, chosen)
    missing = [spec for spec in collection.files if spec not in present]
    if missing and not chosen:
        files = " and ".join(repr(str(directory / spec.file)) for spec in missing)
        raise FedfuseError(
            f"{name} cannot be downloaded: no lasting address is known that has its tables in this form; put {files} "
            "there by hand ('fedfuse run' says which columns they need)"
        )
    for spec in missing:
        _from_mirrors(spec, directory / spec.file, chosen, timeout, progress)
    return Fetched(directory, tuple(s.file for s in missing), tuple(s.file for s in present))


def _check_present(spec: FileSpec, path: Path, name: str, mirrors: Sequence[str]) -> None:
    found = _sha256(path)
    if found not in spec.sha256:
        advice = "move it away or delete it, then fetch again" if mirrors else "see that its rows and columns are right"
        raise FedfuseError(
            f"{str(path)!r} is there, but it is not the file of {name} (its sha256 is {found}, expected is "
            f"{spec.sha256[0]}); {advice}"
        )


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _from_mirrors(
    spec: FileSpec, path: Path, mirrors: Sequence[str], timeout: float, progress: Progress | None
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part, reasons = path.with_name(path.name + ".part"), []
    for mirror in mirrors:
        # A part that another mirror sent may be what is wrong: then start over.
        for _ in range(1 + part.exists()):
            reason = _download(mirror.rstrip("/") + "/" + path.name, part, timeout, progress)
            if reason is not None:
                break
            if _sha256(part) == spec.sha256[0]:
                part.replace(path)
                return
            part.unlink()
        reasons.append(f"{mirror}: {reason or 'sent other bytes than expected (the checksum is wrong)'}")
    raise FedfuseError(
        f"no mirror sent {spec.file}: {'; '.join(reasons)}; try again later (what has come is kept and gone on "
        f"with), or put the file into {str(path.parent)!r} yourself"
    )


def _download(url: str, part: Path, timeout: float, progress: Progress | None) -> str | None:
    """Download a file, or what follows the part that is here; return why that failed, None if it did not."""
    import requests
    import urllib3

    have = part.stat().st_size if part.exists() else 0
    # Without compression on the way, the bytes counted are those of the file.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=timeout) as answer:
            if have and answer.status_code == requests.codes.requested_range_not_satisfiable:
                return None  # Nothing follows the part.
            return _write(answer, part, have, progress) if answer.ok else f"{answer.status_code} {answer.reason}"
    except (requests.Timeout, urllib3.exceptions.TimeoutError):
        return f"no byte came for {timeout:g} s"
    except (requests.ConnectionError, urllib3.exceptions.HTTPError) as problem:
        word, size = type(problem).__name__, part.stat().st_size if part.exists() else 0
        return f"no connection ({word})" if "Connection" in word else f"broke off with {size:,} bytes here"
    except requests.RequestException as problem:
        return " ".join(str(problem).split())


def _write(answer: Any, part: Path, have: int, progress: Progress | None) -> str | None:
    start = have if answer.status_code == 206 else 0  # A server without ranges sends the whole file again.
    length = answer.headers.get("Content-Length", "")
    total = start + int(length) if length.isdigit() else None
    with part.open("ab" if start else "wb") as file:
        for chunk in answer.raw.stream(_CHUNK_BYTES, decode_content=False):
            file.write(chunk)
            if progress:
                progress(part.stem, file.tell(), total)
        done = file.tell()
    return f"broke off after {done:,} of {total:,} bytes" if total is not None and done < total else None
