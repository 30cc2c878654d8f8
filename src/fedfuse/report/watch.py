"""``fedfuse watch``: progress of a run or a comparison, read from its directory, in a terminal or a browser.

The running process is not asked anything: it writes its rounds to the directory, and every process that may read the
directory may watch. The web server listens on the loopback address only (`utils.page_server`) and knows three paths.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_urlsafe
from threading import Lock
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedfuse.errors import FedfuseError
from fedfuse.report import explanations as words
from fedfuse.report import page_of, render, templates
from fedfuse.report.charts import thinned
from fedfuse.report.distance_charts import PairFrame
from fedfuse.report.run_page import cost_chart, training_charts
from fedfuse.results.run_directory import RunDirectory, read_history
from fedfuse.results.snapshots import SnapshotFile
from fedfuse.studies.compare import Request, is_comparison
from fedfuse.training.progress import ROUNDS, read_rounds
from fedfuse.utils.files import naming_damage, read_json, without_nan
from fedfuse.utils.page_server import HTML, JSON, Page, PageServer

BLOCKS = "▁▂▃▄▅▆▇█"
MAX_SILENCE_SECONDS = 60
MAX_PAGE_SECONDS = 0.2  # that a page is given out again before it is made anew
CURVES = ["round", "validation", "test", "n_clusters", "moved", "cost_floats"]


@dataclass(frozen=True)
class Progress:
    """How far one run is.

    Attributes
    ----------
    state
        ``"waiting"``, ``"running"`` or ``"finished"``.
    limit
        The largest number of rounds, where the method does not decide itself.
    silent
        Seconds since something was written.
    """

    name: str
    state: str
    metric: str = "score"
    rows: list[dict[str, Any]] = field(default_factory=list)
    limit: int | None = None
    silent: float = 0.0

    @classmethod
    def of(cls, directory: Path) -> Progress:
        """Read the progress of a run."""
        run, rounds = RunDirectory(directory), directory / ROUNDS
        if not run.started:
            return cls(directory.name, "waiting")
        config = run.config() if (directory / "config.json").exists() else {}
        method = config.get("method", {})
        name = f"{config.get('dataset', directory.name)} · {words.title(method.get('method', 'run'))}"
        if run.finished:
            return cls(name, "finished", *_finished(directory))
        limit = (config.get("settings") or {}).get("rounds")
        silent = max(0.0, time.time() - rounds.stat().st_mtime) if rounds.exists() else 0.0
        return cls(name, "running", "score", read_rounds(directory), limit, silent)

    @property
    def last(self) -> dict[str, Any]:
        """The last value of every column."""
        return {key: value for row in self.rows for key, value in row.items() if value is not None}

    def curve(self, column: str) -> tuple[list[int], list[float]]:
        """Return rounds and values of a column, where there are some."""
        seen = [(int(row["round"]) + 1, float(row[column])) for row in self.rows if row.get(column) is not None]
        return [k for k, _ in seen], [v for _, v in seen]

    @property
    def held_out(self) -> str:
        """The part whose score is shown: validation rows, where models were not trained on them."""
        return "validation" if self.curve("validation")[0] else "test"

    def facts(self) -> list[tuple[str, str]]:
        """Return what is known: name and value."""
        if self.state == "waiting":
            return []
        known = words.progress(self.last, self.metric)
        if self.state == "finished":
            known.pop("models moved by", None)
        limit = f" of at most {self.limit:,}" if self.limit else ""
        return [("round", f"{len(self.rows):,}{limit}"), *known.items()]

    def line(self) -> str:
        """Return the progress in one line."""
        return ", ".join([self.state, *(f"{name} {value}" for name, value in self.facts())])


def _finished(directory: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return the metric and the rows of a finished run, without loading its model."""
    metric = str(read_json(directory / "summary.json")["metric"])
    return metric, without_nan(read_history(directory).astype(object).to_dict("records"))


def read_progress(directory: Path) -> list[Progress]:
    with naming_damage(directory):
        if is_comparison(directory):
            request = Request.load(directory)
            runs = [f"{label}-seed{seed}" for label in request.methods for seed in request.seeds]
            return [replace(Progress.of(directory / "runs" / run), name=run) for run in runs]
        if not RunDirectory(directory).started:
            raise FedfuseError(f"{directory} holds no run of fedfuse, nor a comparison: config.json is missing")
        return [Progress.of(directory)]


def all_finished(runs: Sequence[Progress]) -> bool:
    return all(run.state == "finished" for run in runs)


def watch(directory: Path, console: Console, every: float = 1.0, pause: Callable[[float], None] = time.sleep) -> None:
    """Show a run or a comparison until it ends: live in a terminal, a line for each change elsewhere."""
    runs, said = read_progress(directory), set[str]()
    live = Live(console=console, auto_refresh=False) if console.is_terminal else None
    with live or nullcontext():
        while True:
            if live:
                live.update(picture(runs), refresh=True)
            else:
                lines = [f"{run.name}: {run.line()}" for run in runs]
                for line in (line for line in lines if line not in said):
                    console.print(line, highlight=False, markup=False, soft_wrap=True)
                said.update(lines)
            if all_finished(runs):
                return
            pause(every)
            runs = read_progress(directory)


