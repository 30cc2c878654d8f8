"""``fedfuse bench``: ratios against textbook loops, plain NumPy, plain PyTorch and the machine's own limits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedfuse.bench import local_training, neighbours, rounds_to_groups, server_step, startup
from fedfuse.bench.measurement import FULL, QUICK, BenchSizes, Curve, Figure, cells, describe_machine, versions
from fedfuse.errors import FedfuseError, guess

__all__ = ["FULL", "QUICK", "SECTIONS", "BenchSizes", "Curve", "Figure", "chosen", "run_all"]

SECTIONS: dict[str, Callable[[BenchSizes], Iterable[Figure | Curve]]] = {
    "server": server_step.figures,
    "formed": server_step.formed_figures,
    "graph": lambda sizes: chain(neighbours.figures(sizes), neighbours.growth_curves(sizes)),
    "local": local_training.figures,
    "run": local_training.whole_run_figures,
    "cnn": local_training.network_figures,
    "groups": rounds_to_groups.figures,
    "startup": startup.figures,
    "growth": lambda sizes: chain(server_step.growth_curves(sizes), local_training.growth_curves(sizes)),
}


def chosen(only: str) -> list[str]:
    """Return the sections that a text like ``"server,local"`` names; all of them if it is empty.

    >>> chosen("server, local")
    ['server', 'local']
    """
    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in SECTIONS]:
        words = f"{guess(unknown[0], SECTIONS)}known: {', '.join(SECTIONS)}"
        raise FedfuseError(f"there is no part {unknown[0]!r} of the benchmark; {words}")
    return names or list(SECTIONS)


def run_all(
    out: Path, sizes: BenchSizes = FULL, *, console: Console, only: Sequence[str] = tuple(SECTIONS)
) -> list[Figure]:
    """Measure these sections, show one table, and write what was measured to a JSON file.

    Goals are judged at full size only.
    """
    if not out.absolute().parent.is_dir() or out.is_dir():
        raise FedfuseError(f"cannot write figures to {out}: give a file in a directory that exists")
    judged, info = sizes == FULL, describe_machine()
    seen: list[Figure | Curve] = []
    for name in only:
        with console.status(f"measuring {name} …"):
            seen += SECTIONS[name](sizes)
    figures = [item for item in seen if isinstance(item, Figure)]
    curves = [item for item in seen if isinstance(item, Curve)]
    content: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "quick": not judged,
        "parts": list(only),
        "machine": info,
        "versions": versions(),
        "figures": [figure.to_dict(judged=judged) for figure in figures],
        "growth": [curve.to_dict() for curve in curves],
    }
    console.print(table(content["figures"]))
    for curve in curves:
        words = f"{curve.what}, over {curve.over}: {curve.points}; grows with exponent {curve.exponent:.2f}"
        console.print(words, highlight=False, soft_wrap=True)
    out.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    console.print(f"figures: {out}", highlight=False)
    return figures


def table(figures: Iterable[dict[str, Any]]) -> Table:
    """Show figures as they are in the JSON file."""
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0))
    for heading in ("figure", "measured", "against", "ratio", "goal"):
        shown.add_column(heading, justify="right" if heading == "ratio" else "left")
    for figure in figures:
        measured, reference, ratio, goal = cells(figure)
        colour = {True: "green", False: "red", None: "default"}[figure["met"]]
        name, against = f"{figure['name']}\n[dim]{figure['what']}[/dim]", f"{reference}\n[dim]{figure['against']}[/dim]"
        shown.add_row(
            name, measured, against, f"[{colour}]{ratio}[/{colour}]", goal if figure["met"] is not None else ""
        )
    return shown
