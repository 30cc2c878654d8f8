"""Run with a progress display, then show the outcome: in the terminal or as JSON, and as a page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedfuse.cli.console import INTERRUPTED_STATUS, Answers, console, fail, notes, print_json
from fedfuse.errors import Terminated
from fedfuse.results.run_directory import RunDirectory

if TYPE_CHECKING:
    from fedfuse.data.federation import Federation
    from fedfuse.results.result import Result
    from fedfuse.studies.comparison import Comparison
    from fedfuse.studies.jobs import Watcher
    from fedfuse.training.loop import Callback


def train_and_show(
    train: Callable[[list[Callback]], Result],
    directory: Path,
    as_json: bool,
    federation: Federation | None,
    report: bool | None,
) -> None:
    """Train, show the outcome and write the page; where a federation is given, local and pooled models are fitted."""
    from fedfuse.report import fitted_baselines
    from fedfuse.report.terminal import ProgressBar, show, show_small
    from fedfuse.results.result import Result
    from fedfuse.training.newcomers import admit_small

    bar = ProgressBar(console, notes.show)
    with _resumable(directory, lambda path: RunDirectory(path).started), closing(bar):
        result = train([bar])
    joined = admit_small(result, RunDirectory(directory).config().get("source"), directory)
    baselines = federation is not None
    if as_json:
        if report:
            write_page(directory, baselines)
        print_json(result.summary())
        return
    answers = Answers()
    with console.status("fitting local and pooled models to compare with …"):
        found = None if federation is None else fitted_baselines(directory, federation)[0]
        if found is not None:
            result = replace(result, intervals=Result.load(directory).intervals)
        if federation is not None and result.lam and result.model.convex and result.method["method"] != "fpfc-l1":
            result = replace(result, certificate=result.certify(federation))
            result.save(directory)
    show(result, found.scores if found else {}, answers)
    if joined:
        show_small(joined, answers)
    answers.say(f"\nfiles: {directory}")
    if report is not False:
        answers.say(f"report: {write_page(directory, baselines)}")
    if result.profile.encoder is not None:
        answers.say(f"predict new rows: fedfuse predict {shlex.quote(str(directory))} new.csv")


def compare_and_show(work: Callable[[Watcher], Comparison], directory: Path, as_json: bool) -> None:
    """Compare with a progress display, and show the table; when interrupted, say how to go on."""
    from fedfuse.report.terminal import ComparisonBars, show_comparison
    from fedfuse.studies.compare import is_comparison

    with _resumable(directory, is_comparison):
        comparison = work(ComparisonBars(console))
    if as_json:
        print_json(comparison.summary())
        return
    answers = Answers()
    show_comparison(comparison, answers)
    answers.say(f"\nfiles: {directory}\nreport: {write_page(directory)}")


def write_page(directory: Path, baselines: bool = True, out: Path | None = None) -> Path:
    from fedfuse.report import write_report

    with console.status("writing the report …"):
        return write_report(directory, out, baselines=baselines)


@contextmanager
def _resumable(directory: Path, begun: Callable[[Path], bool]) -> Iterator[None]:
    """Say how to go on when interrupted; a service that is told to stop has done so with success."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as stop:
        if not begun(directory):
            raise
        status = 0 if isinstance(stop, SystemExit) else INTERRUPTED_STATUS
        fail(f"interrupted; continue with: fedfuse resume {shlex.quote(str(directory))}", status)
