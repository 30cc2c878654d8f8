"""``fedfuse watch``: a run or a comparison that goes on, as its directory shows it.

Nothing is asked of the running process: it writes its rounds down (`recorder`), and whoever may read the directory may
watch, from another terminal or another computer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedfuse.errors import FedfuseError
from fedfuse.report.explanations import score, title
from fedfuse.report.terminal import STAGES
from fedfuse.results.run_directory import Store
from fedfuse.studies.compare import is_comparison
from fedfuse.studies.comparison_request import Request
from fedfuse.training.progress_recorder import ROUNDS, read_rounds
from fedfuse.utils.files import read_json, without_nan

BLOCKS = "▁▂▃▄▅▆▇█"
SILENCE = 60  # seconds without a word of a run, after which it is said so


@dataclass(frozen=True)
class Glance:
    """How far one run is.

    ``limit`` is how many rounds there may be, where the method does not decide itself; ``silent`` for how many seconds
    nothing has been written.
    """

    name: str
    state: str  # waiting, running, finished
    metric: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    limit: int | None = None
    silent: float = 0.0

    @property
    def last(self) -> dict[str, Any]:
        """What is known of the last round, and of the last that was evaluated."""
        known: dict[str, Any] = {}
        for row in self.rows:
            known |= {key: value for key, value in row.items() if value is not None}
        return known

    def curve(self, column: str) -> tuple[list[int], list[float]]:
        """Return rounds and values of a column, where there are some."""
        seen = [(int(row["round"]) + 1, float(row[column])) for row in self.rows if row.get(column) is not None]
        return [k for k, _ in seen], [v for _, v in seen]

    @property
    def held_out(self) -> str:
        """The part whose score is shown: validation rows, where models were not trained on them."""
        return "validation" if self.curve("validation")[0] else "test"


def glance(directory: Path) -> Glance:
    """Look at a run."""
    store = Store(directory)
    if not store.started:
        return Glance(directory.name, "waiting", "score")
    config = store.config() if (directory / "config.json").exists() else {}
    method = config.get("method", {}).get("method", "run")
    name = f"{config.get('dataset', directory.name)} · {title(method)}"
    if store.finished:
        return Glance(name, "finished", *_finished(directory))
    rounds = (config.get("settings") or {}).get("rounds")
    automatic = config.get("method", {}).get("lam") == "auto"
    return Glance(name, "running", "score", read_rounds(directory), None if automatic else rounds, _silence(directory))


def _finished(directory: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the metric and the rows of a finished run; `Result.load` would bring its model, too."""
    try:
        history = pd.read_csv(directory / "history.csv")
        metric = str(read_json(directory / "summary.json")["metric"])
    except FedfuseError:
        raise
    except (KeyError, TypeError, OSError, ValueError) as problem:
        raise FedfuseError(f"{directory} holds no whole run of fedfuse: {problem}") from None
    return metric, without_nan(history.astype(object).to_dict("records"))


def _silence(directory: Path) -> float:
    """Return for how long nothing has been written, by the clock of this computer."""
    try:
        return max(0.0, time.time() - (directory / ROUNDS).stat().st_mtime)
    except OSError:
        return 0.0


def glances(directory: Path) -> list[Glance]:
    """Look at a run, or at all runs of a comparison."""
    if not is_comparison(directory):
        if not Store(directory).started:
            raise FedfuseError(f"{directory} holds no run of fedfuse, nor a comparison: config.json is missing")
        return [glance(directory)]
    request = Request.load(directory)
    runs = [f"{label}-seed{seed}" for label in request.methods for seed in request.seeds]
    looks = [glance(directory / "runs" / run) for run in runs]
    return [
        Glance(run, look.state, look.metric, look.rows, look.limit, look.silent)
        for run, look in zip(runs, looks, strict=True)
    ]


def watch(directory: Path, console: Console, every: float = 1.0, pause: Callable[[float], None] = time.sleep) -> None:
    """Show a run or a comparison in the terminal until it ends."""
    looks = glances(directory)
    if not console.is_terminal:
        _watch_plainly(directory, console, every, pause)
        return
    with Live(picture(looks), console=console, auto_refresh=False) as live:
        while True:
            live.update(picture(looks), refresh=True)
            if all(look.state == "finished" for look in looks):
                return
            pause(every)
            looks = glances(directory)


