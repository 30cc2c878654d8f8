"""What ``fedfuse paper`` prints: the list of items, and tables of an item."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from rich.markup import escape
from rich.measure import Measurement

from fedfuse.cli.console import Answers, Lines
from fedfuse.errors import FedfuseError
from fedfuse.paper import reproduction_page, runner
from fedfuse.paper.experiment import Findings, Item
from fedfuse.paper.items import chosen, items
from fedfuse.paper.runner import effort
from fedfuse.paper.setup import PaperSetup, Size
from fedfuse.report.terminal import ComparisonBars, plain_table
from fedfuse.results.formatting import duration
from fedfuse.utils.threads import usable_cores

SPECIAL_NAMES = ("list", "page")
MAX_TABLE_COLUMNS = 400
MIN_WIDE_COLUMNS = 140  # Narrower terminals have one column for the place of an item and its title.


def show_list(out: Path, data_dir: str | None, answers: Answers) -> None:
    """Print every item: name, what it is, about how long it takes at each size, and whether that is done."""
    wide, sizes, rows = answers.width >= MIN_WIDE_COLUMNS, tuple(reversed(get_args(Size))), []
    for item in items().values():
        times = [_time(item, PaperSetup(size, runner.cache(out), data_dir)) for size in sizes]
        what = [item.where, escape(item.title)]
        rows.append([item.name, *(what if wide else [": ".join(what)]), *times])
    heads = ["name", *(["where"] if wide else []), "what"]
    table = plain_table([*heads, *sizes], rows, left=len(heads))
    table.columns[len(heads) - 1].no_wrap = False
    answers.print(table)
    words = f"Rough times on {usable_cores()} cores; done: already there in {out}. Figures of the same runs share them."
    answers.say(f"\n{words}")


def _time(item: Item, setup: PaperSetup) -> str:
    if not item.possible(setup):
        return "no files"
    rest = runner.missing([item], setup)
    if not rest:
        return "done" if item.experiment.data else "5 s"
    return "~" + duration(max(sum(map(effort, rest)) / usable_cores(), 1.0))


def make(
    names: list[str], size: Size, out: Path, data_dir: str | None, jobs: int | None, console: Lines, answers: Answers
) -> None:
    """Run items, print them and write their files; an error at the end where runs failed."""
    wanted, setup = chosen(names), PaperSetup(size, runner.cache(out), data_dir)
    said = list(dict.fromkeys(words for item in wanted for words in setup.check_data(item.experiment.data)))
    for words in said:
        console.say(f"note: {words}", "yellow")
    wanted = [item for item in wanted if item.possible(setup)]
    if not wanted:
        raise FedfuseError("the data files for this are missing")
    failed = runner.run(wanted, setup, ComparisonBars(console, effort), jobs)
    broken = []
    for item in wanted:
        lacking = [failed[trial.key] for trial in runner.missing([item], setup) if trial.key in failed]
        if lacking:
            broken.append(f"{item.name}: {len(lacking)} runs failed ({lacking[0]})")
            continue
        found = item.experiment.findings(setup)
        found.notes += [words for words in said if any(name in words for name in item.experiment.data)]
        directory = out / size / item.name
        reproduction_page.save(item, setup, found, directory)
        _print_item(item, found, answers)
        answers.say(f"\nfiles: {directory}\n")
    if broken:
        raise FedfuseError("; ".join(broken))


def _print_item(item: Item, found: Findings, answers: Answers) -> None:
    answers.say(f"{item.where}: {item.title}", "bold")
    for title, frame in found.tables.items():
        answers.say(f"\n{title}")
        rows = ([escape(str(cell)) for cell in row] for row in frame.itertuples(index=False))
        table = plain_table(list(frame.columns), rows, left=1)
        # A table that is too wide for the terminal runs over its edge, but keeps its numbers whole.
        wide = Measurement.get(answers, answers.options.update(width=MAX_TABLE_COLUMNS), table).maximum
        Answers(file=answers.file, width=max(wide, answers.width)).print(table)
    for note in found.notes:
        answers.say(f"- {note}")


def write_page(path: Path, out: Path, data_dir: str | None, answers: Answers) -> None:
    """Write the page of all items that are done."""
    absent = reproduction_page.write_page(path, out, data_dir)
    answers.say(f"page: {path}")
    if absent:
        answers.say(f"not run yet: {', '.join(absent)}")
