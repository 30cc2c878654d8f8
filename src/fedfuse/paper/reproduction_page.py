"""Files of an item, and the page of all items: Markdown, CSV and pictures from runs that are done.

Runs of one machine need not be all: a section that others have put on the page stays there until it is run again, as
large or larger. Only its reasons are written anew.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pandas as pd

from fedfuse.paper import runner
from fedfuse.paper.experiment import Findings, Item
from fedfuse.paper.items import items
from fedfuse.paper.setup import SIZE_OPTIONS, PaperSetup, Size
from fedfuse.report.plots import save_picture
from fedfuse.results.formatting import duration
from fedfuse.utils.files import atomic_write, write_json

PICTURES = ("figure.svg", "figure.png")
# The tables are wide: the site shows no list of contents beside them.
_HEAD = """---
hide: [toc]
---

# The paper, reproduced

Every table and figure of *Clustered Federated Learning based on Nonconvex Pairwise Fusion*, ours beside the printed
numbers. Written by `fedfuse paper page` from runs that `fedfuse paper` has done; no number is typed by hand.

"FPFC" is the paper's algorithm with a lambda from the paper. "fusion-tree" is fedfuse's default method, which needs no
lambda and is not in the paper. The oracle knows the groups and shows what can be had. "Clusters" are the groups that a
method finds, as the paper's columns call them. Scores are means over devices on test rows, which are used for scoring
only; ± is the population standard deviation over seeds.

Sizes: {sizes}.

| item | size |
| --- | --- |
{contents}
"""
_WHY = "What differs from the paper, and why:\n\n"
_SIZES: dict[Size, str] = {
    "full": "*full* has the paper's data, rounds and seeds (800 device-epochs in figures of many runs on images)",
    "middle": "*middle* has all data, one seed, 400 rounds on synthetic data and 800 device-epochs on images",
    "quick": "*quick* has fewer rows, rounds and seeds, and shows the picture, not the numbers",
}


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


def section(item: Item, setup: PaperSetup, found: Findings, picture: str, level: int = 1) -> str:
    """Return an item in Markdown: tables, picture, notes, reasons, the command and its time."""
    lines = [f"{'#' * level} {item.where}: {item.title}", ""]
    for title, table in found.tables.items():
        lines += [f"{title}:", "", markdown(table), ""]
    if found.draw:
        lines += [f"![{item.title}]({picture})", ""]
    if found.notes:
        lines += [*(f"- {note}" for note in found.notes), ""]
    if item.why:
        lines += [_WHY + _bullets(item.why), ""]
    runs = len(runner.wanted([item], setup))
    took = f"{runs} runs, {duration(runner.seconds(item, setup))} of one core." if runs else "a few seconds."
    return "\n".join([*lines, f"`{_command(item, setup.size)}`, {took}", ""])


def save(item: Item, setup: PaperSetup, found: Findings, directory: Path) -> list[Path]:
    """Write all files of an item; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {name: table.to_csv(index=False, lineterminator="\n") for name, table in found.numbers.items()}
    files[f"{item.name}.md"] = section(item, setup, found, PICTURES[0])
    for name, text in files.items():
        _write(directory / name, text)
    runs = {trial.key: trial.description for trial in runner.wanted([item], setup)}
    write_json(directory / "runs.json", {"item": item.name, "size": setup.size, "made": time.time(), "runs": runs})
    return [*(directory / name for name in files), *_draw(found, directory, PICTURES)]


def write_page(path: Path, out: Path, data_dir: str | None = None) -> list[str]:
    """Write the page, and pictures into a folder of its name; return the items that are neither run nor on it."""
    parts, absent, used, contents = [], [], set[Size](), []
    before, rank = dict(_sections(path)), get_args(Size).index
    for item in items().values():
        setup, there = _best_size(item, out, data_dir), before.get(_heading(item))
        if there is not None and (setup is None or rank(setup.size) > rank(there[0])):
            size, words = there[0], _with_todays_reasons(item, there[1])
        elif setup is not None:
            size, words = setup.size, _new_section(item, setup, path)
        else:
            absent.append(item)
            continue
        used.add(size)
        parts.append(words)
        contents.append(f"| [{item.where}](#{_anchor(item)}): {item.title} | {size} |")
    sizes = "; ".join(words for size, words in _SIZES.items() if size in used) or "none yet"
    if commands := "\n".join(_command(item, "full") for item in absent):
        parts.append(f"## Not run yet\n\n```\n{commands}\n```\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, "\n".join([_HEAD.format(sizes=sizes, contents="\n".join(contents)), *parts]))
    return [item.name for item in absent]


def _best_size(item: Item, out: Path, data_dir: str | None) -> PaperSetup | None:
    """Return the largest size at which all runs of an item are done."""
    setups = (PaperSetup(size, runner.cache(out), data_dir) for size in get_args(Size))
    return next((setup for setup in setups if runner.complete(item, setup)), None)


def _new_section(item: Item, setup: PaperSetup, path: Path) -> str:
    """Return the section of an item that was run here, and draw its picture."""
    found, picture = item.experiment.findings(setup), f"{path.stem}/{item.name}.svg"
    _draw(found, path.parent, (picture,))
    return section(item, setup, found, picture, level=2).rstrip() + f" Size: {setup.size}.\n"


def _sections(path: Path) -> Iterator[tuple[str, tuple[Size, str]]]:
    """Yield the sections of items that are on the page: heading, size and text."""
    if not path.exists():
        return
    for part in re.split(r"^(?=## )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        for size in get_args(Size):
            if part.rstrip().endswith(f"Size: {size}."):
                yield part.splitlines()[0], (size, part.rstrip() + "\n")


def _with_todays_reasons(item: Item, words: str) -> str:
    before, sign, after = words.partition(_WHY)
    return f"{before}{_WHY}{_bullets(item.why)}\n\n{after.partition(chr(10) * 2)[2]}" if sign else words


def _draw(found: Findings, directory: Path, names: tuple[str, ...]) -> list[Path]:
    """Write the picture; each file is drawn anew, as saving closes the figure."""
    if found.draw is None:
        return []
    for name in names:
        save_picture(found.draw(), directory / name)
    return [directory / name for name in names]


def _write(path: Path, text: str) -> None:
    with atomic_write(path) as file:
        file.write(text.encode())


def _bullets(reasons: tuple[str, ...]) -> str:
    return "\n".join(f"- {reason}" for reason in reasons)


def _command(item: Item, size: Size) -> str:
    return f"fedfuse paper {item.name}{SIZE_OPTIONS[size]}"


def _anchor(item: Item) -> str:
    """Return the name that a heading has in links, on the site and on GitHub."""
    words = re.sub(r"[^\w\s-]", "", _heading(item).removeprefix("## ")).strip().lower()
    return re.sub(r"[-\s]+", "-", words)


def _heading(item: Item) -> str:
    return f"## {item.where}: {item.title}"
