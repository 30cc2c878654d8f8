"""Files of an item, and the page of all items: Markdown, CSV and pictures from runs that are done.

Runs of one machine need not be all: a section that others have put on the page stays there until it is run again, as
large or larger. Rows of its tables that are done here take the place of theirs, or are added.
"""

from __future__ import annotations

import re
import time
from importlib.resources import files
from pathlib import Path
from typing import get_args

import pandas as pd

from fedfuse.paper import runner
from fedfuse.paper.claims import claims_table, read_tables
from fedfuse.paper.experiment import Findings, Item, markdown
from fedfuse.paper.items import items
from fedfuse.paper.setup import PRINTED, SIZE_OPTIONS, PaperSetup, Size
from fedfuse.report.plots import save_picture
from fedfuse.results.formatting import duration
from fedfuse.utils.files import atomic_write, write_json

PICTURES = ("figure.svg", "figure.png")
# The tables are wide: the site shows no list of contents beside them.
_HEAD = """---
hide: [toc]
---

# The paper, claim by claim

Can the results of *Clustered Federated Learning based on Nonconvex Pairwise Fusion* be reproduced? This page compares
what the paper prints with what fedfuse finds: first claim by claim, then for every table and figure, with our numbers
beside the printed ones. `fedfuse paper page` writes it from finished runs of `fedfuse paper`; no number is typed by
hand.

How to read it:

- **FPFC** is the paper's algorithm, with lambda tuned as in the paper. Other settings have their own rows.
- **fusion-tree** is fedfuse's default method, which is not in the paper. **oracle** is given the true groups, as an
  upper bound.
- **Clusters** are the groups that a method finds. **ARI** is their agreement with the true groups (1 is perfect).
- Scores are means over devices on test rows, which are used for scoring only. ± is the population standard deviation
  over seeds.
- A row **holds** if its score is within two printed standard deviations of the printed score, and if clusters and ARI
  equal the printed ones wherever those have no spread.

## Claims

{claims}

## Items

{sizes}

| item | size |
| --- | --- |
{contents}
"""
_WHY = "Why ours may differ: "
_SIZES: dict[Size, str] = {
    "full": "*full*: the paper's data, rounds and seeds; figures of images that need many runs use 800 device-epochs.",
    "middle": "*middle*: all data, one seed, 400 rounds on synthetic data, 800 device-epochs on images.",
    "quick": "*quick*: fewer rows, rounds and seeds. It shows the trend, not the numbers.",
}


def reasons() -> dict[str, str]:
    """Return why numbers may differ from the printed ones, by heading."""
    text = (files("fedfuse.paper") / "reasons.md").read_text(encoding="utf-8")
    _, *parts = re.split(r"^### (.*)\n", text, flags=re.MULTILINE)
    return {heading: words.strip() for heading, words in zip(parts[::2], parts[1::2], strict=True)}


def section(item: Item, setup: PaperSetup, found: Findings, picture: str, level: int = 1) -> str:
    """Return an item in Markdown: tables, picture, notes, the command and its time."""
    lines = [f"{'#' * level} {item.where}: {item.title}", ""]
    for title, table in found.tables.items():
        lines += [f"{title}:", "", markdown(table), ""]
    if found.draw:
        lines += [f"![{item.title}]({picture})", ""]
    if found.notes:
        lines += [*(f"- {note}" for note in found.notes), ""]
    runs = runner.wanted([item], setup)
    seconds = sum(trial.result().seconds for trial in runs)
    took = f"{len(runs)} runs, {duration(seconds)} of one core." if runs else "a few seconds."
    return "\n".join([*lines, f"`{_command(item, setup.size)}`, {took}", ""])


