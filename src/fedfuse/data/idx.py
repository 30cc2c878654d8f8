"""The idx format of MNIST: a magic number, sizes, then bytes (http://yann.lecun.com/exdb/mnist, bottom)."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError

_BYTES = 0x08  # the type of the values: unsigned bytes, all that image data sets use
_GZIP = b"\x1f\x8b"


def read_idx(path: str | Path, ndim: int) -> npt.NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped or not.

    Parameters
    ----------
    path
        The file.
    ndim
        How many dimensions it must have: 1 for labels, 3 for images.

    Returns
    -------
    array
        Read-only, without a copy of what was read.

    Raises
    ------
    FedfuseError
        If it is missing, damaged, cut short, too long or something else.
    """
    path = Path(path)
    data = _content(path)
    if len(data) < 4:
        raise _damaged(path, f"it holds {len(data)} bytes, not even a magic number")
    zero, kind, found = struct.unpack(">HBB", data[:4])
    if zero or kind != _BYTES or found != ndim:
        raise FedfuseError(
            f"{str(path)!r} begins with the magic number 0x{data[:4].hex()}, but an idx file of bytes in {ndim} "
            f"dimension{'s' if ndim > 1 else ''} begins with 0x{_BYTES << 8 | ndim:08x}; is it another file?"
        )
    first = 4 + 4 * ndim
    if len(data) < first:
        raise _damaged(path, f"it ends after {len(data)} bytes, inside its header")
    shape = struct.unpack(f">{ndim}I", data[4:first])
    _check_size(path, shape, len(data) - first)
    return np.frombuffer(data, np.uint8, offset=first).reshape(shape)


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw[:2] == _GZIP else raw
    except FileNotFoundError:
        raise FedfuseError(f"there is no file {str(path)!r}; check the path") from None
    except EOFError:
        raise _damaged(path, "it is cut short") from None
    except (gzip.BadGzipFile, zlib.error) as problem:
        raise _damaged(path, str(problem)) from None


def _check_size(path: Path, shape: tuple[int, ...], found: int) -> None:
    need = 1
    for n in shape:  # plain integers do not overflow, whatever a damaged header says
        need *= n
    if found != need:
        sizes = " x ".join(f"{n:,}" for n in shape)
        short = "is cut short" if found < need else "is too long"
        raise _damaged(path, f"it {short}: its header says {sizes} values, but {found:,} follow")


def _damaged(path: Path, reason: str) -> FedfuseError:
    return FedfuseError(f"{str(path)!r} is damaged: {reason}; delete it and get it again")
