"""How long a new process takes until fedfuse is there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from fedfuse.bench.figure import Figure
from fedfuse.bench.sizes import Sizes
from fedfuse.bench.timing import race


def figures(sizes: Sizes) -> Iterator[Figure]:
    """Measure starts with everything cached, against those of the packages that fedfuse stands on."""
    base = "import numpy, numba, pandas"
    imported, version, below = race(
        lambda: _python("-c", "import fedfuse"),
        lambda: _python("-m", "fedfuse.cli", "--version"),
        lambda: _python("-c", base),
        seconds=sizes.seconds / 2,
        burst=1,
    )
    yield Figure("import", "python -c 'import fedfuse'", base, imported, below, "s", imported / below)
    yield Figure("command", "fedfuse --version", base, version, below, "s", version / below)


def _python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
