"""A comparison as text: the cells that the terminal, Markdown and ``repr`` show alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from fedfuse.results.formatting import counted, cut_short
from fedfuse.studies.significance import ALPHA

if TYPE_CHECKING:
    from fedfuse.studies.comparison import Comparison

NOTHING = "—"
ALIKE = "≈"
FAILED = "failed"


def headings(found: Comparison) -> list[str]:
    """Return the headings of the columns; ARI has none where the true groups are not known."""
    test = "accuracy %" if found.metric == "accuracy" else "RMSE"
    ari = ["ARI"] if found.table["ari"].notna().any() else []
    return ["method", test, "clusters", *ari, "floats sent", "rounds", "seconds"]


def cells(found: Comparison, *, spreads: bool = True) -> list[list[str]]:
    """Return the body of the table; ``spreads`` are those of cost, rounds and time."""
    return [_row(found, str(method), row, spreads) for method, row in found.table.iterrows()]


def markdown(found: Comparison) -> str:
    """Return a Markdown table, the best method in bold."""
    best = found.table["best"].to_list()
    body = [
        [f"**{cell}**" if top and place < 2 else cell for place, cell in enumerate(row)]
        for row, top in zip(cells(found), best, strict=True)
    ]
    rule = ["---", *(["---:"] * (len(headings(found)) - 1))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings(found), rule, *body))


def plain_text(found: Comparison) -> str:
    """Return the table in columns."""
    rows = [headings(found), *cells(found, spreads=False)]
    widths = [max(len(row[j]) for row in rows) for j in range(len(rows[0]))]
    lines = ("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def footnotes(found: Comparison) -> list[str]:
    """Return what a reader must know: over what the means are, what the mark means, what has failed."""
    seeds = f"{found.repeats} {found.seeds[0]}"
    if len(found.seeds) > 1:
        seeds = f"mean ± population sd over {counted(len(found.seeds), found.repeats)}"
    notes = [f"{found.dataset}, {seeds}"]
    if found.table["p"].notna().any():
        notes.append(_verdict(found))
    if len(found.contestants) < len(found.methods):
        notes.append(f"{', '.join(sorted(found.told))}: told the true groups, to show what can be had")
    return notes + unfinished(found) + failures(found)


def unfinished(found: Comparison) -> list[str]:
    """Return a line for every method whose search for groups ran out of rounds."""
    lines = []
    for method in found.methods:
        short = [r.rounds for (name, _), r in found.results.items() if name == method and r.cut_short]
        if short:
            runs = "" if len(found.seeds) == 1 else f" in {len(short)} of {len(found.seeds)} runs"
            lines.append(f"{method} {cut_short(max(short))}{runs}: its score is not what it can do")
    return lines


def failures(found: Comparison) -> list[str]:
    """Return a line for every method with runs that failed."""
    failed = found.table[found.table["runs"] < len(found.seeds)]
    return [
        f"{method}: {len(found.seeds) - row['runs']} of {len(found.seeds)} runs failed: {row['error']}"
        for method, row in failed.iterrows()
    ]


def _verdict(found: Comparison) -> str:
    """Say what the mark means, and by which test."""
    table = found.table
    best = ", ".join(str(method) for method in table.index[table["best"]])
    test = f"by Wilcoxon's signed-rank test on {_witnesses(found)} (two-sided, Holm-corrected, level {ALPHA:g})"
    if _too_few(table):
        return f"{int(table['pairs'].max())} devices are too few for a paired test of {len(table)} methods"
    if not _alike(table).any():
        return f"all others differ significantly from the best ({best}), {test}"
    return f"{ALIKE} not significantly different from the best ({best}), {test}"


def _witnesses(found: Comparison) -> str:
    if len(found.seeds) == 1:
        return "device scores"
    return f"device scores {'averaged over' if found.same_devices else 'of all'} {found.repeats}s"


def _too_few(table: pd.DataFrame) -> bool:
    """Whether no method could differ significantly, even if every device preferred the best one."""
    tests = int(table["p"].count())
    # Holm's rule begins with the number of tests
    return tests > 0 and 2.0 ** (1 - int(table["pairs"].max())) * tests >= ALPHA


def _alike(table: pd.DataFrame) -> pd.Series[bool]:
    """Return which methods get the mark: none where the test cannot say anything of anybody."""
    return table["p_holm"].ge(ALPHA) & ~table["best"] & (not _too_few(table))


def _row(found: Comparison, method: str, row: pd.Series[float], spreads: bool) -> list[str]:
    if not row["runs"]:
        return [method, FAILED, *[NOTHING] * (len(headings(found)) - 2)]
    many = len(found.seeds) > 1
    scale, places = (100.0, 2) if found.metric == "accuracy" else (1.0, _places(row["test"]))
    mark = f"{ALIKE} " if bool(_alike(found.table)[method]) else ""  # in front: numbers stay one below the other
    texts = [method, mark + _spread(scale * row["test"], scale * row["test_sd"], places, many)]
    texts.append(_count(row["n_clusters"], row["n_clusters_sd"]))
    if "ARI" in headings(found):
        texts.append(_spread(row["ari"], row["ari_sd"], 2, many))
    spread = spreads and many
    texts.append(_floats(row["cost_floats"], row["cost_floats_sd"] if spread else None))
    texts.append(_spread(row["rounds"], row["rounds_sd"], 0, spread))
    texts.append(_spread(row["seconds"], row["seconds_sd"], 1, spread))
    return texts


def _places(value: float) -> int:
    """Return how many decimals give four significant digits.

    >>> [_places(v) for v in (0.01234, 4.089, 51234.5)]
    [5, 3, 0]
    """
    size = np.floor(np.log10(abs(value))) if value and np.isfinite(value) else 0
    return int(np.clip(3 - size, 0, 9))


def _spread(mean: float, sd: float, places: int, many: bool) -> str:
    if not np.isfinite(mean):
        return NOTHING
    return f"{mean:,.{places}f}" + (f" ± {sd:,.{places}f}" if many else "")


def _count(mean: float, sd: float) -> str:
    """Write a number of clusters: whole where it was the same in all seeds.

    >>> _count(4.0, 0.0), _count(11.0, 8.6409), _count(np.nan, np.nan)
    ('4', '11.00 ± 8.64', '—')
    """
    if not np.isfinite(mean):
        return NOTHING
    return f"{mean:.0f}" if not sd else f"{mean:.2f} ± {sd:.2f}"


def _floats(mean: float, sd: float | None = None) -> str:
    """Write a number of floats as the paper does.

    >>> _floats(12120), _floats(73261000.0), _floats(1.8324e9, 2.7e5)
    ('12,120', '7.33e7', '1.83e9 ± 2.70e5')
    """
    numbers = [mean] if sd is None else [mean, sd]
    return " ± ".join(f"{x:,.0f}" if mean < 1e6 or not x else _scientific(x) for x in numbers)


def _scientific(value: float) -> str:
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits}e{int(power)}"
