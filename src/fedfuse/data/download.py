"""Downloads of data sets: checked, resumable, mirror after mirror, and never over a file that is there.

pooch checks and places the files; what it lacks, going on with half a file, is the `Resuming` downloader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from fedfuse.data.directory import data_directory
from fedfuse.data.file_specs import COLLECTIONS, Collection, FileSpec
from fedfuse.errors import FedfuseError

# the file, bytes so far, and bytes in all where the server says
Progress: TypeAlias = Callable[[str, int, int | None], None]

TIMEOUT = 30.0
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Fetched:
    """What `fetch` has done: the directory, the files that came, and those that were there."""

    directory: Path
    new: tuple[str, ...]
    present: tuple[str, ...]


class _MirrorError(Exception):
    """Why a mirror did not serve."""


def fetch(
    name: str,
    data_dir: str | Path | None = None,
    *,
    mirrors: Sequence[str] | None = None,
    timeout: float = TIMEOUT,
    progress: Progress | None = None,
) -> Fetched:
    """Download the files of a named data set that are not there yet.

    Parameters
    ----------
    name
        ``"mnist"``, ``"fashion-mnist"`` or ``"housing-bodyfat"``; the rotated ones have the same files.
    data_dir
        Where to put them; see `data_directory`.
    mirrors
        Addresses to try in turn instead of the known ones.
    timeout
        Seconds without a byte after which a mirror is given up.
    progress
        Called with a file, its bytes so far, and its bytes in all (None where unknown).

    Raises
    ------
    FedfuseError
        If a file that is there is not the right one (it is left alone), or if no mirror serves.
    """
    collection = _collection(name)
    directory = data_directory(data_dir)
    present = [known for known in collection.files if (directory / known.file).exists()]
    chosen = tuple(mirrors) if mirrors is not None else collection.mirrors
    for known in present:
        _check_present(known, directory / known.file, name, chosen)
    lacking = [known for known in collection.files if known not in present]
    if lacking and not chosen:
        raise _by_hand(name, lacking, directory)
    for known in lacking:
        _from_mirrors(known, directory / known.file, chosen, timeout, progress)
    return Fetched(directory, tuple(k.file for k in lacking), tuple(k.file for k in present))


def fetchable(name: str) -> str:
    """Return under which name the files of a data set are known: that of ``mnist:rotated`` is ``mnist``."""
    return name.partition(":")[0]


def _collection(name: str) -> Collection:
    from fedfuse.data.catalog import check_name

    check_name(name)
    return COLLECTIONS.get(fetchable(name), Collection(()))


def _check_present(known: FileSpec, path: Path, name: str, mirrors: Sequence[str]) -> None:
    import pooch

    found = pooch.file_hash(str(path), alg="sha256")
    if found not in known.accepted:
        advice = "move it away or delete it, then fetch again" if mirrors else "see that its rows and columns are right"
        raise FedfuseError(
            f"{str(path)!r} is there, but it is not the file of {name} (its sha256 is {found}, expected is "
            f"{known.sha256}); {advice}"
        )


def _by_hand(name: str, lacking: Sequence[FileSpec], directory: Path) -> FedfuseError:
    files = " and ".join(repr(str(directory / known.file)) for known in lacking)
    return FedfuseError(
        f"{name} cannot be downloaded: no lasting address is known that has its tables in this form; put {files} "
        "there by hand ('fedfuse run' says which columns they need)"
    )


def _from_mirrors(
    known: FileSpec, path: Path, mirrors: Sequence[str], timeout: float, progress: Progress | None
) -> None:
    downloader = Resuming(path.with_name(path.name + ".part"), timeout, progress)
    reasons = []
    for mirror in mirrors:
        reason = _from_mirror(known, path, mirror, downloader)
        if reason is None:
            return
        reasons.append(f"{mirror}: {reason}")
    raise FedfuseError(
        f"no mirror sent {known.file}: {'; '.join(reasons)}; try again later (what has come is kept and gone on "
        f"with), or put the file into {str(path.parent)!r} yourself"
    )


def _from_mirror(known: FileSpec, path: Path, mirror: str, downloader: Resuming) -> str | None:
    """Try one mirror; return why it failed, None if it did not."""
    address = mirror.rstrip("/") + "/" + known.name
    resumed = downloader.part.exists()
    try:
        # a first part that another mirror has sent may be to blame for a wrong whole: then begin anew
        if _placed(known, path, address, downloader) or (resumed and _placed(known, path, address, downloader)):
            return None
    except _MirrorError as reason:
        return str(reason)
    return "sent other bytes than expected (the checksum is wrong)"


def _placed(known: FileSpec, path: Path, address: str, downloader: Resuming) -> bool:
    """Download to a temporary file, check it, and only then put it into its place."""
    import pooch

    try:
        with _silent(pooch.get_logger()):
            pooch.retrieve(address, f"sha256:{known.sha256}", path.name, path.parent, downloader=downloader)
    except ValueError:  # pooch's word for a wrong checksum; the file is gone by now
        return False
    return True


@dataclass(frozen=True)
class Resuming:
    """A downloader for pooch that keeps what has come in a .part file and goes on from there.

    Attributes
    ----------
    part
        The file that grows; it survives errors and interruptions.
    timeout
        Seconds without a byte after which to give up.
    progress
        As in `fetch`.
    """

    part: Path
    timeout: float = TIMEOUT
    progress: Progress | None = None

    def __call__(self, url: str, output_file: str, pooch: Any = None) -> None:
        """Download a whole file to where pooch wants it."""
        import requests
        import urllib3

        try:
            self._download(url)
        except (requests.Timeout, urllib3.exceptions.TimeoutError):
            raise _MirrorError(f"no byte came for {self.timeout:g} s") from None
        except (requests.ConnectionError, urllib3.exceptions.HTTPError) as problem:
            raise _MirrorError(self._broken(problem)) from None
        except requests.RequestException as problem:
            raise _MirrorError(" ".join(str(problem).split())) from None
        self.part.replace(output_file)

    def _download(self, url: str) -> None:
        import requests

        have = self.part.stat().st_size if self.part.exists() else 0
        # no packing on the way: what is counted and checked are the bytes of the file
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, headers=headers, stream=True, timeout=self.timeout) as answer:
            if answer.ok:
                return self._write(answer, *_extent(answer, have))
            if not have or answer.status_code != requests.codes.requested_range_not_satisfiable:
                raise _MirrorError(f"{answer.status_code} {answer.reason}")
        self.part.unlink()  # as long as the file, or longer, and yet not known as whole
        return self._download(url)

    def _write(self, answer: Any, start: int, total: int | None) -> None:
        done = start
        with self.part.open("r+b" if start else "wb") as file:
            file.seek(start)
            for chunk in answer.raw.stream(_CHUNK, decode_content=False):
                file.write(chunk)
                done += len(chunk)
                if self.progress:
                    self.progress(self.part.stem, done, total)
        if total is not None and done < total:
            raise _MirrorError(f"broke off after {done:,} of {total:,} bytes")

    def _broken(self, problem: Exception) -> str:
        word = type(problem).__name__
        if "IncompleteRead" in str(problem):
            return f"broke off with {self.part.stat().st_size:,} bytes here"
        return f"no connection ({word})" if "Connection" in word else f"broke off ({word})"


def _extent(answer: Any, have: int) -> tuple[int, int | None]:
    """Return where the bytes of an answer belong, and how long the whole file is, where the server says."""
    length = answer.headers.get("Content-Length", "")
    coming = int(length) if length.isdigit() else None
    # "bytes 100-199/200"; a server without ranges sends the whole file again
    ranged = answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
    start = have if ranged else 0
    return start, None if coming is None else start + coming


@contextmanager
def _silent(logger: logging.Logger) -> Iterator[None]:
    """Keep pooch from writing to the terminal by itself."""
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
