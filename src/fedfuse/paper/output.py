"""What an item came to, as files and as words: Markdown, CSV, a picture."""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd

from fedfuse.paper import runner
from fedfuse.paper.experiment import Item, Shown
from fedfuse.paper.setup import WORDS, PaperSetup
from fedfuse.report.plots import save_picture
from fedfuse.utils.files import atomic_write, write_json

PICTURES = ("figure.svg", "figure.png")


def markdown(table: pd.DataFrame) -> str:
    """Return a table of texts in Markdown, numbers to the right.

    >>> print(markdown(pd.DataFrame({"method": ["a"], "printed ": ["1"]})))
    | method | printed |
    | --- | ---: |
    | a | 1 |
    """
    headings = [str(name).strip() for name in table.columns]
    rule = ["---", *(["---:"] * (len(headings) - 1))]
    rows = [headings, rule, *([str(cell) for cell in row] for row in table.itertuples(index=False))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def command(item: Item, setup: PaperSetup) -> str:
    """Return what to type to have an item at this size."""
    return f"fedfuse paper {item.name}{WORDS[setup.size]}"


def text(item: Item, setup: PaperSetup, shown: Shown, level: int = 1, picture: str | None = None) -> str:
    """Return an item in Markdown: tables, the picture, how ours compare, why they may differ, the command and time."""
    lines = [f"{'#' * level} {item.where}: {item.title}", ""]
    for title, table in shown.tables.items():
        lines += [f"{title}:", "", markdown(table), ""]
    if picture:
        lines += [f"![{item.title}]({picture})", ""]
    if shown.notes:
        lines += [*(f"- {note}" for note in shown.notes), ""]
    if item.why:
        lines += ["What differs from the paper, and why:", "", *(f"- {reason}" for reason in item.why), ""]
    lines += [f"`{command(item, setup)}`{_took(item, setup)}", ""]
    return "\n".join(lines)


def _took(item: Item, setup: PaperSetup) -> str:
    trials = runner.wanted([item], setup)
    if not trials:
        return ", a few seconds."
    return f", {len(trials)} runs, {duration(runner.seconds(item, setup))} of one core."


def save(item: Item, setup: PaperSetup, shown: Shown, directory: Path) -> list[Path]:
    """Write all files of an item; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, table in shown.numbers.items():
        paths.append(directory / name)
        with atomic_write(paths[-1]) as file:
            file.write(table.to_csv(index=False, lineterminator="\n").encode())
    if shown.draw is not None:
        paths += draw(shown, directory, PICTURES)
    picture = PICTURES[0] if shown.draw else None
    paths.append(directory / f"{item.name}.md")
    with atomic_write(paths[-1]) as file:
        file.write(text(item, setup, shown, picture=picture).encode())
    runs = {trial.key: trial.description for trial in runner.wanted([item], setup)}
    write_json(directory / "runs.json", {"item": item.name, "size": setup.size, "made": time.time(), "runs": runs})
    return paths


def draw(shown: Shown, directory: Path, names: tuple[str, ...]) -> list[Path]:
    """Write the picture; each file is drawn anew, as saving lets go of the figure."""
    paths = [directory / name for name in names]
    for path in paths:
        if shown.draw is not None:
            save_picture(shown.draw(), path)
    return paths


def duration(seconds: float) -> str:
    """Write a time that is only roughly known.

    >>> duration(42), duration(400), duration(9000)
    ('42 s', '7 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
