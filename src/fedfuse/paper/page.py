"""The page of all tables and figures, from runs that are done: no number in it is typed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from fedfuse.paper import runner
from fedfuse.paper.experiment import Item
from fedfuse.paper.items import items
from fedfuse.paper.output import command, draw, text
from fedfuse.paper.setup import Setup, Size
from fedfuse.store import written_whole

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
"""
_SIZES: dict[Size, str] = {
    "full": "*full* has the paper's data, rounds and seeds (800 device-epochs in figures of many runs on images)",
    "middle": "*middle* has all data, one seed, 400 rounds on synthetic data and 800 device-epochs on images",
    "quick": "*quick* has fewer rows, rounds and seeds, and shows the picture, not the numbers",
}


def best_size(item: Item, out: Path, data_dir: str | None) -> Setup | None:
    """Return the largest size at which all runs of an item are done."""
    for size in get_args(Size):
        setup = Setup(size, runner.cache(out), data_dir)
        if runner.complete(item, setup):
            return setup
    return None


def write(path: Path, out: Path, data_dir: str | None = None) -> list[str]:
    """Write the page, and pictures into a folder of its name; return the items that are not there."""
    parts, absent, used = [], [], set()
    for item in items().values():
        setup = best_size(item, out, data_dir)
        if setup is None:
            absent.append(item.name)
            continue
        used.add(setup.size)
        shown, picture = item.experiment.show(setup), None
        if shown.draw is not None:
            picture = f"{path.stem}/{item.name}.svg"
            draw(shown, path.parent, (picture,))
        parts.append(text(item, setup, shown, level=2, picture=picture).rstrip() + f" Size: {setup.size}.\n")
    head = _HEAD.format(sizes="; ".join(words for size, words in _SIZES.items() if size in used) or "none yet")
    if absent:
        full = Setup("full", runner.cache(out), data_dir)
        commands = "\n".join(command(item, full) for item in items().values() if item.name in absent)
        parts.append(f"## Not run yet\n\n```\n{commands}\n```\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as file:
        file.write("\n".join([head, *parts]).encode())
    return absent
