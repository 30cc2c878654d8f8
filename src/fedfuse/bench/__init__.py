"""``fedfuse bench``: ratios against textbook loops, plain NumPy and the machine's own limits."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path

from rich.console import Console

from fedfuse.bench import local, machine, server, startup
from fedfuse.bench.figure import Figure, table
from fedfuse.bench.sizes import FULL, QUICK, Sizes
from fedfuse.errors import FedfuseError

__all__ = ["Figure", "Sizes", "run_all"]

TOPICS = {"server": server.figures, "local training": local.figures, "start-up": startup.figures}


def run_all(out: Path, *, quick: bool, console: Console, sizes: Sizes | None = None) -> list[Figure]:
    """Measure everything, show one table, and write the figures to a JSON file.

    With ``quick`` (or other ``sizes``) problems are small and no goals are judged.
    """
    if not out.absolute().parent.is_dir() or out.is_dir():
        raise FedfuseError(f"cannot write figures to {out}: give a file in a directory that exists")
    judged = not quick and sizes is None
    sizes = sizes or (QUICK if quick else FULL)
    info = machine.describe()
    figures: list[Figure] = []
    for topic, measure in TOPICS.items():
        with console.status(f"measuring {topic} …"):
            figures += measure(sizes)
    console.print(table(figures, judged=judged))
    content = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "quick": not judged,
        "machine": info,
        "versions": machine.versions(),
        "figures": [figure.to_dict(judged=judged) for figure in figures],
    }
    out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    console.print(f"\nfigures: {out}", highlight=False)
    return figures
