"""Work with a progress display, then the outcome: in the terminal or as JSON, and as a page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from fedfuse.cli.console import Answers
from fedfuse.cli.notices import INTERRUPTED, console, fail
from fedfuse.results.run_directory import Store
from fedfuse.utils.files import without_nan

if TYPE_CHECKING:
    from fedfuse.data.federation import Federation
    from fedfuse.results.result import Result
    from fedfuse.studies.comparison import Comparison
    from fedfuse.studies.jobs import Watcher
    from fedfuse.studies.tune import Tuning
    from fedfuse.training.loop import Callback

Outcome = TypeVar("Outcome")


def trained(train: Callable[[list[Callback]], Outcome], directory: Path) -> Outcome:
    """Train with a progress display; say how to go on when interrupted."""
    from fedfuse.report.terminal import ProgressBar

    bar = ProgressBar(console)
    try:
        return train([bar])
    except KeyboardInterrupt:
        bar.close()
        if not Store(directory).started:
            raise
        fail(f"interrupted; go on with: fedfuse resume {shlex.quote(str(directory))}", INTERRUPTED)
    finally:
        bar.close()


def train_and_show(
    train: Callable[[list[Callback]], Result],
    directory: Path,
    as_json: bool,
    federation: Federation | None,
    report: bool | None,
) -> None:
    """Train, show the outcome, and write the page; local and pooled models are fitted where a federation is given."""
    from fedfuse.report.terminal import show

    result = trained(train, directory)
    if as_json:
        if report:
            write_page(directory, federation is not None)
        typer.echo(json.dumps(without_nan(result.summary())))
        return
    sticks = {}
    if federation is not None and result.model.convex:
        from fedfuse.training.baselines import measured

        with console.status("fitting local and pooled models to compare with …"):
            found = measured(federation, result.model)
        found.save(directory)
        sticks = found.scores
    answers = Answers()
    show(result, sticks, answers)
    answers.say(f"\nfiles: {directory}")
    if report is not False:
        page = write_page(directory, federation is not None)
        answers.say(f"report: {page}")
    if result.profile.encoder is not None:
        hint = f"predict new rows: fedfuse predict {shlex.quote(str(directory))} new.csv"
        answers.say(hint)


def compare_and_show(work: Callable[[Watcher], Comparison], directory: Path, as_json: bool) -> None:
    """Compare with a progress display, and show the table; say how to go on when interrupted."""
    from fedfuse.report.terminal import ComparisonBars, show_comparison
    from fedfuse.studies.compare import is_comparison

    bars = ComparisonBars(console)
    try:
        comparison = work(bars)
    except KeyboardInterrupt:
        bars.close()
        if not is_comparison(directory):
            raise
        fail(f"interrupted; go on with: fedfuse resume {shlex.quote(str(directory))}", INTERRUPTED)
    if as_json:
        typer.echo(json.dumps(comparison.summary()))
        return
    answers = Answers()
    show_comparison(comparison, answers)
    answers.say(f"\nfiles: {directory}")
    answers.say(f"report: {write_page(directory)}")


def show_tuned(tuning: Tuning, directory: Path, as_json: bool, plot: Path | None) -> None:
    from fedfuse.report.terminal import show_tuning

    if plot:
        from fedfuse.report.plots import save_picture

        save_picture(tuning.plot(), plot)
    if as_json:
        typer.echo(json.dumps(without_nan(tuning.summary())))
        return
    answers = Answers()
    show_tuning(tuning, answers)
    page = write_page(directory)
    for line in (f"\nfiles: {directory}", f"report: {page}", *([f"picture: {plot}"] if plot else [])):
        answers.say(line)


def write_page(directory: Path, baselines: bool = True, out: Path | None = None) -> Path:
    from fedfuse.report import write_report

    with console.status("writing the report …"):
        return write_report(directory, out, baselines=baselines)