def save(item: Item, setup: PaperSetup, found: Findings, directory: Path) -> list[Path]:
    """Write all files of an item; return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    texts = {name: table.to_csv(index=False, lineterminator="\n") for name, table in found.numbers.items()}
    why = "".join(f"\n## {name}\n\n{reasons()[name]}\n" for name in item.why)
    texts[f"{item.name}.md"] = section(item, setup, found, PICTURES[0]) + why
    for name, text in texts.items():
        _write(directory / name, text)
    runs = {trial.key: trial.description for trial in runner.wanted([item], setup)}
    write_json(directory / "runs.json", {"item": item.name, "size": setup.size, "made": time.time(), "runs": runs})
    return [*(directory / name for name in texts), *_draw(found, directory, PICTURES)]


def write_page(path: Path, out: Path, data_dir: str | None = None) -> list[str]:
    """Write the page, and pictures into a folder of its name; return the items that are neither run nor on it."""
    before, found, rank = written(path), dict[str, tuple[Size, str]](), get_args(Size).index
    for name, item in items().items():
        setups, there = (PaperSetup(size, runner.cache(out), data_dir) for size in get_args(Size)), before.get(name)
        setup = next((setup for setup in setups if runner.complete(item, setup)), None)  # The largest of them.
        if there is not None and (setup is None or rank(setup.size) > rank(there[0])):
            found[name] = there[0], _with_rows(item, PaperSetup(there[0], runner.cache(out), data_dir), there[1])
        elif setup is not None:
            found[name] = setup.size, _new_section(item, setup, path)
    absent = [name for name in items() if name not in found]
    used = {size for size, _ in found.values()}
    parts = [_with_reasons(items()[name], words) for name, (_, words) in found.items()]
    if absent:
        commands = "\n".join(_command(items()[name], "full") for name in absent)
        parts.append(f"## Not run yet\n\n```\n{commands}\n```\n")
    parts.append("## Why numbers differ\n")
    parts += [f"### {heading}\n\n{text}\n" for heading, text in reasons().items()]
    head = _HEAD.format(
        claims=claims_table({name: (size, read_tables(words)) for name, (size, words) in found.items()}),
        sizes=" ".join(words for size, words in _SIZES.items() if size in used) or "None yet.",
        contents="\n".join(_in_contents(items()[name], size) for name, (size, _) in found.items()),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, "\n".join([head, *parts]))
    return absent


def written(path: Path) -> dict[str, tuple[Size, str]]:
    """Return size and text of the items that are on a page, by name."""
    if not path.exists():
        return {}
    parts = re.split(r"^(?=## )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    names = {f"## {item.where}: {item.title}": name for name, item in items().items()}
    found = dict[str, tuple[Size, str]]()
    for part in parts:
        heading, end = part.splitlines()[0], re.search(r"Size: (\w+)\.\s*\Z", part)
        if heading in names and end and end[1] in get_args(Size):
            found[names[heading]] = end[1], part.rstrip() + "\n"  # type: ignore[assignment]
    return found


def _new_section(item: Item, setup: PaperSetup, path: Path) -> str:
    """Return the section of an item that was run here, and draw its picture."""
    found, picture = item.experiment.findings(setup), f"{path.stem}/{item.name}.svg"
    _draw(found, path.parent, (picture,))
    return section(item, setup, found, picture, level=2).rstrip() + f" Size: {setup.size}.\n"


def _with_rows(item: Item, setup: PaperSetup, words: str) -> str:
    """Put rows that are done here into a section's tables."""
    for title, ours in item.experiment.finished_rows(setup).items():
        theirs = read_tables(words).get(title)
        if theirs is None or list(theirs.columns) != list(ours.columns):
            continue
        order, first = list(PRINTED.values()), theirs.columns[0]
        both = pd.concat([theirs, ours]).drop_duplicates(first, keep="last")
        places = both[first].map({name: place for place, name in enumerate(order)}).fillna(len(order))
        words = words.replace(markdown(theirs), markdown(both.iloc[places.argsort(kind="stable")]))
        # Notes compare rows: beside new ones they may no longer hold.
        words = re.sub(rf"^- {re.escape(title)}: .*\n", "", words, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", words)


def _with_reasons(item: Item, words: str) -> str:
    """Put links to the reasons before the section's last line, in place of earlier ones."""
    body, _, end = re.sub(rf"^{_WHY}.*\n\n", "", words, flags=re.MULTILINE).rpartition("\n\n")
    links = ", ".join(f"[{heading}](#{_anchor(heading)})" for heading in item.why)
    return f"{body}\n\n{_WHY}{links}.\n\n{end}"


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


def _command(item: Item, size: Size) -> str:
    return f"fedfuse paper {item.name}{SIZE_OPTIONS[size]}"


def _anchor(heading: str) -> str:
    """Return the name that a heading has in links, on the site and on GitHub."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def _in_contents(item: Item, size: Size) -> str:
    return f"| [{item.where}](#{_anchor(f'{item.where}: {item.title}')}): {item.title} | {size} |"