def _watch_plainly(directory: Path, console: Console, every: float, pause: Callable[[float], None]) -> None:
    """Write a line whenever there is news: for files and pipes."""
    said: dict[str, str] = {}
    while True:
        looks = glances(directory)
        for look in looks:
            line = f"{look.name}: {line_of(look)}"
            if said.get(look.name) != line:
                said[look.name] = line
                console.print(line, highlight=False, markup=False, soft_wrap=True)
        if all(look.state == "finished" for look in looks):
            return
        pause(every)


def line_of(look: Glance) -> str:
    """Say in one line how far a run is."""
    if look.state == "waiting":
        return "waiting"
    words = [look.state, *(f"{name} {value}" for name, value in facts(look))]
    return ", ".join(words)


def facts(look: Glance) -> list[tuple[str, str]]:
    """Return what is known of a run: name and value."""
    last = look.last
    found = [("round", f"{len(look.rows):,}" + (f" of at most {look.limit:,}" if look.limit else ""))]
    if "stage" in last:
        found.append(("at", STAGES.get(last["stage"]) or str(last["stage"])))
    if "n_clusters" in last:
        found.append(("groups", f"{last['n_clusters']:.0f}"))
    if look.held_out in last:
        shown = score(last[look.held_out], look.metric) if look.metric != "score" else f"{last[look.held_out]:.4g}"
        found.append((f"{look.held_out} {look.metric}", shown))
    if "cost_floats" in last:
        found.append(("floats sent", f"{last['cost_floats']:,.0f}"))
    if "moved" in last and look.state == "running":
        found.append(("moving", f"{100 * last['moved']:.2g} %"))
    if "seconds" in last:
        found.append(("time", f"{last['seconds']:.1f} s"))
    return found


def picture(looks: Sequence[Glance]) -> RenderableType:
    """Return what the terminal shows."""
    return _one(looks[0]) if len(looks) == 1 else _many(looks)


def _one(look: Glance) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in facts(look):
        table.add_row(name, escape(value))
    for column, words in ((look.held_out, look.held_out), ("n_clusters", "groups")):
        values = look.curve(column)[1]
        if len(values) > 1:
            table.add_row(f"{words} by round", f"{sparkline(values)}  {min(values):.4g} to {max(values):.4g}")
    if look.limit and look.state == "running":
        table.add_row("", ProgressBar(look.limit, len(look.rows), width=40))
    parts: list[RenderableType] = [Text(f"{look.name}, {look.state}", style="bold"), table]
    if look.state == "running" and look.silent > SILENCE:
        parts.append(Text(f"nothing was written for {look.silent:.0f} s: has it stopped?", style="yellow"))
    return Group(*parts)


def _many(looks: Sequence[Glance]) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "state", "round", "groups", "score", "score by round"):
        table.add_column(heading, justify="left" if heading in ("run", "state", "score by round") else "right")
    for look in looks:
        last, style = look.last, {"waiting": "dim", "running": "bold"}.get(look.state, "")
        groups = f"{last['n_clusters']:.0f}" if "n_clusters" in last else "-"
        value = f"{last[look.held_out]:.4f}" if look.held_out in last else "-"
        spark = sparkline(look.curve(look.held_out)[1])
        table.add_row(escape(look.name), look.state, str(len(look.rows)), groups, value, spark, style=style)
    ended = sum(look.state == "finished" for look in looks)
    return Group(table, Text(f"{ended} of {len(looks)} runs finished", style="dim"))


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """Draw numbers as a line of blocks.

    >>> sparkline([0, 1, 2, 7]), sparkline([3, 3]), sparkline([])
    ('▁▂▃█', '▁▁', '')
    """
    if not values:
        return ""
    step = max(1, -(-len(values) // width))
    shown = [*values[::step][:-1], values[-1]] if step > 1 else list(values)
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join(BLOCKS[min(7, int(8 * (v - low) / span))] for v in shown)
