"""``fedfuse bench``: ratios against textbook loops, plain NumPy, plain PyTorch and the machine's own limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rich.console import Console

from fedfuse.bench import cnn, formed, growth, local, machine, server, startup, whole
from fedfuse.bench.figure import Figure, readable, table
from fedfuse.bench.growth import Curve
from fedfuse.bench.sizes import FULL, QUICK, BenchSizes
from fedfuse.errors import FedfuseError, guess

__all__ = ["BenchSizes", "Curve", "Figure", "chosen", "run_all"]

Part = Callable[[BenchSizes], Iterator[Figure | Curve]]
PARTS: dict[str, Part] = {
    "server": server.figures,
    "formed": formed.figures,
    "local": local.figures,
    "run": whole.figures,
    "cnn": cnn.figures,
    "startup": startup.figures,
    "growth": growth.curves,
}


def chosen(only: str) -> list[str]:
    """Return the parts that a text like ``"server,local"`` names; all of them if it is empty.

    >>> chosen("server, local")
    ['server', 'local']
    """
    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in PARTS]:
        words = f"{guess(unknown[0], PARTS)}there are {', '.join(PARTS)}"
        raise FedfuseError(f"there is no part {unknown[0]!r} of the benchmark; {words}")
    return names or list(PARTS)


def run_all(
    out: Path,
    *,
    quick: bool,
    console: Console,
    sizes: BenchSizes | None = None,
    only: Sequence[str] = tuple(PARTS),
    history: Path | None = None,
    page: Path | None = None,
) -> list[Figure]:
    """Measure these parts, show one table, and write what was measured to a JSON file.

    With ``quick`` (or other ``sizes``) problems are small and no goals are judged. The same is added as one line to the
    file ``history``, and ``page`` is written in Markdown, where they are given.
    """
    for path in filter(None, (out, history, page)):
        if not path.absolute().parent.is_dir() or path.is_dir():
            raise FedfuseError(f"cannot write figures to {path}: give a file in a directory that exists")
    judged = not quick and sizes is None
    info = machine.describe()
    seen = list(_measured(only, sizes or (QUICK if quick else FULL), console))
    figures = [item for item in seen if isinstance(item, Figure)]
    curves = [item for item in seen if isinstance(item, Curve)]
    console.print(table(figures, judged=judged))
    for curve in curves:
        console.print(_sentence(curve), highlight=False, soft_wrap=True)
    content = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "quick": not judged,
        "parts": list(only),
        "machine": info,
        "versions": machine.versions(),
        "figures": [figure.to_dict(judged=judged) for figure in figures],
        "growth": [curve.to_dict() for curve in curves],
    }
    out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    _also(content, history, page)
    for path in filter(None, (out, history, page)):
        console.print(f"figures: {path}", highlight=False)
    return figures


def _measured(only: Iterable[str], sizes: BenchSizes, console: Console) -> Iterator[Figure | Curve]:
    for name in only:
        with console.status(f"measuring {name} …"):
            yield from PARTS[name](sizes)


def _also(content: dict[str, Any], history: Path | None, page: Path | None) -> None:
    if history is not None:
        with history.open("a", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")
    if page is not None:
        from fedfuse.bench.page import write

        write([content], page)


def _sentence(curve: Curve) -> str:
    points = [f"{size:,}: {readable(took, 's')}" for size, took in zip(curve.sizes, curve.seconds, strict=True)]
    return f"{curve.what}, over {curve.over}: {', '.join(points)}; grows with exponent {curve.exponent:.2f}"
