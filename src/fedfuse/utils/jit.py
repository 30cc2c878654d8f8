"""Settings of numba for compiled loops, and access to them without importing it.

`import numba` takes a third of a second, which many commands and devices never need: modules of kernels are imported
when one of their functions is first called (`Kernels`). numba keeps the machine code in its own cache, and knows only
the file that a function stands in; kernels are also made of functions and constants from other files, so the directory
of the cache is one for each state of all `SOURCES`.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import time
from collections.abc import Callable
from functools import cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any

log = logging.getLogger(__name__)

# All that kernels are written in, relative to the package.
SOURCES = (
    "utils/alignment", "utils/jit", "utils/simd", "pairs/layout", "pairs/pair_kernels", "pairs/edge_kernels",
    "models/compiled_cnn", "models/loss_kernels", "models/panels",
)  # fmt: skip
# Machine code of other sources is removed when it has not been written for this long.
MAX_AGE_DAYS = 90
# Options of all compiled functions: they release the interpreter, divide as NumPy does, and borrow their arrays. To
# count references to every row that a loop looks at would take most of a server step's time; so kernels make no arrays.
COMMON: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
_lock = Lock()


class Kernels:
    """The compiled functions of a module, imported with the first of them that is asked for.

    >>> Kernels("fedfuse.pairs.pair_kernels").anchors.__name__
    'anchors'
    """

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        kernel = getattr(import_module(self._module), name)
        setattr(self, name, kernel)  # found without this function from now on
        return kernel


def kernel(**options: Any) -> Callable[[Callable[..., None]], Any]:
    """Compile as `numba.njit` does, and keep the machine code on disk, if there is a directory to write to."""
    import numba

    config: Any = numba.config

    def decorate(function: Callable[..., None]) -> Any:
        compiled = numba.njit(**COMMON, **options)(function)
        with _lock:
            before = config.CACHE_DIR
            if directory := _cache_directory(before):
                config.CACHE_DIR = str(directory)  # numba reads it here, and never again for this function
                try:
                    compiled.enable_caching()
                finally:
                    config.CACHE_DIR = before
        return compiled

    return decorate


@cache
def _cache_directory(given: str) -> Path | None:
    """Return where machine code of these sources is kept, in NUMBA_CACHE_DIR or the user's cache; None if nowhere.

    Nor is it kept where others may write: what they put there would run here.
    """
    from platformdirs import user_cache_path

    package, digest = Path(__file__).parents[1], blake2b(digest_size=16)
    for name in SOURCES:
        digest.update((package / f"{name}.py").read_bytes())
    parent = Path(given) / "fedfuse" if given else user_cache_path("fedfuse") / "kernels"
    directory = parent / digest.hexdigest()
    try:
        if not directory.is_dir():
            parent.mkdir(parents=True, exist_ok=True)
            directory.mkdir(mode=0o700, exist_ok=True)
            for each in parent.iterdir():  # of other sources
                if time.time() - each.stat().st_mtime > MAX_AGE_DAYS * 86400:
                    shutil.rmtree(each, ignore_errors=True)
        if os.access(directory, os.W_OK) and (stranger := _in_reach_of_others(directory)):
            words = "compiled code is neither loaded from %s nor kept there: others may write to %s"
            log.warning(words, parent, stranger)
            return None
    except OSError as problem:
        log.debug("compiled code is not kept: %s", problem)
    return directory if os.access(directory, os.W_OK) else None


def _in_reach_of_others(directory: Path) -> Path | None:
    """Return a file in a directory, or a directory on the way to it, that another user owns or may replace; or None."""
    if not hasattr(os, "geteuid"):  # Windows has other ways.
        return None
    mine, directory = os.geteuid(), directory.resolve()
    paths = [(path, {mine}, 0) for path in (directory, *directory.rglob("*"))]
    # In a sticky directory nobody can replace what others own.
    paths += [(path, {mine, 0}, stat.S_ISVTX) for path in directory.parents]
    for path, owners, sticky in paths:
        seen = path.lstat()
        writable = seen.st_mode & (0o002 if seen.st_gid == os.getegid() else 0o022)
        if seen.st_uid not in owners or stat.S_ISLNK(seen.st_mode) or (writable and not seen.st_mode & sticky):
            return path
    return None
