"""Memory alignment: arrays that begin with a cache line, in rows of whole lines; vectors across two lines are slow."""

from __future__ import annotations

from functools import cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from fedfuse.utils.typing import Floats

# Bytes of a cache line.
LINE_BYTES = 64


def zeros(size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return so many zeros.

    >>> zeros(5, np.float32).ctypes.data % LINE_BYTES
    0
    """
    kind = np.dtype(dtype)
    space = np.empty(size * kind.itemsize + LINE_BYTES, np.uint8)
    space[:] = 0  # not np.zeros: numpy asks for huge pages only here, and rows are visited far apart
    first = -space.ctypes.data % LINE_BYTES
    return space[first : first + size * kind.itemsize].view(kind)


def rows(shape: tuple[int, ...], d: int, dtype: npt.DTypeLike) -> Floats:
    """Return zeros with room for ``d`` numbers along the last axis, in rows of whole lines.

    >>> rows((2, 3), 17, np.float64).shape
    (2, 3, 24)
    """
    each = whole(d, dtype)
    return zeros(prod(shape) * each, dtype).reshape(*shape, each)


def whole(d: int, dtype: npt.DTypeLike) -> int:
    """Return how many numbers whole lines have that hold ``d`` of them."""
    unit = LINE_BYTES // np.dtype(dtype).itemsize
    return -(-d // unit) * unit


@cache
def lane_bytes() -> int:
    """Return the bytes in a register of this processor, or of most: LLVM cuts or joins where they are others."""
    from llvmlite import binding as llvm  # type: ignore[import-untyped]

    try:
        return 64 if llvm.get_host_cpu_features().get("avx512f") else 32
    except RuntimeError:  # LLVM does not know this processor
        return 32
