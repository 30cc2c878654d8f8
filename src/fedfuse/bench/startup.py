"""How long a new process takes until fedfuse is there, and until it has done something; what it imports for that."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedfuse.bench.figure import Figure
from fedfuse.bench.sizes import BenchSizes
from fedfuse.bench.timing import once, race

# What a table needs none of.
HEAVY = ("torch", "ray", "flwr")
LAM = ("--lam", "0.5", "--rounds", "20")
COLUMNS = ("--device", "hospital", "--target", "outcome")
RUNS = {
    "numbers, lambda": ("visits.csv", *COLUMNS, *LAM),
    "numbers": ("visits.csv", *COLUMNS),
    "classes, lambda": ("cases.csv", *COLUMNS, *LAM),
    "classes": ("cases.csv", *COLUMNS),
    "S1, lambda": ("synthetic:S1", "--lam", "0.6", "--rounds", "2", "--set", "refit=no"),
}


def figures(sizes: BenchSizes) -> Iterator[Figure]:
    """Measure starts with everything cached, against those of the packages that fedfuse stands on; and a first one."""
    base = "import numpy, numba, pandas"
    imported, version, below = race(
        lambda: _python("-c", "import fedfuse"),
        lambda: _python("-m", "fedfuse", "--version"),
        lambda: _python("-c", base),
        seconds=sizes.seconds / 2,
        burst=1,
    )
    yield Figure("import", "python -c 'import fedfuse'", base, imported, below, "s", imported / below)
    yield Figure("command", "fedfuse --version", base, version, below, "s", version / below)
    with TemporaryDirectory() as directory:
        yield from _runs(Path(directory))


def _runs(directory: Path) -> Iterator[Figure]:
    """Short runs: the first ever, which compiles, and later ones, which find that on disk."""
    _write_tables(directory)
    for name, words in RUNS.items():
        yield from _first_and_later(directory, name, words)
    name, words = next(iter(RUNS.items()))
    for what, line in (("import fedfuse", ("-c", "import fedfuse")), (name, _words(words, directory / "last"))):
        modules = imports(*line, cwd=directory)
        heavy = [module for module in modules if module.split(".")[0] in HEAVY]
        against = f"those of {', '.join(HEAVY)} (python -X importtime)"
        yield Figure(
            "imports", f"modules of {what}", against, len(modules), len(heavy), "modules", len(heavy), 0, "at most"
        )


def _first_and_later(directory: Path, name: str, words: tuple[str, ...]) -> Iterator[Figure]:
    cache, turns = directory / f"cache {name}", iter(range(10**6))

    def run() -> None:
        _python(*_words(words, directory / f"{name} {next(turns)}"), cache=cache, cwd=directory)

    first = once(run)
    later = min(once(run) for _ in range(3))
    what = f"{name}: fedfuse run {' '.join(words)}"
    yield Figure("first call", f"{what}, nothing is compiled yet", "goal", first, 15, "s", first / 15, 1, "at most")
    yield Figure("later call", f"{what}, what is compiled is on disk", "goal", later, 2, "s", later / 2, 1, "at most")


def imports(*words: str, cwd: Path | None = None) -> list[str]:
    """Return the modules that a Python process imports, as ``-X importtime`` lists them."""
    lines = _python("-X", "importtime", *words, cwd=cwd).splitlines()
    return [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")][1:]


def _write_tables(directory: Path) -> None:
    rng = np.random.default_rng(0)
    X, sign = rng.normal(size=(400, 3)), np.repeat([1.0, -1.0], 200)
    y = sign * X.sum(axis=1) + 0.1 * rng.normal(size=400)
    rows = [f"h{i // 40},{a:.4f},{b:.4f},{c:.4f}" for i, (a, b, c) in enumerate(X)]
    for name, outcome in (("visits.csv", [f"{t:.4f}" for t in y]), ("cases.csv", np.where(y > 0, "ill", "well"))):
        lines = [f"{row},{value}" for row, value in zip(rows, outcome, strict=True)]
        (directory / name).write_text("\n".join(["hospital,a,b,c,outcome", *lines]), encoding="utf-8")


def _words(words: tuple[str, ...], out: Path) -> tuple[str, ...]:
    return ("-m", "fedfuse", "run", *words, "--out", str(out), "--json")


def _python(*arguments: str, cache: Path | None = None, cwd: Path | None = None) -> str:
    """Run Python; return what it writes to its standard error."""
    # bytecode is kept, as it is wherever fedfuse is installed by pip
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=environment, cwd=cwd,
    )  # fmt: skip
    return done.stderr
