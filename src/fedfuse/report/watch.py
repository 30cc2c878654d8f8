"""``fedfuse watch``: progress of a run or a comparison in a terminal or a browser, read from its directory.

The running process is not asked anything: it writes its rounds to the directory, and every process that may read the
directory may watch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import token_urlsafe
from threading import Lock

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from fedfuse.errors import FedfuseError
from fedfuse.report import NO_DEVICES, page_of, render
from fedfuse.report import explanations as words
from fedfuse.report.run_page import cost_chart, training_charts
from fedfuse.results.run_directory import ROUNDS, RunDirectory, read_history
from fedfuse.studies.compare import Request, is_comparison
from fedfuse.training.progress import read_rounds
from fedfuse.utils.files import naming_damage, read_json, without_nan
from fedfuse.utils.page_server import PageServer

MAX_SILENCE_SECONDS = 60
MAX_PAGE_SECONDS = 0.2  # that a page is given out again before it is made anew
CURVES = ["round", "validation", "test", "n_clusters", "moved", "cost_floats"]


@dataclass(frozen=True)
class Progress:
    """How far one run is."""

    name: str
    state: str  # waiting, running or finished
    facts: dict[str, str] = field(default_factory=dict)  # What is known of it, name by name.
    silent: float = 0.0  # Seconds since something was written.

    @classmethod
    def of(cls, directory: Path, name: str = "") -> Progress:
        """Read the progress of a run."""
        run, rounds = RunDirectory(directory), directory / ROUNDS
        if not run.started:
            return cls(name or directory.name, "waiting")
        config = run.config() if (directory / "config.json").exists() else {}
        method = words.title(config.get("method", {}).get("method", "run"))
        name = name or f"{config.get('dataset', directory.name)} · {method}"
        if run.finished:
            rows = without_nan(read_history(directory).astype(object).to_dict("records"))
            facts = _facts(rows, str(read_json(directory / "summary.json")["metric"]))
            facts.pop("models moved by", None)
            return cls(name, "finished", facts)
        limit = (config.get("settings") or {}).get("rounds")
        silent = max(0.0, time.time() - rounds.stat().st_mtime) if rounds.exists() else 0.0
        return cls(name, "running", _facts(read_rounds(directory), "score", limit), silent)

    def line(self) -> str:
        """Return the progress in one line."""
        return ", ".join([self.state, *(f"{name} {value}" for name, value in self.facts.items())])


def _facts(rows: Sequence[dict[str, object]], metric: str, limit: int | None = None) -> dict[str, str]:
    """Return the rounds done and the last value of every column, in words."""
    last = {key: value for row in rows for key, value in row.items() if value is not None}
    return {"round": f"{len(rows):,}{f' of at most {limit:,}' if limit else ''}", **words.progress(last, metric)}


def read_progress(directory: Path) -> list[Progress]:
    """Return the progress of a run, or of each run of a comparison."""
    with naming_damage(directory):
        if is_comparison(directory):
            request = Request.load(directory)
            places = [request.run_directory(directory, run) for run in request.runs]
            return [Progress.of(place, place.name) for place in places]
        if not RunDirectory(directory).started:
            raise FedfuseError(f"{directory} holds no run or comparison of fedfuse: config.json is missing")
        return [Progress.of(directory)]


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
            if all(run.state == "finished" for run in runs):
                return
            pause(every)
            runs = read_progress(directory)


def picture(runs: Sequence[Progress]) -> RenderableType:
    """Return what a terminal shows: a paragraph for each run."""
    lines = [
        Text.assemble((f"{run.name}, {run.state}", "bold"), *(f"\n  {key} {fact}" for key, fact in run.facts.items()))
        for run in runs
    ]
    if (silent := max((run.silent for run in runs if run.state == "running"), default=0.0)) > MAX_SILENCE_SECONDS:
        lines.append(Text(f"nothing was written for {silent:.0f} s: has it stopped?", style="yellow"))
    return Group(*lines)


class LiveServer(PageServer):
    """A web server for the progress of one directory, with an address that others cannot guess."""

    def __init__(self, directory: Path, port: int = 0) -> None:
        read_progress(directory)  # A directory without a run is refused before anything is served.
        self._directory, self._lock, self._made = directory, Lock(), (-float("inf"), "")
        super().__init__(self._recent, port, token=token_urlsafe(16))

    def _recent(self, path: str) -> str | None:
        """Return the page of this moment: many requests at once are answered with the same one."""
        if path:
            return None
        with self._lock:
            if time.monotonic() - self._made[0] > MAX_PAGE_SECONDS:
                page = live_page(self._directory)
                self._made = (time.monotonic(), page)
            return self._made[1]


def live_page(directory: Path) -> str:
    """Return a page that asks for itself again and again; of what is finished, its report."""
    with naming_damage(directory):
        runs = read_progress(directory)
        if all(run.state == "finished" for run in runs):
            return render(directory, baselines=False)
        rows = [] if is_comparison(directory) else read_rounds(directory)
        history = pd.DataFrame(rows).reindex(columns=CURVES).astype(float)
        charts = [*training_charts(history, "score"), cost_chart(history)] if rows else []
        content = {"title": directory.name, "overline": str(directory), "runs": runs, "silence": MAX_SILENCE_SECONDS}
        content |= {"charts": [replace(chart, readout={}) for chart in charts if chart], "data": NO_DEVICES}
        return page_of("live.html.j2", content)
