"""Compiled loops as machine code that is kept on disk: only who calls one first on a machine needs the compiler.

numba compiles (`utils.compiler`), which takes seconds, and even to import it and to read its own cache takes one. Machine
code alone is loaded in milliseconds, by LLVM.

A compiled function takes contiguous arrays, numbers, and tuples of these, and returns nothing: what it has found, it
writes. It gets the addresses of the array objects and looks for the rest there, as extension modules do, and holds on
to none of them. Every combination of types is compiled for itself.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from array import array
from collections.abc import Callable, Sequence
from ctypes import CFUNCTYPE, c_int32, c_void_p
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from operator import index
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import numpy as np

log = logging.getLogger(__name__)

# What loops are written in: when one of these files changes, all are compiled anew.
SOURCES = (
    "utils/alignment", "utils/compiler", "utils/jit", "utils/simd", "utils/vector_exp",
    "pairs/layout", "pairs/pair_kernels",
    "models/convolution_kernels", "models/loss_kernels", "models/cnn_layers", "models/panels",
)  # fmt: skip
# Settings of numba that change nothing in its code.
ELSEWHERE = {"NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER"}
# Days after which code of other sources, compilers or processors is removed.
KEPT = 90

# Types of arguments, one after another: those of a tuple follow its own type and length.
Kinds: TypeAlias = list[Any]
# A compiled function by numba's convention: where its value and an exception go, then our two arrays.
_Entry = CFUNCTYPE(c_int32, c_void_p, c_void_p, c_void_p, c_void_p)
_nowhere = array("q", [0] * 8)
_NOWHERE = _nowhere.buffer_info()[0]


class Code(NamedTuple):
    """Machine code of one function, and what it is called there.

    Or where it is in this process, if it cannot do without numba.
    """

    symbol: str
    machine: bytes
    address: int | None = None


class Kernels:
    """The compiled functions of a module, as its attributes.

    >>> Kernels("fedfuse.pairs.pair_kernels").anchors
    Kernel(fedfuse.pairs.pair_kernels.anchors)
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Kernel:
        if name.startswith("_"):
            raise AttributeError(name)
        kernel = Kernel(self._module, name)
        setattr(self, name, kernel)  # the next time it is there
        return kernel


