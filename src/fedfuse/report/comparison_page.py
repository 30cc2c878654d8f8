"""Content of the page of a comparison: methods side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import linear_sum_assignment

from fedfuse.report import NO_DEVICES
from fedfuse.report import explanations as words
from fedfuse.report.charts import Axis, Chart
from fedfuse.report.palette import COLOURS, tone
from fedfuse.report.run_page import settings_of, versions
from fedfuse.results.formatting import counted, score
from fedfuse.results.snapshots import thinned
from fedfuse.studies.comparison import Comparison, cells, footnotes, not_different
from fedfuse.utils.files import read_json
from fedfuse.utils.typing import Ints

MAX_POINTS = 400


def comparison_page(directory: Path) -> dict[str, Any]:
    """Return what the template of a comparison needs."""
    found = Comparison.load(directory)
    first = next(iter(found.results))
    heads, *rows = cells(found)
    table = directory / "table.json"
    return {
        "title": f"{found.dataset}: {counted(len(found.methods), 'method')}",
        "overline": f"{found.dataset} · {counted(len(found.seeds), 'seed')} · comparison",
        "headline": _headline(found),
        "supporting": [_sentence(note, found.methods) for note in footnotes(found)[1:]],
        "noun": words.noun_of(found.results[first].profile),
        "heads": heads,
        "body": list(zip(rows, found.table["best"].tolist(), _links(found, directory), strict=True)),
        "metric": found.metric,
        "many": len(found.seeds) > 1,
        "spread": _spread(found),
        "cost": _cost(found),
        "barcodes": _barcodes(found),
        # On a logarithmic scale there is no place for methods that send nothing.
        "silent": [str(method) for method in found.table.index[found.table["cost_floats"].eq(0)]],
        "settings": settings_of(directory / "runs" / f"{first[0]}-seed{first[1]}", found.results[first]),
        "settings_of": f"{first[0]}, seed {first[1]}",
        "versions": versions(read_json(table).get("version") if table.exists() else None),
        "data": NO_DEVICES,
    }


def _headline(found: Comparison) -> str:
    best = [str(method) for method in found.table.index[found.table["best"]]]
    if not best:
        return f"{counted(len(found.methods), 'method')} on {found.dataset}."
    test = score(float(found.table["test"][best[0]]), found.metric)
    value = f"mean test {words.metric_name(found.metric)} of {test}"
    if len(found.contestants) == 1:
        return f"{best[0]} has a {value}."
    close = found.table.index[not_different(found.table)]
    alike = [*best[1:], *(str(method) for method in close if method in found.contestants)]
    others = " and ".join(alike) if len(alike) < 3 else f"{len(alike)} others"
    also = f"; {others} {'does' if len(alike) == 1 else 'do'} about as well" if alike else ""
    return f"{best[0]} is the best of {counted(len(found.contestants), 'method')}, with a {value}{also}."


def _sentence(note: str, methods: Sequence[str]) -> str:
    """Write a footnote as a sentence; names of methods stay as they are.

    >>> _sentence("all others differ", ["cfl"]), _sentence("cfl: 1 of 2 runs failed", ["cfl"])
    ('All others differ.', 'cfl: 1 of 2 runs failed.')
    """
    named = note.startswith(tuple(f"{method}{sign}" for method in methods for sign in " :,"))
    return f"{note if named else note[0].upper() + note[1:]}."


def _links(found: Comparison, directory: Path) -> list[list[tuple[str, str]]]:
    """Return for every method the reports of its runs that are there, by seed."""
    links = []
    for method in found.methods:
        places = ((seed, f"runs/{method}-seed{seed}/report.html") for seed in found.seeds)
        links.append([(f"seed {seed}", place) for seed, place in places if (directory / place).exists()])
    return links


def _spread(found: Comparison) -> dict[str, Any]:
    """Return every device's score by method, as dots along a line with the middle half and the mean."""
    scores = found.scores.dropna(subset="test")
    words_of_axis = f"test {words.metric_name(found.metric)}"
    axis = Axis.around(scores["test"], percent=words.in_percent(found.metric), words=words_of_axis)
    rows = []
    for method in found.methods:
        points = np.sort(scores.loc[scores["method"] == method, "test"].to_numpy())
        if not len(points):
            continue
        low, middle, high = np.percentile(points, [25, 50, 75])
        shown = points[thinned(len(points), MAX_POINTS)]
        heights = np.random.default_rng(0).uniform(150, 850, len(shown))
        dots = "".join(f"M{1000 * a:.1f} {h:.0f}h0" for a, h in zip(axis.share(shown), heights, strict=True))
        numbers = {"low": low, "middle": middle, "high": high, "mean": found.table["test"][method]}
        rows.append({"name": method, "dots": dots, "best": found.table["best"][method], **numbers})
    return {"rows": rows, "axis": axis}


