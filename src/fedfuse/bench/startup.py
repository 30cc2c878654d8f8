"""Start-up of processes: import, command and short runs, the first ever and later ones; the modules they import."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fedfuse.bench.measurement import BenchSizes, Figure, once, race

HEAVY_MODULES = ("torch", "ray", "flwr")  # A table needs none of them.
BASE = "import numpy, numba, pandas"
MAX_FIRST_SECONDS, MAX_LATER_SECONDS = 15, 2
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
    """Measure starts with everything cached, against the packages that fedfuse stands on; and first ones."""
    lines = {"import": ("-c", "import fedfuse"), "command": ("-m", "fedfuse", "--version"), "base": ("-c", BASE)}
    runs = [lambda line=line: _python(*line) for line in lines.values()]
    imported, version, below = race(*runs, seconds=sizes.seconds / 2, burst=1)
    yield Figure("import", "python -c 'import fedfuse'", BASE, imported, below, "s", sense="at most")
    yield Figure("command", "fedfuse --version", BASE, version, below, "s", sense="at most")
    with TemporaryDirectory() as name:
        directory = Path(name)
        write_tables(directory)
        for name, words in RUNS.items():
            yield from _first_and_later(directory, name, words)
        name, words = next(iter(RUNS.items()))
        heavy = " or ".join(HEAVY_MODULES)
        for what, line in (("import fedfuse", lines["import"]), (name, run_line(words, directory / "last"))):
            modules = imports(*line, cwd=directory)
            found = sum(module.split(".")[0] in HEAVY_MODULES for module in modules)
            against = "all that it imports (python -X importtime)"
            yield Figure(
                "imports", f"modules of {heavy} in {what}", against, found, len(modules), "modules", 0, "at most"
            )


def _first_and_later(directory: Path, name: str, words: tuple[str, ...]) -> Iterator[Figure]:
    cache, turns = directory / f"cache {name}", iter(range(10**6))

    def run() -> None:
        _python(*run_line(words, directory / f"{name} {next(turns)}"), cache=cache, cwd=directory)

    what = f"{name}: fedfuse run {' '.join(words)}"
    for call, times, most, state in (
        ("first call", 1, MAX_FIRST_SECONDS, "nothing is compiled yet"),
        ("later call", 3, MAX_LATER_SECONDS, "what is compiled is on disk"),
    ):
        took = min(once(run) for _ in range(times))
        yield Figure(call, f"{what}, {state}", "goal", took, most, "s", 1, "at most")


def imports(*words: str, cwd: Path | None = None) -> list[str]:
    """Return the modules that a Python process imports, as ``-X importtime`` lists them."""
    lines = _python("-X", "importtime", *words, cwd=cwd).splitlines()
    return [line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")][1:]


def write_tables(directory: Path) -> None:
    """Write a small table of numbers and one of classes."""
    rng = np.random.default_rng(0)
    X, sign = rng.normal(size=(400, 3)), np.repeat([1.0, -1.0], 200)
    y = sign * X.sum(axis=1) + 0.1 * rng.normal(size=400)
    rows = [f"h{i // 40},{a:.4f},{b:.4f},{c:.4f}" for i, (a, b, c) in enumerate(X)]
    for name, outcome in (("visits.csv", [f"{t:.4f}" for t in y]), ("cases.csv", np.where(y > 0, "ill", "well"))):
        lines = [f"{row},{value}" for row, value in zip(rows, outcome, strict=True)]
        (directory / name).write_text("\n".join(["hospital,a,b,c,outcome", *lines]), encoding="utf-8")


def run_line(words: tuple[str, ...], out: Path) -> tuple[str, ...]:
    """Return Python's arguments for ``fedfuse run``."""
    return ("-m", "fedfuse", "run", *words, "--out", str(out), "--json")


def _python(*arguments: str, cache: Path | None = None, cwd: Path | None = None) -> str:
    """Run Python; return what it writes to its standard error."""
    # Bytecode is kept, as it is wherever fedfuse is installed by pip.
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=environment, cwd=cwd,
    )  # fmt: skip
    return done.stderr
