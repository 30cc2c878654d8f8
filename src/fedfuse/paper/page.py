"""The page of all tables and figures, from runs that are done: no number in it is typed by hand.

Runs of one machine need not be all: what others have put on the page stays there until it is run again, as large or
larger. Only its reasons are written anew, and what follows from its tables alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pandas as pd

from fedfuse.paper import runner
from fedfuse.paper.experiment import Item
from fedfuse.paper.items import items
from fedfuse.paper.methods_table import GROUPING, MethodsTable, grouping
from fedfuse.paper.output import command, draw, text
from fedfuse.paper.setup import PaperSetup, Size
from fedfuse.utils.files import atomic_write

# the tables are wide: the site shows no list of contents beside them
_HEAD = """---
hide: [toc]
---

# The paper, reproduced

Every table and figure of *Clustered Federated Learning based on Nonconvex Pairwise Fusion*, ours beside the printed
numbers. Written by `fedfuse paper page` from runs that `fedfuse paper` has done; no number is typed by hand.

"FPFC auto" is FPFC as it is here by default: no lambda is given. "FPFC" is the paper's own loop with a lambda from the
paper. The oracle knows the groups and shows what can be had. Scores are means over devices on test rows, which have
chosen nothing; ± is the population standard deviation over seeds.

Sizes: {sizes}.

{contents}
"""
_CONTENTS = "| item | size |\n| --- | --- |"
_WHY = "What differs from the paper, and why:\n\n"
_SIZES: dict[Size, str] = {
    "full": "*full* has the paper's data, rounds and seeds (800 device-epochs in figures of many runs on images)",
    "middle": "*middle* has all data, one seed, 400 rounds on synthetic data and 800 device-epochs on images",
    "quick": "*quick* has fewer rows, rounds and seeds, and shows the picture, not the numbers",
}


def best_size(item: Item, out: Path, data_dir: str | None) -> PaperSetup | None:
    """Return the largest size at which all runs of an item are done."""
    for size in get_args(Size):
        setup = PaperSetup(size, runner.cache(out), data_dir)
        if runner.complete(item, setup):
            return setup
    return None


def write(path: Path, out: Path, data_dir: str | None = None) -> list[str]:
    """Write the page, and pictures into a folder of its name; return the items that are neither run nor on it."""
    parts, absent, used, contents = [], [], set(), [_CONTENTS]
    before = dict(_sections(path))
    for item in items().values():
        setup, there = best_size(item, out, data_dir), before.get(_heading(item))
        if there is not None and (setup is None or _rank(setup.size) > _rank(there[0])):
            size, words = there[0], _reworded(item, *there)
        elif setup is not None:
            size, words = setup.size, _section(item, setup, path)
        else:
            absent.append(item.name)
            continue
        used.add(size)
        parts.append(words)
        contents.append(f"| [{item.where}](#{_anchor(item)}): {item.title} | {size} |")
    sizes = "; ".join(words for size, words in _SIZES.items() if size in used) or "none yet"
    head = _HEAD.format(sizes=sizes, contents="\n".join(contents))
    if absent:
        full = PaperSetup("full", runner.cache(out), data_dir)
        commands = "\n".join(command(item, full) for item in items().values() if item.name in absent)
        parts.append(f"## Not run yet\n\n```\n{commands}\n```\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write("\n".join([head, *parts]).encode())
    return absent


def _section(item: Item, setup: PaperSetup, path: Path) -> str:
    """Return what came of an item here, and draw its picture."""
    shown, picture = item.experiment.show(setup), None
    if shown.draw is not None:
        picture = f"{path.stem}/{item.name}.svg"
        draw(shown, path.parent, (picture,))
    return text(item, setup, shown, level=2, picture=picture).rstrip() + f" Size: {setup.size}.\n"


def _sections(path: Path) -> Iterator[tuple[str, tuple[Size, str]]]:
    """Return the items that are on the page: heading, size, and all of it."""
    if not path.exists():
        return
    for part in re.split(r"^(?=## )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        size = re.search(r"Size: (\w+)\.\s*$", part)
        for known in get_args(Size):
            if size is not None and size[1] == known:
                yield part.splitlines()[0], (known, part.rstrip() + "\n")


def _reworded(item: Item, size: Size, words: str) -> str:
    """Return what is on the page of an item with the words of today: numbers and pictures are those of its runs."""
    before, sign, after = words.partition(_WHY)
    if sign:
        reasons = "\n".join(f"- {reason}" for reason in item.why)
        words = f"{before}{_WHY}{reasons}\n\n" + after.partition("\n\n")[2]
    if size == "full" and isinstance(item.experiment, MethodsTable):
        words = _with_grouping(words)
    return words


def _with_grouping(words: str) -> str:
    """Say of every table of methods on the page whose groups differ from the printed ones."""
    words = re.sub(rf"^- [^\n]*{re.escape(GROUPING)}[^\n]*\n", "", words, flags=re.MULTILINE)
    for data, table in re.findall(r"^(\S[^\n|]*):\n\n((?:\|[^\n]*\n)+)", words, flags=re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines())
        columns = [f"{name} {place}" for place, name in enumerate(head)]  # some have the same name
        for note in grouping(pd.DataFrame(rows, columns=columns)):
            last = list(re.finditer(rf"^- {re.escape(data)}: [^\n]*\n", words, flags=re.MULTILINE))[-1].end()
            words = f"{words[:last]}- {data}: {note}\n{words[last:]}"
    return words


def _anchor(item: Item) -> str:
    """Return the name that a heading has in links, on the site and on GitHub."""
    words = re.sub(r"[^\w\s-]", "", _heading(item).removeprefix("## ")).strip().lower()
    return re.sub(r"[-\s]+", "-", words)


def _heading(item: Item) -> str:
    return f"## {item.where}: {item.title}"


def _rank(size: Size) -> int:
    return get_args(Size).index(size)