class Kernel:
    """A compiled function, which is looked for on disk, or compiled, when it is first called with such arguments."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name
        self._codes: dict[Any, Callable[..., int]] = {}

    def __repr__(self) -> str:
        return f"Kernel({self.module}.{self.name})"

    def __call__(self, *arguments: Any) -> None:
        kinds: Kinds = []
        words: list[int] = [0]  # becomes 1 when all is done
        reals: list[float] = []
        _take_apart(arguments, kinds, words, reals)
        code = self._codes.get(tuple(kinds)) or self._ready(kinds)
        whole, real = array("q", words), array("d", reals)
        code(_NOWHERE, _NOWHERE, whole.buffer_info()[0], real.buffer_info()[0])
        if not whole[0]:
            raise ValueError(f"{self} takes contiguous arrays alone")

    def _ready(self, kinds: Kinds) -> Callable[..., int]:
        """Return the function for such arguments, and remember it."""
        with _lock:
            if tuple(kinds) not in self._codes:
                self._codes[tuple(kinds)] = _entry(self.module, self.name, kinds)
        return self._codes[tuple(kinds)]


_lock = Lock()


def _take_apart(arguments: Sequence[Any], kinds: Kinds, words: list[int], reals: list[float]) -> None:
    """List the types of arguments, and what to hand over: whole numbers, addresses among them, and others."""
    for each in arguments:
        if isinstance(each, np.ndarray):
            kinds.append(each.dtype)  # twice append is faster than one list more
            kinds.append(each.ndim)
            words.append(id(each))
        elif isinstance(each, tuple):
            kinds += type(each), len(each)
            _take_apart(each, kinds, words, reals)
        elif isinstance(each, (float, np.floating)):
            kinds.append(float)
            reals.append(float(each))
        else:
            kinds.append(int)
            words.append(index(each))


def _entry(module: str, name: str, kinds: Kinds) -> Callable[..., int]:
    """Find the machine code of a function for such arguments; have it compiled if there is none."""
    path = _shelf() / f"{name}-{_digest(module, name, *map(_word, kinds))}"
    code = _read(path)
    if code is None:
        from fedfuse.utils.compiler import compiled  # which imports numba

        begun = time.perf_counter()
        code = compiled(module, name, kinds)
        log.debug("%s.%s was compiled in %.1f s", module, name, time.perf_counter() - begun)
        if code.address is None:
            _write(path, code)
    return _loaded(code) if code.address is None else _Entry(code.address)


def _word(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def _loaded(code: Code) -> Callable[..., int]:
    from llvmlite import binding as llvm  # type: ignore[import-untyped]

    # an engine for each: functions inside may have the same names as others', and its target is its own
    target = _target().create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.machine))
    engine.finalize_object()
    entry = _Entry(engine.get_function_address(code.symbol))
    entry.engine = engine  # type: ignore[attr-defined]  # lives as long
    return entry


@cache
def lane_bytes() -> int:
    """Return the bytes in a register of this processor, or of most: LLVM cuts or joins where they are others."""
    from llvmlite import binding as llvm

    try:
        return 64 if llvm.get_host_cpu_features().get("avx512f") else 32
    except RuntimeError:  # LLVM does not know this processor
        return 32


@cache
def _target() -> Any:
    from llvmlite import binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_triple(llvm.get_process_triple())


# -- on disk: a directory for all that was compiled from the same sources in the same way


def _read(path: Path) -> Code | None:
    """Return the code in a file; None if there is none, or not all of it."""
    try:
        digest, _, content = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    if digest != _digest(content).encode():
        return None
    symbol, _, machine = content.partition(b"\n")
    return Code(symbol.decode(), machine)


def _write(path: Path, code: Code) -> None:
    """Keep code in a file, whole or not at all; where nothing can be written, the next process compiles again."""
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            _clear_out(path.parent.parent)
        with NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            content = code.symbol.encode() + b"\n" + code.machine
            file.write(_digest(content).encode() + b"\n" + content)
        Path(file.name).replace(path)
    except OSError as problem:
        log.debug("compiled code is not kept: %s", problem)


def _clear_out(shelves: Path) -> None:
    """Remove what was compiled long ago from other sources, by other compilers or for other processors."""
    for shelf in shelves.iterdir():
        if time.time() - shelf.stat().st_mtime > KEPT * 86400:
            shutil.rmtree(shelf, ignore_errors=True)


@cache
def _shelf() -> Path:
    """Return where code is that was compiled from these sources, by this compiler, for this processor."""
    from llvmlite import binding as llvm

    here = Path(__file__).parents[1]
    settings = sorted(item for item in os.environ.items() if item[0].startswith("NUMBA_") and item[0] not in ELSEWHERE)
    try:
        processor = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    except RuntimeError:  # LLVM does not know its features
        processor = str(llvm.get_host_cpu_name())
    sources = [(here / f"{name}.py").read_bytes() for name in SOURCES]
    versions = [version(name) for name in ("numba", "llvmlite", "numpy")]
    others = processor, llvm.get_process_triple(), str(settings), str(object.__basicsize__)  # where arrays begin
    return _shelves() / _digest(*sources, *versions, *others)


def _shelves() -> Path:
    """Return where compiled code is kept: where numba is told to keep its own, or with the user's other caches."""
    if directory := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(directory) / "fedfuse"
    from platformdirs import user_cache_path

    return user_cache_path("fedfuse") / "kernels"


def _digest(*parts: str | bytes) -> str:
    digest = blake2b(digest_size=16)
    for part in parts:
        piece = part.encode() if isinstance(part, str) else part
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return digest.hexdigest()
