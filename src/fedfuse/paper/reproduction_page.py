"""Files of an item, and the page of all items: Markdown, CSV and pictures from runs that are done.

Runs of one machine need not be all: a section that others have put on the page stays there until it is run again, as
large or larger. Only its reasons are written anew.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import get_args

from fedfuse.paper import runner
from fedfuse.paper.claims import claims_table, read_tables
from fedfuse.paper.experiment import Findings, Item, markdown
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

# The paper, claim by claim

What *Clustered Federated Learning based on Nonconvex Pairwise Fusion* prints, and what holds here; below, every table
and figure, ours beside the printed numbers. Written by `fedfuse paper page` from runs that `fedfuse paper` has done; no
number is typed by hand.

"FPFC" is the paper's algorithm, tuned as its text says; other settings have rows of their own, also without a lambda.
"fusion-tree" is fedfuse's default method, and not in the paper. The oracle knows the groups and shows what can be had.
"Clusters" are the groups that a method finds, as the paper's columns call them. Scores are means over devices on test
rows, which are used for scoring only; ± is the population standard deviation over seeds. A row is as printed if its
score is within two printed deviations, and clusters and ARI are the same where the printed ones have no spread.

## Claims

{claims}

## Items

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
    before, found, rank = written(path), dict[str, tuple[Size, str]](), get_args(Size).index
    for name, item in items().items():
        setup, there = _best_size(item, out, data_dir), before.get(name)
        if there is not None and (setup is None or rank(setup.size) > rank(there[0])):
            found[name] = there[0], _with_todays_reasons(item, there[1])
        elif setup is not None:
            found[name] = setup.size, _new_section(item, setup, path)
    absent = [name for name in items() if name not in found]
    used, parts = {size for size, _ in found.values()}, [words for _, words in found.values()]
    if absent:
        commands = "\n".join(_command(items()[name], "full") for name in absent)
        parts.append(f"## Not run yet\n\n```\n{commands}\n```\n")
    contents = [_in_contents(items()[name], size) for name, (size, _) in found.items()]
    head = _HEAD.format(
        claims=claims_table({name: (size, read_tables(words)) for name, (size, words) in found.items()}),
        sizes="; ".join(words for size, words in _SIZES.items() if size in used) or "none yet",
        contents="\n".join(contents),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, "\n".join([head, *parts]))
    return absent


def written(path: Path) -> dict[str, tuple[Size, str]]:
    """Return size and text of the items that are on a page, by name."""
    if not path.exists():
        return {}
    parts = re.split(r"^(?=## )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    names, found = {_heading(item): name for name, item in items().items()}, dict[str, tuple[Size, str]]()
    for part in parts:
        for size in get_args(Size):
            if part.splitlines()[0] in names and part.rstrip().endswith(f"Size: {size}."):
                found[names[part.splitlines()[0]]] = size, part.rstrip() + "\n"
    return found


def _best_size(item: Item, out: Path, data_dir: str | None) -> PaperSetup | None:
    """Return the largest size at which all runs of an item are done."""
    setups = (PaperSetup(size, runner.cache(out), data_dir) for size in get_args(Size))
    return next((setup for setup in setups if runner.complete(item, setup)), None)


def _new_section(item: Item, setup: PaperSetup, path: Path) -> str:
    """Return the section of an item that was run here, and draw its picture."""
    found, picture = item.experiment.findings(setup), f"{path.stem}/{item.name}.svg"
    _draw(found, path.parent, (picture,))
    return section(item, setup, found, picture, level=2).rstrip() + f" Size: {setup.size}.\n"


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


def _in_contents(item: Item, size: Size) -> str:
    return f"| [{item.where}](#{_anchor(item)}): {item.title} | {size} |"


def _heading(item: Item) -> str:
    return f"## {item.where}: {item.title}"