def _barcodes(found: Comparison) -> dict[str, Any] | None:
    """Return the groups by method, for the first seed that all have: a stripe for each device."""
    grouped = [method for method in found.methods if method in found.grouping]
    seeds = [s for s in found.seeds if all((method, s) in found.results for method in grouped)]
    if not grouped or not seeds:
        return None
    results = {method: found.results[method, seeds[0]] for method in grouped}
    sample = next(iter(results.values()))
    truth = sample.profile.truth
    order = np.argsort(sample.group_numbers if truth is None else truth, kind="stable")
    rows = []
    if truth is not None:
        rows.append({"name": "truth", "stripes": list(_stripes(truth[order] + 1)), "words": "the true groups"})
    for method, result in results.items():
        numbers = result.group_numbers if truth is None else _matched(result.labels, truth) + 1
        said = counted(result.n_clusters, "group") + ("" if result.ari is None else f", ARI {result.ari:.2f}")
        rows.append({"name": method, "stripes": list(_stripes(numbers[order])), "words": said})
    return {"rows": rows, "seed": seeds[0]}


def _matched(labels: Ints, truth: Ints) -> Ints:
    """Number groups as the true groups with which they share the most devices, so that colours mean the same."""
    n, known = int(labels.max()) + 1, int(truth.max()) + 1
    # A group that shares no device with a true group that is left has a number of its own.
    overlap = np.hstack([np.zeros((n, known)), np.full((n, n), 0.5)])
    np.add.at(overlap, (labels, truth), 1)
    return np.asarray(linear_sum_assignment(overlap, maximize=True)[1][labels])


def _stripes(groups: Ints) -> Iterator[tuple[float, float, str]]:
    """Yield (start, width, colour) of neighbours in one group, in per cent."""
    edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
    for a, b in pairwise(edges):
        yield round(100 * a / len(groups), 3), round(100 * (b - a) / len(groups), 3), tone(int(groups[a]))


def _cost(found: Comparison) -> Chart | None:
    """Return score against numbers sent: a dot for each method, and a line for how its first seed came there."""
    table = found.table[found.table["cost_floats"].gt(0) & found.table["test"].notna()]
    if not len(table):
        return None
    histories = {method: _scored(found, str(method)) for method in table.index}
    tests, costs = (np.concatenate([table[n], *(h[n] for h in histories.values())]) for n in ("test", "cost_floats"))
    x = Axis.around(costs, log=True, words="numbers sent (log scale)")
    metric = f"test {words.metric_name(found.metric)}"
    y = Axis.around(tests, margin=0.08, percent=words.in_percent(found.metric), words=metric)
    chart = Chart(f"Mean {metric} of each method against numbers sent; the table has the figures.", x, y, height=360)
    for place, (method, history) in enumerate(histories.items()):
        colour = tone(place + 1) + (" second" if place >= len(COLOURS) else "")
        chart.add("thin", history["cost_floats"], history["test"], colour)
        chart.add("dots", table.loc[[method], "cost_floats"], table.loc[[method], "test"], colour, str(method))
    return chart


def _scored(found: Comparison, method: str) -> pd.DataFrame:
    """Return the evaluated rounds of a method's first seed."""
    history = next(result.history for (name, _), result in found.results.items() if name == method)
    known = history.reindex(columns=["test", "cost_floats"])
    seen: pd.DataFrame = known[known["test"].notna() & known["cost_floats"].gt(0)]
    return seen