def picture(runs: Sequence[Progress]) -> RenderableType:
    """Return what the terminal shows: everything of one run, a line for each of many."""
    if len(runs) == 1:
        return _one_run(runs[0])
    table = Table(box=None, pad_edge=False, show_header=False)
    for run in runs:
        style = {"waiting": "dim", "running": "bold"}.get(run.state, "")
        table.add_row(escape(run.name), sparkline(run.curve(run.held_out)[1]), escape(run.line()), style=style)
    ended = sum(run.state == "finished" for run in runs)
    return Group(table, Text(f"{ended} of {len(runs)} runs finished", style="dim"))


def _one_run(run: Progress) -> RenderableType:
    table = Table("", "", box=None, pad_edge=False, show_header=False)
    table.columns[0].style = "dim"
    for name, value in run.facts():
        table.add_row(name, escape(value))
    for column, name in ((run.held_out, run.held_out), ("n_clusters", "groups")):
        values = run.curve(column)[1]
        if len(values) > 1:
            table.add_row(f"{name} by round", f"{sparkline(values)}  {min(values):.4g} to {max(values):.4g}")
    if run.limit and run.state == "running":
        table.add_row("", ProgressBar(run.limit, len(run.rows), width=40))
    parts: list[RenderableType] = [Text(f"{run.name}, {run.state}", style="bold"), table]
    if run.state == "running" and run.silent > MAX_SILENCE_SECONDS:
        parts.append(Text(f"nothing was written for {run.silent:.0f} s: has it stopped?", style="yellow"))
    return Group(*parts)


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """Draw numbers as a line of blocks.

    >>> sparkline([0, 1, 2, 7]), sparkline([3, 3]), sparkline([])
    ('▁▂▃█', '▁▁', '')
    """
    shown = [values[i] for i in thinned(len(values), width)]
    low = min(shown, default=0.0)
    span = (max(shown, default=0.0) - low) or 1.0
    return "".join(BLOCKS[min(7, int(8 * (v - low) / span))] for v in shown)


class Server(PageServer):
    """A web server for the progress of one directory, with an address that others cannot guess."""

    def __init__(self, directory: Path, port: int = 0) -> None:
        read_progress(directory)  # a directory without a run is refused before anything is served
        self._directory, self._lock = directory, Lock()
        self._made: dict[str, tuple[float, Page | None]] = {}
        super().__init__(self._recent, port, token=token_urlsafe(16))

    def _recent(self, path: str) -> Page | None:
        """Return a page of this moment: many requests at once are answered with the same one."""
        with self._lock:
            made, page = self._made.get(path, (-float("inf"), None))
            if time.monotonic() - made > MAX_PAGE_SECONDS:
                page = _page(self._directory, path)
                self._made = {path: (time.monotonic(), page)}
            return page


def _page(directory: Path, path: str) -> Page | None:
    """Return the live page, its numbers, or the report of a finished run."""
    if path == "":
        data: dict[str, Any] = {"names": [], "groups": [], "pairs": None, "tree": None}
        return HTML, page_of("live.html.j2", {"title": directory.name, "overline": str(directory), "data": data})
    if path == "state.json":
        return JSON, json.dumps(state(directory))
    if path == "report.html" and all_finished(read_progress(directory)):
        return HTML, render(directory, baselines=False)
    return None


def state(directory: Path) -> dict[str, Any]:
    """Return what the live page shows now, as JSON-ready data; of a single run also its charts, as HTML."""
    with naming_damage(directory):
        runs = read_progress(directory)
        one = None if is_comparison(directory) else runs[0]
        return {
            "finished": all_finished(runs),
            "runs": [{"name": r.name, "state": r.state, "facts": r.facts(), "silent": round(r.silent)} for r in runs],
            "charts": _charts(one) if one else "",
            "heat": _heat(directory) if one else None,
        }


def _charts(run: Progress) -> str:
    """Draw the charts of training, as in the report."""
    history = pd.DataFrame(run.rows).reindex(columns=CURVES).astype(float)
    found = [*training_charts(history, run.metric), cost_chart(history)] if len(history) else []
    draw = templates().get_template("parts.html.j2").module.chart  # type: ignore[attr-defined]
    # No values are read off: the page asks for new charts all the time.
    return "".join(draw(replace(chart, readout={})) for chart in found if chart)


def _heat(directory: Path) -> dict[str, Any] | None:
    """Return the last distances of all pairs, ordered by the groups of that moment."""
    snapshots = SnapshotFile(directory).load()
    if not snapshots:
        return None
    last = snapshots[-1]
    labels = np.zeros(int(last.devices.max()) + 1, np.int64)
    labels[last.devices] = last.labels
    pairs = PairFrame.of([last], labels)
    payload = pairs.payload()
    return {"round": last.round, "n": len(pairs.cells), "heat": payload["heat"], "top": payload["tops"][0]}
