"""Memory that several processes see: one of them writes arrays into it, the others map them without a copy.

A block of memory has no name. It is passed on as an open file and is gone when the last process that holds it is,
however that one ended: there is nothing to remove, and nothing that ``kill -9`` could leave behind. It does not count
against the size of ``/dev/shm`` either, which is small in containers.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import sys
import tempfile
import weakref
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedfuse.errors import FedfuseError

_ALIGNED = 64  # bytes: no array shares a line of the cache with its neighbour


class SharedBlock:
    """Zeros to write into, seen by every process that maps them."""

    def __init__(self, size: int) -> None:
        self.size = max(size, 1)
        self.file = _unnamed_file()
        weakref.finalize(self, os.close, self.file)
        os.ftruncate(self.file, self.size)
        self.memory = mmap.mmap(self.file, self.size)
        self.address = _address(self.memory)

    def send(self, connection: Connection) -> None:
        """Pass the block on to the process at the other end."""
        send_handle(connection, self.file, None)

    def offset(self, buffer: memoryview) -> int | None:
        """Return where in the block a buffer lies, or None if it lies elsewhere."""
        offset = _address(buffer) - self.address
        return offset if buffer.nbytes and 0 <= offset < self.size else None


def receive_block(connection: Connection, size: int, access: int = mmap.ACCESS_WRITE) -> mmap.mmap:
    """Map a block that `Block.send` passes on."""
    file = recv_handle(connection)
    try:
        return mmap.mmap(file, max(size, 1), access=access)
    finally:
        os.close(file)


class Place(NamedTuple):
    """Where a buffer lies."""

    block: int
    offset: int
    size: int


class Parcel:
    """An object whose arrays lie in blocks: packed once, opened by many processes."""

    def __init__(self, content: bytes, places: Sequence[Place], blocks: Sequence[SharedBlock]) -> None:
        self._content, self._places = content, list(places)
        self.blocks = tuple(blocks)

    def open(self) -> Any:
        """Return the object with its arrays where they lie: what is written to them, all will see."""
        return _opened(self._content, self._places, [memoryview(b.memory) for b in self.blocks])

    def send(self, connection: Connection) -> None:
        """Pass the parcel on to the process at the other end."""
        connection.send((self._content, self._places, [b.size for b in self.blocks]))
        for block in self.blocks:
            block.send(connection)


def receive_parcel(connection: Connection) -> Any:
    """Return the object in a parcel that `Parcel.send` passes on.

    Its arrays are those of the sender until they are written to: what is written stays in this process.
    """
    content, places, sizes = connection.recv()
    maps = [receive_block(connection, size, mmap.ACCESS_COPY) for size in sizes]
    return _opened(content, places, [memoryview(m) for m in maps])


def pack(thing: Any, *known: SharedBlock) -> Parcel:
    """Put an object into a parcel; arrays that lie in known blocks already are not copied again."""
    buffers: list[memoryview] = []
    content = _pickled(thing, buffers)
    places: list[Place] = []
    size = 0
    for buffer in buffers:
        place = _place(buffer, known) or Place(len(known), size, buffer.nbytes)
        places.append(place)
        if place.block == len(known):
            size += -(-buffer.nbytes // _ALIGNED) * _ALIGNED
    new = SharedBlock(size)
    for buffer, (block, offset, length) in zip(buffers, places, strict=True):
        if block == len(known):
            new.memory[offset : offset + length] = buffer
    return Parcel(content, places, (*known, new))


def _place(buffer: memoryview, blocks: Sequence[SharedBlock]) -> Place | None:
    for k, block in enumerate(blocks):
        offset = block.offset(buffer)
        if offset is not None:
            return Place(k, offset, buffer.nbytes)
    return None


def _pickled(thing: Any, buffers: list[memoryview]) -> bytes:
    """Pickle an object, except for the contents of its arrays, which go to ``buffers``."""
    stream = io.BytesIO()
    try:
        _Pickler(stream, protocol=5, buffer_callback=lambda b: buffers.append(b.raw())).dump(thing)
    except (pickle.PicklingError, TypeError, AttributeError) as problem:
        raise FedfuseError(
            f"worker processes need a model that can be pickled, and {problem}; define its classes and functions at "
            "the top of a module, or use engine='inprocess'"
        ) from None
    return stream.getvalue()


def _opened(content: bytes, places: Sequence[Place], blocks: Sequence[memoryview]) -> Any:
    return pickle.loads(content, buffers=[blocks[b][offset : offset + size] for b, offset, size in places])


class _Pickler(pickle.Pickler):
    """Treats PyTorch's tensors like arrays: their own way of being pickled copies them."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(obj) is not torch.Tensor:
            return NotImplemented
        try:
            return _tensor, (obj.numpy(),)
        except (TypeError, RuntimeError):  # there are tensors that no array can be
            return NotImplemented


def _tensor(array: npt.NDArray[Any]) -> Any:
    import torch

    return torch.from_numpy(array)


def _address(buffer: Any) -> int:
    return int(np.frombuffer(buffer, np.uint8).ctypes.data) if len(buffer) else 0


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("fedfuse")
    with tempfile.TemporaryFile() as file:  # has lost its name already
        return os.dup(file.fileno())
